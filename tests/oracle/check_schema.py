#!/usr/bin/env python3
"""The wire schema stays safe and compatible: a TAP test.

* No message contains itself, directly or through others: protobuf-c unpacks without a depth limit.
* No proto3 `optional` and no map: what protobuf-c 1.4 does not know, or makes awkward.
* Against proto/released.binpb, the descriptor set of the last release: no field, message, enum or
  enum value is gone (a field or value may go if its number and name are reserved), none has another
  type, label, number, name or oneof.
* The checks themselves see planted faults.

Needs the Python package protobuf, and protoc-c ($PROTOC_C). After a release: protoc-c
--proto_path=. --descriptor_set_out=proto/released.binpb proto/fp8d.proto
"""
import os
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(os.environ.get("FP8D_SRCDIR", pathlib.Path(__file__).resolve().parents[2]))

try:
    from google.protobuf import descriptor_pb2 as pb
except ImportError:
    print("1..0 # SKIP the Python package protobuf is missing")
    sys.exit(0)

MESSAGE, GROUP = pb.FieldDescriptorProto.TYPE_MESSAGE, pb.FieldDescriptorProto.TYPE_GROUP


def compiled(folder, name="proto/fp8d.proto"):
    """The descriptor set of a schema, as protoc-c reads it."""
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "set")
        subprocess.run([os.environ.get("PROTOC_C") or "protoc-c", f"--proto_path={folder}", f"--descriptor_set_out={out}", name],
                       check=True)
        return pb.FileDescriptorSet.FromString(pathlib.Path(out).read_bytes())


def schema_of(text):
    with tempfile.TemporaryDirectory() as tmp:
        pathlib.Path(tmp, "x.proto").write_text('syntax = "proto3"; package x;\n' + text)
        return compiled(tmp, "x.proto")


def walk(descriptors):
    """All messages and enums of a set: {full name: descriptor}, twice."""
    messages, enums = {}, {}

    def visit(prefix, message):
        name = f"{prefix}.{message.name}"
        messages[name] = message
        enums.update({f"{name}.{e.name}": e for e in message.enum_type})
        for nested in message.nested_type:
            visit(name, nested)

    for file in descriptors.file:
        prefix = f".{file.package}"
        enums.update({f"{prefix}.{e.name}": e for e in file.enum_type})
        for message in file.message_type:
            visit(prefix, message)
    return messages, enums


def recursive(descriptors):
    """Names of messages that contain themselves."""
    messages, _ = walk(descriptors)
    inside = {n: {f.type_name for f in m.field if f.type in (MESSAGE, GROUP)} for n, m in messages.items()}
    found = []
    for start in inside:
        reached, todo = set(), list(inside[start])
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += inside.get(name, ())
        if start in reached:
            found.append(f"{start} contains itself")
    return found


def unknown_to_protobuf_c(descriptors):
    messages, _ = walk(descriptors)
    found = [f"{n}.{f.name}: optional" for n, m in messages.items() for f in m.field if f.proto3_optional]
    found += [f"{n}: map" for n, m in messages.items() if m.options.map_entry]
    found += [f"{f.name}: syntax {f.syntax}" for f in descriptors.file if f.syntax != "proto3"]
    return found


def reserved(ranges, names, number, name, last):
    """Whether number and name are both reserved; `last` is 1 where the ranges' ends are inclusive."""
    return name in names and any(r.start <= number < r.end + last for r in ranges)


def shape(message, field):
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    return (field.name, field.type, field.label, field.type_name, oneof)


