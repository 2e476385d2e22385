#include "tests/oracle/gemm_input.h"

#include <math.h>
#include <string.h>

uint64_t gemm_stream(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* (z >> 40) - 2^23 times 2^-20: a multiple of 2^-20 below 8. */
static double number(uint64_t z)
{
    return ((double)(z >> 40) - 8388608.0) / 1048576.0;
}

/* |x| < 8, a multiple of 2^-20, to sign, exponent and `mant` bits: nearest even by nearbyint on the
 * significand; subnormals of f16 do not fall below 2^-24. */
static uint16_t half_bits(double x, int mant, int bias)
{
    int exp;
    unsigned sign = x < 0 ? 0x8000u : 0u;
    if (x == 0.0)
        return (uint16_t)sign;
    (void)frexp(fabs(x), &exp); /* |x| = f * 2^exp, f in [1/2, 1) */
    int unit = exp - 1 - mant;
    if (unit < 1 - bias - mant)
        unit = 1 - bias - mant;
    double whole = nearbyint(ldexp(fabs(x), -unit));
    int field = unit + mant + bias; /* of a significand with its leading one; 1 for subnormals */
    return (uint16_t)(sign | ((unsigned)(field - 1) * (1u << mant) + (unsigned)whole));
}

static void put_number(double x, enum dtype t, void *p)
{
    float f = (float)x;
    uint16_t h = t == DTYPE_BF16 ? half_bits(x, 7, 127) : half_bits(x, 10, 15);
    if (t == DTYPE_F32)
        memcpy(p, &f, sizeof f);
    else
        memcpy(p, &h, sizeof h);
}

void gemm_element(uint64_t seed, uint64_t i, enum dtype t, void *p)
{
    uint64_t z = gemm_stream(seed, i);
    uint8_t code = (uint8_t)z;
    uint16_t h = (uint16_t)z;
    switch (t) {
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        if ((code & 0x7f) > (t == DTYPE_F8_E4M3 ? 0x7e : 0x7b))
            code = 0;
        memcpy(p, &code, 1);
        break;
    case DTYPE_F16:
        if ((h & 0x7c00) == 0x7c00)
            h = (uint16_t)((h & 0x83ff) | 0x3c00);
        memcpy(p, &h, sizeof h);
        break;
    default:
        put_number(number(z), t, p);
        break;
    }
}

void gemm_input(uint64_t seed, uint64_t count, enum dtype t, void *p)
{
    for (uint64_t i = 0; i < count; i++)
        gemm_element(seed, i, t, (char *)p + i * (dtype_bits(t) / 8));
}

void gemm_bias(uint64_t seed, uint64_t count, enum dtype t, void *p)
{
    for (uint64_t i = 0; i < count; i++)
        put_number(number(gemm_stream(seed, i)), t, (char *)p + i * (dtype_bits(t) / 8));
}
