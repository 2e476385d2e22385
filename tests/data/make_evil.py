#!/usr/bin/env python3
"""Make tests/data/evil: safetensors files that a reader must load or must refuse.

Usage: make_evil.py [DIRECTORY]   (default: evil, beside this script)

Standard library only, same bytes every time. Beside the files it writes manifest.txt, one line a
file: its name, a space, and `ok` or a part of the sentence that refuses it. The rules are those of
the safetensors format (https://github.com/huggingface/safetensors, reference reader 0.8) and of
ckpt/safetensors.h where it is stricter. Files whose name begins with `strict_` are accepted by the
reference reader.
"""
import json
import struct
import sys
from pathlib import Path

CASES = []


def case(name, blob, expect="ok"):
    CASES.append((name, blob, expect))


def blob(header, data=b"", length=None):
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    n = len(header) if length is None else length
    return struct.pack("<Q", n) + header + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def raw(dtype='"F32"', shape="[1]", offsets="[0,4]"):
    """A header of one tensor "t" whose fields are given as JSON text."""
    return '{"t":{"dtype":%s,"shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)


D4 = bytes(range(1, 5))
ONE = raw()


def good():
    case("ok_plain.safetensors", blob(ONE, D4))
    case("ok_empty_object.safetensors", blob("{}"))
    case("ok_padded.safetensors", blob(ONE + " " * (-len(ONE) % 8), D4))
    case("ok_unpadded_odd.safetensors", blob(ONE + " " * ((1 - len(ONE)) % 8), D4))
    case("ok_leading_space.safetensors", blob(" \n\t\r" + ONE, D4))
    case("ok_trailing_space.safetensors", blob(ONE + " \n\t\r", D4))
    case("ok_space_inside.safetensors", blob('{ "t" : {"dtype":"F32" , "shape":[ 1 ], '
                                             '"data_offsets":[0 ,4]} }', D4))
    case("ok_scalar.safetensors", blob({"t": entry(shape=())}, D4))
    case("ok_zero_size.safetensors", blob({"t": entry(shape=(2, 0), offsets=(0, 0))}))
    case("ok_zero_sizes_share_offset.safetensors",
         blob({"z1": entry(shape=(0,), offsets=(4, 4)), "a": entry(),
               "z2": entry(shape=(0, 7), offsets=(4, 4)), "z0": entry(shape=(0,), offsets=(0, 0)),
               "b": entry("U8", (2,), (4, 6))}, D4 + b"ab"))
    case("ok_unaligned.safetensors",
         blob({"a": entry("U8", (1,), (0, 1)), "b": entry("F64", (1,), (1, 9))}, bytes(9)))
    case("ok_any_order.safetensors",
         blob({"c": entry(offsets=(8, 12)), "a": entry(offsets=(4, 8)), "b": entry()}, bytes(12)))
    case("ok_unknown_keys.safetensors",
         blob({"t": entry(extra=1, more={"a": [1, 2, {"b": None}]}, x=True)}, D4))
    case("ok_key_order.safetensors",
         blob('{"t":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}', D4))
    case("ok_metadata.safetensors", blob({"__metadata__": {"format": "pt", "": "", "k\n": "v\u20ac"},
                                          "t": entry()}, D4))
    case("ok_metadata_null.safetensors", blob({"__metadata__": None, "t": entry()}, D4))
    case("ok_metadata_empty.safetensors", blob({"__metadata__": {}, "t": entry()}, D4))
    case("ok_metadata_last.safetensors", blob({"t": entry(), "__metadata__": {"a": "b"}}, D4))
    case("ok_escaped_name.safetensors", blob('{"\\u0061\\u00e9\\ud83d\\ude00\\"\\\\":%s}'
                                             % json.dumps(entry()), D4))
    case("ok_utf8_name.safetensors", blob('{"\u00e9\u20ac\U0001f600":%s}' % json.dumps(entry()), D4))
    case("ok_long_name.safetensors", blob({"n" * 1024: entry()}, D4))
    case("ok_rank_8.safetensors", blob({"t": entry(shape=(1,) * 8)}, D4))
    case("ok_f4.safetensors", blob({"t": entry("F4", (6,), (0, 3))}, bytes(3)))
    case("ok_f6.safetensors", blob({"t": entry("F6_E2M3", (4,), (0, 3)),
                                    "u": entry("F6_E3M2", (2, 4), (3, 9))}, bytes(9)))
    widths = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
              "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
              "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8}
    at, header = 0, {}
    for name, width in widths.items():
        header["t." + name] = entry(name, (3,), (at, at + 3 * width))
        at += 3 * width
    case("ok_all_dtypes.safetensors", blob(header, bytes(at)))
    case("ok_nan.safetensors", blob(ONE, b"\xff\xff\xff\xff"))
    case("ok_begins_like_pickle.safetensors",
         blob(ONE + " " * (0x280 - len(ONE)), D4))
    case("ok_depth_32.safetensors",
         blob('{"t":{"x":%s,%s}' % ("[" * 31 + "]" * 31, ONE[6:-1]), D4))