def broken(old, new):
    """What a client built from old would get wrong with new."""
    (old_messages, old_enums), (new_messages, new_enums) = walk(old), walk(new)
    found = [f"{n} is gone" for n in {**old_messages, **old_enums} if n not in {**new_messages, **new_enums}]
    for name, was in old_messages.items():
        now = new_messages.get(name, was)
        fields = {f.number: f for f in now.field}
        for f in was.field:
            if f.number not in fields:
                if not reserved(now.reserved_range, now.reserved_name, f.number, f.name, 0):
                    found.append(f"{name}.{f.name} = {f.number} is gone and not reserved")
            elif shape(was, f) != shape(now, fields[f.number]):
                found.append(f"{name}.{f.name} = {f.number} changed: {shape(was, f)} is {shape(now, fields[f.number])}")
    for name, was in old_enums.items():
        now = new_enums.get(name, was)
        values = {v.number: v.name for v in now.value}
        for v in was.value:
            if v.number in values:
                if values[v.number] != v.name:
                    found.append(f"{name}: {v.number} was {v.name}, is {values[v.number]}")
            elif not reserved(now.reserved_range, now.reserved_name, v.number, v.name, 1):
                found.append(f"{name}.{v.name} = {v.number} is gone and not reserved")
    return found


BASE = "message A { uint32 n = 1; oneof p { string s = 2; B b = 3; } repeated E e = 4; }\n" \
       "message B { bytes x = 1; } enum E { E_ZERO = 0; E_ONE = 1; }"
BREAKS = [
    ("uint32 n = 1;", ""),
    ("uint32 n = 1;", "reserved 1;"),
    ("uint32 n = 1;", "uint64 n = 1;"),
    ("uint32 n = 1;", "uint32 m = 1;"),
    ("uint32 n = 1;", "uint32 n = 5;"),
    ("uint32 n = 1;", "repeated uint32 n = 1;"),
    ("B b = 3;", "A b = 3;"),
    ("oneof p { string s = 2; B b = 3; }", "string s = 2; B b = 3;"),
    ("E_ONE = 1;", ""),
    ("E_ONE = 1;", "E_TWO = 1;"),
    ("message B { bytes x = 1; }", "message C { bytes x = 1; } message B {}"),
]
KEEPS = [
    ("uint32 n = 1;", 'reserved 1; reserved "n";'),
    ("uint32 n = 1;", "uint32 n = 1; uint64 more = 9;"),
    ("E_ONE = 1;", 'reserved 1; reserved "E_ONE";'),
    ("E_ONE = 1;", "E_ONE = 1; E_TWO = 2;"),
]


def planted():
    """What the checks above miss or invent in made-up schemas."""
    found = []
    old = schema_of(BASE)
    for text, other in BREAKS:
        if not broken(old, schema_of(BASE.replace(text, other))):
            found.append(f"not seen: {text!r} -> {other!r}")
    for text, other in KEEPS:
        found += [f"{text!r} -> {other!r}: {b}" for b in broken(old, schema_of(BASE.replace(text, other)))]
    for text in ["message A { A a = 1; }", "message A { repeated B b = 1; } message B { oneof o { A a = 1; } }",
                 "message A { message I { A a = 1; } I i = 1; }", "message A { map<string, A> m = 1; }"]:
        if not recursive(schema_of(text)):
            found.append(f"recursion not seen: {text}")
    found += recursive(old)
    for text in ["message A { map<string, uint32> m = 1; }"]:
        if not unknown_to_protobuf_c(schema_of(text)):
            found.append(f"not refused: {text}")
    return found


def main():
    now = compiled(TOP)
    released = pb.FileDescriptorSet.FromString((TOP / "proto/released.binpb").read_bytes())
    cases = [
        ("no message contains itself", recursive(now)),
        ("nothing that protobuf-c does not know", unknown_to_protobuf_c(now)),
        ("compatible with the schema of the last release", broken(released, now)),
        ("planted faults are seen", planted()),
    ]
    for n, (what, found) in enumerate(cases, 1):
        print(f"{'not ok' if found else 'ok'} {n} - {what}")
        for line in found:
            print(f"# {line}")
    print(f"1..{len(cases)}")
    return any(found for _, found in cases)


if __name__ == "__main__":
    sys.exit(main())
