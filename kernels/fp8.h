/* fp8.h - E4M3 and E5M2, encode and decode: one text for host and device.
 *
 * E4M3: 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448 (0x7e), no infinities, NaN is
 * 0x7f and 0xff. E5M2: 1, 5 (bias 15), 2; largest 57344 (0x7b), infinities 0x7c and 0xfc, NaN
 * 0x7d-0x7f and 0xfd-0xff. Encoding rounds to nearest even and saturates: a value beyond the
 * largest, infinities included, becomes the largest of its sign; every NaN becomes 0x7f in both
 * formats (sign dropped); signed zeros are kept and subnormals are produced. Rule: docs/numerics.md
 * section 1.
 *
 * Encoding and `fp8_flushed` are integer arithmetic alone, decoding multiplies small integers by
 * normal powers of two: no rounding mode or flush-to-zero setting can change a bit. The product
 * v = x * scale before it is the caller's, and does need IEEE arithmetic with subnormals.
 */
#ifndef FP8D_KERNELS_FP8_H
#define FP8D_KERNELS_FP8_H

#include "base/dtype.h"

#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "casts, scales and factors need IEEE arithmetic: build without -ffast-math"
#endif

#ifdef __CUDACC__
#define FP8_HD static __host__ __device__ inline
#else
#define FP8_HD static inline
#endif

#define FP8_FLT_MAX 3.402823466e+38f
#define FP8_FLT_MIN 1.175494351e-38f

FP8_HD uint32_t fp8_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

FP8_HD float fp8_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Largest finite value: 448 or 57344. */
FP8_HD float fp8_max(enum dtype fmt)
{
    return fmt == DTYPE_F8_E4M3 ? 448.0f : 57344.0f;
}

/* x is neither Inf nor NaN. */
FP8_HD int fp8_finite(float x)
{
    return (fp8_float_bits(x) & 0x7fffffffu) < 0x7f800000u;
}

/* v = x * scale of a finite x counts as saturated where rounding without saturation would leave the
 * finite range: above 464 (E4M3: 464 itself is a tie that goes to 448), from 61440 on (E5M2: the
 * tie goes away from 57344, whose mantissa is odd); v = Inf included. Of a non-finite x: do not
 * ask. */
FP8_HD int fp8_saturates(float v, enum dtype fmt)
{
    float m = fp8_bits_float(fp8_float_bits(v) & 0x7fffffffu);
    return fmt == DTYPE_F8_E4M3 ? m > 464.0f : m >= 61440.0f;
}

/* x is not a zero, its code is: on bits, since a subnormal x equals 0 where denormals read as zero.
 */
FP8_HD int fp8_flushed(float x, uint8_t code)
{
    return (fp8_float_bits(x) & 0x7fffffffu) != 0 && (code & 0x7fu) == 0;
}

/* float32 to an FP8 code, mant mantissa bits, exponent bias, code of the largest value. */
FP8_HD uint8_t fp8_encode_bits(uint32_t u, int mant, int bias, uint32_t largest)
{
    uint32_t sign = (u >> 24) & 0x80u;
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return 0x7f;
    int exp = (int)(mag >> 23) - 127;
    uint32_t frac = (mag & 0x7fffffu) | 0x800000u;
    /* Bits to drop from the 24-bit significand: 23 - mant for normal results, more below. */
    int drop = 23 - mant;
    int low = 1 - bias; /* exponent of the smallest normal */
    if (exp < low)
        drop += low - exp;
    if (mag < 0x00800000u || drop > 25) /* float subnormals are far below half the least code */
        return (uint8_t)sign;
    uint32_t half = 1u << (drop - 1);
    uint32_t kept = frac >> drop;
    uint32_t rest = frac & ((half << 1) - 1);
    if (rest > half || (rest == half && (kept & 1)))
        kept++;
    /* kept has its leading one at bit `mant` for normals: adding it to the exponent field lets a
     * carry from rounding move into the exponent by itself. */
    uint32_t code = exp < low ? kept : kept + ((uint32_t)(exp - low) << mant);
    return (uint8_t)(sign | (code > largest ? largest : code));
}

FP8_HD uint8_t fp8_encode(float v, enum dtype fmt)
{
    uint32_t u = fp8_float_bits(v);
    return fmt == DTYPE_F8_E4M3 ? fp8_encode_bits(u, 3, 7, 0x7e) : fp8_encode_bits(u, 2, 15, 0x7b);
}

/* Exact value of a code; NaN codes give the quiet NaN 0x7fc00000 with the code's sign. */
FP8_HD float fp8_decode(uint8_t code, enum dtype fmt)
{
    int mant = fmt == DTYPE_F8_E4M3 ? 3 : 2;
    int bias = fmt == DTYPE_F8_E4M3 ? 7 : 15;
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t exp = (uint32_t)(code & 0x7fu) >> mant;
    uint32_t frac = code & ((1u << mant) - 1);
    if (fmt == DTYPE_F8_E4M3 ? (code & 0x7f) == 0x7f : (code & 0x7f) > 0x7c)
        return fp8_bits_float(sign | 0x7fc00000u);
    if (fmt != DTYPE_F8_E4M3 && (code & 0x7f) == 0x7c)
        return fp8_bits_float(sign | 0x7f800000u);
    if (exp)
        return fp8_bits_float(sign | ((exp + 127 - (uint32_t)bias) << 23) | (frac << (23 - mant)));
    /* Subnormal: frac * 2^(1 - bias - mant), exact in float32. */
    float unit = fp8_bits_float((uint32_t)(127 + 1 - bias - mant) << 23);
    return fp8_bits_float(sign | fp8_float_bits((float)frac * unit));
}

/* bf16 and f16 to float32, exact (NaN payloads kept); float32 to them, nearest even, NaN quiet. */
FP8_HD float bf16_decode(uint16_t h)
{
    return fp8_bits_float((uint32_t)h << 16);
}

FP8_HD uint16_t bf16_encode(float x)
{
    uint32_t u = fp8_float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

FP8_HD float f16_decode(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = h >> 10 & 0x1fu;
    uint32_t frac = h & 0x3ffu;
    if (exp == 31)
        return fp8_bits_float(sign | 0x7f800000u | frac << 13);
    if (exp)
        return fp8_bits_float(sign | (exp + 112) << 23 | frac << 13);
    return fp8_bits_float(sign | fp8_float_bits((float)frac * 5.9604644775390625e-8f)); /* 2^-24 */
}

/* Overflow gives Inf, as the standard conversion does. */
FP8_HD uint16_t f16_encode(float x)
{
    uint32_t u = fp8_float_bits(x);
    uint32_t sign = u >> 16 & 0x8000u;
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
    if (mag >= 0x477ff000u) /* 65520 and above round to Inf */
        return (uint16_t)(sign | 0x7c00u);
    int exp = (int)(mag >> 23) - 127;
    int drop = exp < -14 ? 13 + (-14 - exp) : 13;
    if (mag < 0x00800000u || drop > 25)
        return (uint16_t)sign;
    uint32_t frac = (mag & 0x7fffffu) | 0x800000u;
    uint32_t half = 1u << (drop - 1);
    uint32_t kept = frac >> drop;
    uint32_t rest = frac & ((half << 1) - 1);
    if (rest > half || (rest == half && (kept & 1)))
        kept++;
    return (uint16_t)(sign | (exp < -14 ? kept : kept + ((uint32_t)(exp + 14) << 10)));
}

#endif
