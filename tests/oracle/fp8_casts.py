#!/usr/bin/env python3
"""Write fp8_casts.txt and fp8_decode.txt: FP8 casts as numpy and ml_dtypes do them.

Usage: fp8_casts.py OUTPUT-FOLDER        (needs numpy, ml_dtypes, xxhash from PyPI)

Independent of kernels/. The rule (docs/numerics.md section 1): v = float32(x) * float32(scale) in
float32; v is clipped to +-448 (e4m3) or +-57344 (e5m2), since ml_dtypes does not saturate, and cast
by ml_dtypes; every NaN is 0x7f. Per case, over all inputs:
  nonfinite  inputs that are Inf or NaN
  saturated  finite inputs with |v| > 464 (e4m3) or >= 61440 (e5m2); asserted to be those that the
             unclipped ml_dtypes cast sends out of the finite range
  flushed    inputs other than zero, whose code is +-0
  amax       float32 bits of max |x| over the finite inputs
  hash       XXH3-128 (seed 0, canonical hexadecimal form) of the code bytes in input order

Inputs:
  bf16, f16  all 65536 bit patterns, 0 first
  random     float32 bit patterns: the high halves of the first 10^7 outputs of splitmix64, whose
             state starts at SEED and grows by 0x9e3779b97f4a7c15 before each output
  random6    the first 10^6 of them
  edges      float32 bit patterns (i << 16) + t for i = 0 ... 65535 and, inside each i, t = 0, 1,
             0x7fff, 0x8000, 0x8001, 0xffff: each FP8 and bf16 number, each tie, their neighbours
  edges13    the same with 13 bits: i = 0 ... 2^19 - 1, t = 0, 1, 0xfff, 0x1000, 0x1001, 0x1fff: the
             f16 numbers and ties
"decode" and "encode" lines: hash of the little-endian result of all 65536 patterns to float32, and
of float32 inputs to bf16 or f16 (nearest even, overflow to Inf), NaN results replaced by
0x7fc00000, 0x7fc0 and 0x7e00, since numpy leaves NaN payloads to the processor.
"""

import sys

import ml_dtypes
import numpy as np
import xxhash

SEED = 0xF8D0C0DE20240801
FORMATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 448.0, lambda m: m > 464.0),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0, lambda m: m >= 61440.0),
}
FLT_MAX = np.finfo(np.float32).max
SCALES = [
    1.0,
    0.5,
    2.0**-9,
    2.0**15,
    0.0917,
    np.float32(448.0) / np.float32(3.7219),  # fp8_max / amax of an ordinary tensor
    np.float32(57344.0) / np.float32(0.00173),
    2.0**-126,  # FLT_MIN, the least scale
    np.float32(2.0**-126) * np.float32(1.9921875),
    2.0**100,  # v = Inf for ordinary x
    2.0**127,
    FLT_MAX,
]
RANDOM_SCALES = [1.0, 0.0917, np.float32(448.0) / np.float32(3.7219)]


def splitmix64(seed, n):
    z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def edges(bits):
    last = (1 << bits) - 1
    low = np.array([0, 1, last >> 1, (last >> 1) + 1, (last >> 1) + 2, last], np.uint32)
    high = np.arange(1 << (32 - bits), dtype=np.uint32) << np.uint32(bits)
    return (high[:, None] + low[None, :]).reshape(-1)


def encode(v, fmt):
    dtype, top, over = FORMATS[fmt]
    code = np.clip(v, -top, top).astype(dtype).view(np.uint8)
    code = np.where(np.isnan(v), np.uint8(0x7F), code)
    outside = ~np.isfinite(v.astype(dtype).astype(np.float32)) & ~np.isnan(v)
    assert np.array_equal(outside, over(np.abs(v)) & ~np.isnan(v))
    return code, outside


def digest(a):
    return xxhash.xxh3_128_hexdigest(a.tobytes())


def cast_line(name, x, scale, fmt):
    scale = np.float32(scale)
    code, outside = encode(x * scale, fmt)
    finite = np.isfinite(x)
    counts = (
        np.count_nonzero(~finite),
        np.count_nonzero(finite & outside),
        np.count_nonzero((x != 0) & (code & 0x7F == 0)),
    )
    amax = np.abs(x[finite]).max()
    return "cast %s %08x %s %s %d %d %d %08x" % (
        (name, scale.view(np.uint32), fmt, digest(code)) + counts + (amax.view(np.uint32),)
    )


def high_lines(patterns, f32):
    yield "decode bf16 " + digest(canonical(patterns.view(ml_dtypes.bfloat16).astype(np.float32)))
    yield "decode f16 " + digest(canonical(patterns.view(np.float16).astype(np.float32)))
    for name, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
        for source in ("random6", "edges", "edges13"):
            yield "encode %s %s %s" % (name, source, digest(canonical(f32[source].astype(dtype))))


def canonical(a):
    nan = {4: 0x7FC00000, 2: 0x7E00 if a.dtype == np.float16 else 0x7FC0}[a.itemsize]
    word = np.dtype("<u%d" % a.itemsize)
    return np.where(np.isnan(a), word.type(nan), a.view(word))


def casts(out):
    patterns = np.arange(65536, dtype=np.uint16)
    random = (splitmix64(SEED, 10**7) >> np.uint64(32)).astype(np.uint32).view(np.float32)
    f32 = {
        "bf16": patterns.view(ml_dtypes.bfloat16).astype(np.float32),
        "f16": patterns.view(np.float16).astype(np.float32),
        "edges": edges(16).view(np.float32),
        "edges13": edges(13).view(np.float32),
        "random6": random[: 10**6],
        "random": random,
    }
    out.write("# written by fp8_casts.py, which says what the lines mean\n")
    out.write("# numpy %s, ml_dtypes %s\n" % (np.__version__, ml_dtypes.__version__))
    out.write("seed %016x\n" % SEED)
    out.write("# cast INPUT SCALE-BITS FORMAT HASH NONFINITE SATURATED FLUSHED AMAX-BITS\n")
    for name in ("bf16", "f16", "edges", "random"):
        for scale in RANDOM_SCALES if name == "random" else SCALES:
            for fmt in FORMATS:
                out.write(cast_line(name, f32[name], scale, fmt) + "\n")
    for line in high_lines(patterns, f32):
        out.write(line + "\n")


def decode(out):
    out.write("# written by fp8_casts.py: value of each code\n# ml_dtypes %s\n" % ml_dtypes.__version__)
    out.write("# CODE E4M3-BITS E4M3 E5M2-BITS E5M2   (bits of the float32; NaN: any NaN)\n")
    codes = np.arange(256, dtype=np.uint8)
    a, b = (codes.view(FORMATS[f][0]).astype(np.float32) for f in FORMATS)
    for i in range(256):
        out.write(
            "%02x %08x %s %08x %s\n"
            % (i, a[i].view(np.uint32), a[i].item(), b[i].view(np.uint32), b[i].item())
        )


if __name__ == "__main__":
    np.seterr(all="ignore")
    with open(sys.argv[1] + "/fp8_casts.txt", "w") as f:
        casts(f)
    with open(sys.argv[1] + "/fp8_decode.txt", "w") as f:
        decode(f)