def length():
    case("empty_file.safetensors", b"", "the file is empty")
    case("seven_bytes.safetensors", bytes(7), "has 7 bytes, needed at least the 8")
    case("length_only.safetensors", struct.pack("<Q", 60), "header of 60 bytes ends at byte 68, but "
         "the file has 8")
    case("length_one_too_many.safetensors", blob("{}", length=3), "ends at byte 11, but the file "
         "has 10")
    case("length_zero.safetensors", blob(""), "JSON ends at byte 0, needed an object")
    case("length_top_bits.safetensors", blob("{}", length=0xff00000000000002),
         "needed at most 100000000")
    case("length_all_ones.safetensors", blob("{}", length=2**64 - 1), "18446744073709551615 bytes, "
         "needed at most 100000000")
    case("length_wraps.safetensors", blob("{}", length=2**64 - 8), "needed at most 100000000")
    case("length_hard_limit_plus_1.safetensors", blob("{}", length=100000001),
         "100000001 bytes, needed at most 100000000")
    case("length_cap_plus_1.safetensors", blob("{}", length=(16 << 20) + 1),
         "16777217 bytes, needed at most 16777216")


def mistakes():
    case("lfs_pointer.safetensors",
         b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n",
         "Git LFS pointer")
    case("html.safetensors", b"<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page")
    case("html_lower.safetensors", b"<html><body>login</body></html>", "an HTML page")
    case("zip.safetensors", b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(30), "a zip archive")
    case("gguf.safetensors", b"GGUF\x03\x00\x00\x00" + bytes(16), "a GGUF file")
    case("pickle2.safetensors", b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01u.", "a Python pickle")
    case("pickle4.safetensors", b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00.", "a Python pickle")
    case("json.safetensors", b'{"weight_map":{"a":"b"}}', "bare JSON text")
    case("json_short.safetensors", b"{}", "bare JSON text")


def syntax():
    case("not_utf8.safetensors", blob(b"\xff"), "JSON at byte 0 has '\\xff', needed an object")
    case("open_brace.safetensors", blob("{"), "JSON ends at byte 1, needed a name in quotes")
    case("array.safetensors", blob("[]"), "has '[', needed an object")
    case("number.safetensors", blob("12"), "has '1', needed an object")
    case("null.safetensors", blob("null"), "has 'n', needed an object")
    case("bom.safetensors", blob("\ufeff" + ONE, D4), "needed an object")
    case("nul_padding.safetensors", blob(ONE + "\0\0", D4),
         "has '\\x00', needed nothing but white space")
    case("nul_leading.safetensors", blob("\0" + ONE, D4), "has '\\x00', needed an object")
    case("text_after.safetensors", blob(ONE + "x", D4), "has 'x', needed nothing but white space")
    case("two_objects.safetensors", blob(ONE + "{}", D4), "needed nothing but white space")
    case("form_feed_padding.safetensors", blob(ONE + "\f", D4), "needed nothing but white space")
    case("trailing_comma.safetensors", blob(ONE[:-1] + ",}", D4), "has '}', needed a name in quotes")
    case("leading_comma.safetensors", blob("{,}"), "has ',', needed a name in quotes")
    case("missing_comma.safetensors", blob(ONE[:-1] + ' "u":1}', D4), "needed ',' or '}'")
    case("missing_colon.safetensors", blob('{"t" 1}'), '"t": JSON at byte 5 has \'1\', needed \':\'')
    case("bare_name.safetensors", blob("{t:1}"), "has 't', needed a name in quotes")
    case("single_quotes.safetensors", blob("{'t':1}"), "needed a name in quotes")
    case("unterminated.safetensors", blob('{"t":{"dtype":"F32'), '"t": JSON before byte')
    case("comment.safetensors", blob("/* */" + ONE, D4), "needed an object")
    case("name_not_utf8.safetensors", blob(b'{"\xc3\x28":1}'), "JSON before byte")
    case("name_overlong.safetensors", blob(b'{"\xc0\xaf":1}'), "JSON before byte")
    case("name_surrogate.safetensors", blob('{"\\ud800":1}'), "JSON before byte")
    case("name_nul_escape.safetensors", blob('{"a\\u0000b":1}'), "JSON before byte")
    case("name_raw_newline.safetensors", blob('{"a\nb":1}'), "JSON before byte")
    case("value_not_utf8.safetensors", blob(b'{"t":{"dtype":"\xff"}}'), '"t": JSON before byte')
    case("infinity.safetensors", blob(raw(shape="[Infinity]"), D4), '"t": JSON before byte')
    case("plus_sign.safetensors", blob(raw(shape="[+1]"), D4), '"t": JSON before byte')
    case("leading_zero.safetensors", blob(raw(shape="[01]"), D4), '"t": JSON before byte')
    case("hex.safetensors", blob(raw(shape="[0x1]"), D4), '"t": JSON before byte')
    case("deep.safetensors", blob('{"t":' + "[" * 60000), "nests deeper than 32 levels")
    case("strict_deep_33.safetensors",
         blob('{"t":{"x":%s,%s}' % ("[" * 32 + "]" * 32, ONE[6:-1]), D4),
         '"t": JSON at byte 5 nests deeper than 32')
    case("truncated_utf8_at_end.safetensors", blob(b'{"t\xf0\x9f'), "JSON before byte")


def names():
    two = '{"t":%s,"t":%s}' % (json.dumps(entry()), json.dumps(entry("U8", (4,))))
    case("strict_duplicate_tensor.safetensors", blob(two, D4), '"t": stands twice')
    case("strict_duplicate_tensor_escaped.safetensors",
         blob(two.replace('"t"', '"\\u0074"', 1), D4), '"t": stands twice')
    case("duplicate_metadata.safetensors",
         blob('{"__metadata__":{},"__metadata__":{}}'), "__metadata__ stands twice")
    case("strict_duplicate_metadata_key.safetensors", blob('{"__metadata__":{"a":"1","a":"2"}}'),
         '"__metadata__": JSON before byte')
    case("duplicate_dtype.safetensors",
         blob('{"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', D4),
         '"t": JSON before byte')
    case("strict_duplicate_unknown_key.safetensors",
         blob('{"t":{"x":1,"x":2,%s}' % ONE[6:-1], D4), '"t": JSON before byte')
    case("strict_empty_name.safetensors", blob({"": entry()}, D4), "name has 0 bytes, needed 1 to")
    case("strict_name_1025.safetensors", blob({"n" * 1025: entry()}, D4), "name has 1025 bytes, needed")
    case("strict_control_in_name.safetensors", blob('{"a\\nb":%s}' % json.dumps(entry()), D4),
         'tensor "a\\x0ab": name has 3 bytes')
    case("metadata_number.safetensors", blob({"__metadata__": {"a": 1}}), '"a" is an integer, needed '
         "a string")
    case("metadata_nested.safetensors", blob({"__metadata__": {"a": {}}}), '"a" is an object, needed')
    case("metadata_value_null.safetensors", blob({"__metadata__": {"a": None}}), '"a" is null, needed')
    case("metadata_array.safetensors", blob({"__metadata__": []}), "is an array, needed an object")
    case("metadata_string.safetensors", blob({"__metadata__": "x"}), "is a string, needed an object")
    case("strict_metadata_value_nul.safetensors", blob('{"__metadata__":{"a":"\\u0000"}}'),
         '"__metadata__": JSON before byte')


def fields():
    case("entry_number.safetensors", blob({"t": 5}), '"t": entry is an integer, needed an object')
    case("entry_array.safetensors", blob({"t": []}), '"t": entry is an array, needed an object')
    case("entry_null.safetensors", blob({"t": None}), '"t": entry is null, needed an object')
    for field in ("dtype", "shape", "data_offsets"):
        e = entry()
        del e[field]
        case("missing_%s.safetensors" % field, blob({"t": e}, D4), '"t": %s is missing' % field)
    case("dtype_number.safetensors", blob(raw(dtype="1"), D4), '"t": dtype is an integer, needed')
    case("dtype_null.safetensors", blob(raw(dtype="null"), D4), '"t": dtype is null, needed')
    for file, bad in (("space", "F32 "), ("lower", "f32"), ("e4m3fn", "F8_E4M3FN"),
                      ("e8m0fnu", "F8_E8M0FNU"), ("empty", ""), ("ggml", "Q4_0")):
        case("dtype_unknown_%s.safetensors" % file, blob(raw(dtype='"%s"' % bad), D4),
             '"t": dtype is "%s", needed' % bad)
    case("shape_string.safetensors", blob(raw(shape='"1"'), D4), '"t": shape is a string, needed')
    case("shape_null.safetensors", blob(raw(shape="null"), D4), '"t": shape is null, needed')
    case("shape_number.safetensors", blob(raw(shape="1"), D4), '"t": shape is an integer, needed')
    case("shape_negative.safetensors", blob(raw(shape="[2,-1]"), D4), '"t": shape[1] is -1, needed')
    case("shape_two_negatives.safetensors", blob(raw(shape="[-1,-1]"), D4), '"t": shape[0] is -1')
    case("shape_fraction.safetensors", blob(raw(shape="[1.0]"), D4), 'shape[0] is written as a '
         "fraction (1)")
    case("shape_exponent.safetensors", blob(raw(shape="[1e0]"), D4), 'shape[0] is written as a '
         "fraction (1)")
    case("shape_huge_real.safetensors", blob(raw(shape="[1e999]"), D4), '"t": JSON before byte')
    case("shape_of_string.safetensors", blob(raw(shape='["1"]'), D4), "shape[0] is a string, needed")
    case("shape_of_bool.safetensors", blob(raw(shape="[true]"), D4), "shape[0] is a boolean, needed")
    case("shape_nested.safetensors", blob(raw(shape="[[1]]"), D4), "shape[0] is an array, needed")
    case("strict_rank_9.safetensors", blob({"t": entry(shape=(1,) * 9)}, D4), "shape has 9 numbers, "
         "needed at most 8")
    case("offsets_one.safetensors", blob(raw(offsets="[4]"), D4), "data_offsets has 1 numbers, needed "
         "exactly 2")
    case("offsets_three.safetensors", blob(raw(offsets="[0,4,8]"), D4), "data_offsets has 3 numbers")
    case("offsets_negative.safetensors", blob(raw(offsets="[-4,0]"), D4), "data_offsets[0] is -4")
    case("offsets_object.safetensors", blob(raw(offsets="{}"), D4), "data_offsets is an object")
    case("offsets_fraction.safetensors", blob(raw(offsets="[0,4.0]"), D4), "data_offsets[1] is "
         "written as a fraction (4)")


def numbers():
    case("shape_2p64_minus_2.safetensors", blob(raw(shape="[2,18446744073709551614]"), D4),
         '"t": JSON before byte')
    case("shape_2p64.safetensors", blob(raw(shape="[18446744073709551616]"), D4), "needed a number "
         "below 2^63")
    case("strict_shape_zero_times_2p63.safetensors",
         blob(raw(shape="[0,9223372036854775808]", offsets="[0,0]")), "needed a number below 2^63")
    case("shape_2_2p63_minus_1.safetensors", blob(raw(shape="[2,9223372036854775807]"), D4),
         '"t": shape [2, 9223372036854775807] of F32 overflows')
    case("shape_product_wraps_to_0.safetensors",
         blob(raw(shape="[4294967296,4294967296]", offsets="[0,0]")), "overflows")
    case("shape_product_wraps_to_1.safetensors",
         blob(raw('"U8"', "[3,6148914691236517205,5]", "[0,4]"), D4), "overflows")
    case("shape_bits_wrap_to_0.safetensors",
         blob(raw('"F64"', "[288230376151711744]", "[0,0]")), "overflows")
    case("shape_overflow_then_zero.safetensors",
         blob(raw(shape="[4294967296,4294967296,0]", offsets="[0,0]")), "overflows")
    case("offsets_2p64_minus_1.safetensors", blob(raw(offsets="[0,18446744073709551615]"), D4),
         "needed a number below 2^63")
    case("offsets_wrap.safetensors",
         blob(raw(offsets="[9223372036854775804,9223372036854775807]"), D4), "hold 3 bytes, needed 4")
    case("offsets_far.safetensors",
         blob(raw(offsets="[9223372036854775803,9223372036854775807]"), D4),
         "begins at 9223372036854775803, needed 0")
    case("offsets_reversed.safetensors", blob(raw(offsets="[4,0]"), D4), '"t": data_offsets end at 0, '
         "needed at least their begin 4")
    case("f4_odd.safetensors", blob(raw('"F4"', "[5]", "[0,3]"), bytes(3)), '"t": shape [5] of F4 takes '
         "20 bits, needed whole bytes")
    case("f6_odd.safetensors", blob(raw('"F6_E3M2"', "[3]", "[0,3]"), bytes(3)), "takes 18 bits")
    case("size_too_small.safetensors", blob(raw('"I32"', "[2,2]", "[0,4]"), D4),
         '"t": data_offsets [0, 4] hold 4 bytes, needed 16 for shape [2, 2] of I32')
    case("size_too_big.safetensors", blob(raw(offsets="[0,8]"), bytes(8)), "hold 8 bytes, needed 4")
    case("zero_size_with_bytes.safetensors", blob(raw(shape="[0]"), D4), "hold 4 bytes, needed 0")


def layout():
    case("hole_first.safetensors", blob(raw(offsets="[4,8]"), bytes(8)), 'tensor "t": data begins at 4, '
         "needed 0, where the header ends: there is a hole")
    case("hole_middle.safetensors",
         blob({"a": entry(), "b": entry(offsets=(8, 12))}, bytes(12)),
         'tensor "b": data begins at 8, needed 4, where tensor "a" ends: there is a hole')
    case("overlap.safetensors", blob({"a": entry(), "b": entry(offsets=(2, 6))}, bytes(6)),
         'tensor "b": data begins at 2, needed 4, where tensor "a" ends: they overlap')
    case("same_bytes_ten_times.safetensors",
         blob({"t%d" % i: entry("F32", (2, 2), (0, 16)) for i in range(10)}, bytes(16)), "they overlap")
    case("zero_size_inside.safetensors",
         blob({"a": entry(), "z": entry(shape=(0,), offsets=(2, 2))}, D4),
         'tensor "z": data begins at 2, needed 4')
    case("zero_size_beyond.safetensors",
         blob({"a": entry(), "z": entry(shape=(0,), offsets=(5, 5))}, D4 + b"x"),
         'tensor "z": data begins at 5, needed 4')
    case("data_short.safetensors", blob(raw('"I32"', "[2,2]", "[0,16]"), bytes(14)),
         'has 14 bytes of data, needed 16, where tensor "t" ends')
    case("data_none.safetensors", blob(ONE), "has 0 bytes of data, needed 4")
    case("data_trailing.safetensors", blob(ONE, D4 + b"xyzw"), "has 8 bytes of data, needed 4, where "
         'tensor "t" ends')
    case("data_without_tensors.safetensors", blob("{}", b"x"), "has 1 bytes of data, needed 0, where "
         "the header ends")
    case("polyglot_zip.safetensors", blob(ONE, D4 + b"PK\x05\x06" + bytes(18)), "has 26 bytes of data")


def bloat():
    case("strict_json_bloat.safetensors",
         blob('{"t":{"x":[' + "[]," * 18000 + "[]]," + ONE[6:-1] + "}", D4), "JSON needs more memory "
         "than its limit of")


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "evil"
    for make in (good, length, mistakes, syntax, names, fields, numbers, layout, bloat):
        make()
    seen = [name.lower() for name, _, _ in CASES]
    assert len(set(seen)) == len(seen), "two files of one name"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.safetensors"):
        old.unlink()
    for name, data, _ in CASES:
        assert len(data) <= 65536, name
        (out / name).write_bytes(data)
    lines = ["%s %s\n" % (name, expect) for name, _, expect in sorted(CASES)]
    (out / "manifest.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
