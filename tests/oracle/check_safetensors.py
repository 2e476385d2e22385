#!/usr/bin/env python3
"""Compare our safetensors reader and writer with the reference implementation. Speaks TAP.

Usage: check_safetensors.py [ST_DUMP]
ST_DUMP is the program of tests/unit/st_dump.c (default: the one of $FP8D_BUILDDIR). Needs the Python
packages safetensors and numpy; without them everything is skipped.

Compared are the verdict and, for accepted files, every tensor's dtype, shape and bytes, and the
metadata. The reference accepts some files that we refuse by intent (ckpt/safetensors.h); each such
refusal must carry one of the sentences in STRICTER. The other way round there is no exception.
"""
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import safetensors
    import safetensors.numpy
except ImportError as e:
    print("1..0 # SKIP Python package missing: %s" % e.name)
    sys.exit(0)

HERE = Path(__file__).resolve().parent
EVIL = HERE.parent / "data" / "evil"
DUMP = sys.argv[1] if len(sys.argv) > 1 else (
    os.environ.get("FP8D_BUILDDIR", ".") + "/tests/unit/st_dump")

STRICTER = [
    r"stands twice in the header",        # the reference takes the last of two tensors of one name
    r"duplicate object key",              # likewise for keys that it does not look at
    r"name has \d+ bytes, needed",        # any string is a name there
    r"shape has \d+ numbers, needed at most 8",
    r"needed a number below 2\^63",       # u64 there: matters for [0, 2^63] only
    r"nests deeper than 32 levels",       # 128 there
    r"JSON needs more memory",
    r"(u0000|NUL byte)",                  # NUL inside a string
    r"real number overflow",              # in a key that is not looked at
]
MUTATIONS = 3000


def ours(paths):
    out = subprocess.run([DUMP, *map(str, paths)], stdout=subprocess.PIPE, check=False).stdout
    lines = out.decode().split("\n")[:-1]  # splitlines() would also split at U+0085
    assert len(lines) == len(paths), "st_dump died after %d of %d files" % (len(lines), len(paths))
    return [json.loads(line) for line in lines]


def reference(path):
    """{"tensors": {name: (dtype, shape, bytes)}, "meta": {...}} or {"error": text}."""
    try:
        tensors = dict(safetensors.deserialize(path.read_bytes()))
        with safetensors.safe_open(path, framework="np") as f:
            meta = f.metadata() or {}
    except Exception as e:
        return {"error": "%s: %s" % (type(e).__name__, e)}
    return {"tensors": {k: (v["dtype"], list(v["shape"]), bytes(v["data"]))
                        for k, v in tensors.items()}, "meta": meta}


def with_bytes(path, got):
    blob = path.read_bytes()
    return {"tensors": {k: (dtype, shape, blob[at:at + n])
                        for k, (dtype, shape, at, n) in got["tensors"].items()},
            "meta": got["meta"]}


def difference(path, got):
    """What differs between the readers for this file; None if nothing that should not."""
    ref = reference(path)
    if "error" in got and "error" in ref:
        return None
    if "error" in got:
        if any(re.search(s, got["error"]) for s in STRICTER):
            return None
        return "we refuse (%s), the reference accepts" % got["error"]
    if "error" in ref:
        return "we accept, the reference refuses (%s)" % ref["error"]
    if with_bytes(path, got) != ref:
        return "we read %r, the reference %r" % (with_bytes(path, got), ref)
    return None


# --- cases: each returns a list of complaints ---

def case_evil_files(_):
    """Committed files get the same verdict, and the strict_ ones really are accepted there."""
    files = sorted(EVIL.glob("*.safetensors"))
    bad = ["no files in %s" % EVIL] if len(files) < 100 else []
    for path, got in zip(files, ours(files)):
        d = difference(path, got)
        if d:
            bad.append("%s: %s" % (path.name, d))
        if path.name.startswith("strict_") and "error" in reference(path):
            bad.append("%s: the reference refuses it too" % path.name)
    return bad


