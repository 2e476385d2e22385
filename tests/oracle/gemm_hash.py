#!/usr/bin/env python3
"""Hashes of GEMM results, by an emulation of the summation order in numpy float32.

    gemm_hash.py > gemm_hash.txt

The order (kernels/cpu/kernels.h): element k belongs to lane k % 16; a lane starts at +0 and adds its
products in ascending k, product and sum rounded to float32 separately; a k beyond the end is a
product of +0; then lanes l and l + 8 are added, l and l + 4, l and l + 2, and the last two.
Then docs/numerics.md section 5.

Inputs: element i of a stream with seed s is splitmix64's output i, z(s, i). Operand a of case c has
the seed 3c + 1, b 3c + 2, bias 3c + 3. By dtype: FP8 takes the low byte of z, codes that are not
finite replaced by 0; F32 is (z >> 40) - 2^23 times 2^-20; BF16 is that rounded to nearest even; F16
takes the low 16 bits, exponent 31 replaced by 15. The bias is made as F32 is, then rounded to its
dtype. The hash is XXH3-128 of the output's little-endian bytes.
"""
import numpy as np
import xxhash

MASK = (1 << 64) - 1


def stream(seed, count):
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fp8_table(exp_bits, mant, bias, finite):
    """Values of the 256 codes, in Python arithmetic; codes above `finite` become 0."""
    out = []
    for code in range(256):
        mag = code & 0x7F
        if mag > finite:
            out.append(0.0)
            continue
        e, f = mag >> mant, mag & ((1 << mant) - 1)
        value = f * 2.0 ** (1 - bias - mant) if e == 0 else (2**mant + f) * 2.0 ** (e - bias - mant)
        out.append(-value if code & 0x80 else value)
    return np.array(out, dtype=np.float32)


TABLES = {"F8_E4M3": fp8_table(4, 3, 7, 0x7E), "F8_E5M2": fp8_table(5, 2, 15, 0x7B)}


def to_bf16(x):
    """Nearest even, in exact arithmetic on float64 (finite values only)."""
    x = np.asarray(x, dtype=np.float32).astype(np.float64)
    m, e = np.frexp(x)
    least = np.maximum(e - 8, -133)  # subnormals of bf16 end at 2^-133
    y = np.ldexp(np.rint(np.ldexp(x, -least)), least)
    return y.astype(np.float32)


def round_to(x, dtype):
    if dtype == "BF16":
        return to_bf16(x)
    return x.astype(np.float16).astype(np.float32) if dtype == "F16" else x


def operand(seed, count, dtype):
    z = stream(seed, count)
    if dtype in TABLES:
        return TABLES[dtype][(z & np.uint64(0xFF)).astype(np.int64)]
    if dtype == "F16":
        bits = (z & np.uint64(0xFFFF)).astype(np.uint16)
        special = (bits & 0x7C00) == 0x7C00
        bits = np.where(special, (bits & np.uint16(0x83FF)) | np.uint16(0x3C00), bits)
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    x = ((z >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(2**-20)
    return round_to(x, dtype)


def lanes16(a, b):
    m, k = a.shape
    steps = -(-k // 16)
    pad = ((0, 0), (0, steps * 16 - k))
    a, b = np.pad(a, pad), np.pad(b, pad)
    acc = np.zeros((m, b.shape[0], 16), dtype=np.float32)
    for s in range(steps):
        product = a[:, None, s * 16:s * 16 + 16] * b[None, :, s * 16:s * 16 + 16]
        acc = acc + product
    for half in (8, 4, 2, 1):
        acc = acc[:, :, :half] + acc[:, :, half:2 * half]
    return acc[:, :, 0]


def output_bytes(y, dtype):
    if dtype == "F32":
        return y.tobytes()
    if dtype == "F16":
        return y.astype(np.float16).tobytes()
    return (to_bf16(y).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def case_hash(c, m, n, k, ta, tb, fa, fb, bias, out):
    a = operand(3 * c + 1, m * k, ta).reshape(m, k)
    b = operand(3 * c + 2, n * k, tb).reshape(n, k)
    fa, fb = np.float32(fa), np.float32(fb)
    y = lanes16(a, b)
    with np.errstate(all="ignore"):
        both = fa * fb
        normal = np.finfo(np.float32).tiny <= both <= np.finfo(np.float32).max
        y = y * both if normal else y * fa * fb
        if bias != "-":
            row = round_to(operand(3 * c + 3, n, "F32"), bias)
            y = y + (row if out == "F32" else round_to(row, out))
        return xxhash.xxh3_128_hexdigest(output_bytes(y.astype(np.float32), out))


E4, E5 = "F8_E4M3", "F8_E5M2"
CASES = [
    (1, 16, 16, E4, E4, 1.0, 1.0, "-", "F32"),
    (7, 16, 48, E4, E4, 0.75, 0.0078125, "F32", "F32"),
    (100, 96, 768, E4, E4, 0.013, 0.37, "BF16", "F32"),
    (7, 80, 768, E4, E5, 0.013, 0.001, "F32", "BF16"),
    (100, 75, 1008, E5, E4, 0.0002, 0.37, "F16", "BF16"),
    (73, 145, 48, E4, E4, 0.25, 0.003, "F32", "F16"),
    (1, 768, 1008, E4, E4, 0.11, 0.0123, "-", "BF16"),
    (100, 16, 1040, E5, E4, 0.0002, 0.0001, "F16", "F16"),
    (7, 16, 16, E4, E4, 2.0**-80, 2.0**-70, "-", "F32"),
    (7, 16, 48, E4, E4, 2.0**100, 2.0**-127, "-", "F32"),
    (5, 9, 1, E4, E4, 1.5, 0.3, "-", "F32"),
    (5, 9, 1000, E4, E5, 1.5, 0.3, "BF16", "BF16"),
    (145, 73, 40, E5, E4, 1.5, 0.3, "-", "F32"),
    (7, 48, 768, "F32", "F32", 1.0, 1.0, "F32", "F32"),
    (7, 48, 1008, "BF16", "BF16", 1.0, 1.0, "BF16", "BF16"),
    (7, 48, 48, "F16", "F16", 1.0, 1.0, "F16", "F32"),
    (100, 75, 530, "BF16", "F32", 1.0, 1.0, "-", "F32"),
]


def main():
    print("# gemm_hash.py; m n k a b factor_a factor_b bias out xxh3-128")
    for c, (m, n, k, ta, tb, fa, fb, bias, out) in enumerate(CASES):
        fa, fb = float(np.float32(fa)), float(np.float32(fb))
        digest = case_hash(c, m, n, k, ta, tb, fa, fb, bias, out)
        print(m, n, k, ta, tb, fa.hex(), fb.hex(), bias, out, digest)


if __name__ == "__main__":
    main()