def case_reference_writes(tmp):
    """Files of the reference writer, with every dtype that it has, are read the same."""
    bits = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8,
            "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
            "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
            "U64": 64}
    bad, names = [], []
    for name, width in bits.items():
        path = tmp / ("dtype_%s.safetensors" % name)
        size = 8 * width // 8
        head = {"t": {"dtype": name, "shape": [2, 4], "data_offsets": [0, size]}}
        text = json.dumps(head).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(size)))
        names.append(path)
    path = tmp / "numpy.safetensors"
    safetensors.numpy.save_file(
        {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((0, 4), np.float16),
         "c": np.array(7, np.int64), "d\u20ac \"x\"": np.array([True, False])},
        path, metadata={"format": "np", "k\u00e9\n": "v\x01"})
    names.append(path)
    for path, got in zip(names, ours(names)):
        d = difference(path, got)
        if d or "error" in got:
            bad.append("%s: %s" % (path.name, d or got["error"]))
    return bad


def case_we_write(tmp):
    """The reference reads what our writer plans: same tensors, bytes and metadata."""
    path = tmp / "ours.safetensors"
    if subprocess.run([DUMP, "--write", str(path)], check=False).returncode:
        return ["st_dump --write failed"]
    ref = reference(path)
    if "error" in ref:
        return [ref["error"]]
    bad = [d for d in [difference(path, ours([path])[0])] if d]
    if len(ref["tensors"]) != 25 or ref["tensors"]["t.F8_E4M3"][:2] != ("F8_E4M3", [2, 4]):
        bad.append("tensors: %r" % sorted(ref["tensors"]))
    data = b"".join(sorted((v[2] for v in ref["tensors"].values()), key=len))
    if len(data) != path.stat().st_size - 8 - struct.unpack("<Q", path.read_bytes()[:8])[0]:
        bad.append("the tensors do not cover the data")
    if ref["meta"].get("quote\"") != "line\nbreak\ttab \x01 del \x7f nel \x85 \u20ac":
        bad.append("meta: %r" % ref["meta"])
    return bad


TOKENS = [b"0", b"1", b"4", b"-1", b"-0", b"1.0", b"9223372036854775807", b"9223372036854775808",
          b"18446744073709551615", b"null", b"{}", b"[]", b'"F32"', b'"F4"', b'"BF16"', b'"t"', b" ",
          b",", b":", b"\xff", b"\\u0000", b"[0,0]", b"[2,2]", b"true", b'"x":1,', b"\t", b"\x00"]


def mutate(rng, blob):
    """A header with a few tokens replaced, dropped or put in; its length field mostly put right."""
    n = struct.unpack("<Q", blob[:8])[0]
    head, data = blob[8:8 + n], blob[8 + n:]
    for _ in range(rng.randint(1, 3)):
        parts = re.findall(rb'"[^"]*"|[0-9.]+|.', head, re.S) or [b""]
        i = rng.randrange(len(parts))
        kind = rng.randrange(4)
        if kind == 0:
            parts[i] = rng.choice(TOKENS)
        elif kind == 1:
            del parts[i]
        elif kind == 2:
            parts.insert(i, rng.choice(TOKENS))
        else:
            parts[i] = rng.choice(parts)
        head = b"".join(parts)
    if rng.random() < 0.1:
        data = data[:-1] if rng.random() < 0.5 else data + b"x"
    return struct.pack("<Q", len(head) + (rng.random() < 0.05)) + head + data


def case_mutations(tmp):
    """Thousands of slightly broken files get the same verdict."""
    rng = random.Random(20240817)
    seeds = [p.read_bytes() for p in sorted(EVIL.glob("ok_*")) if p.stat().st_size < 600]
    bad, agreed = [], 0
    for start in range(0, MUTATIONS, 500):
        paths = []
        for i in range(start, start + 500):
            paths.append(tmp / ("m%d.safetensors" % i))
            paths[-1].write_bytes(mutate(rng, rng.choice(seeds)))
        for path, got in zip(paths, ours(paths)):
            d = difference(path, got)
            if d and b"-0" in path.read_bytes():  # JSON's -0 is the integer 0 for us, a float there
                d = None
            agreed += "error" not in got
            if d:
                bad.append("%r: %s" % (path.read_bytes(), d))
    if agreed < MUTATIONS // 50:
        bad.append("only %d mutations were good files: the test has no teeth" % agreed)
    return bad


def main():
    cases = [case_evil_files, case_reference_writes, case_we_write, case_mutations]
    print("1..%d" % len(cases))
    failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        for i, case in enumerate(cases, 1):
            bad = case(Path(tmp))
            failed += bool(bad)
            print("%sok %d - oracle_%s: %s" % ("not " if bad else "", i, case.__name__[5:],
                                               case.__doc__.strip()))
            for line in bad[:10]:
                print("# " + line)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
