#include "client/ctl/noise.h"

#include <string.h>

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mixed(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* An odd number of 2^-16: between -4 and 4, and never 0. */
static float element(uint64_t seed, uint64_t i)
{
    uint64_t z = mixed(seed * 0xd1b54a32d192ed03u + (i + 1) * 0x9e3779b97f4a7c15u);
    int sum = 0;
    for (int k = 0; k < 4; k++)
        sum += (int)(z >> 16 * k & 0xffff);
    return (float)(2 * sum + 5 - 4 * 65536) * 0x1p-16f;
}

/* The digits below are cut off: bfloat16 is the upper half of a float32. */
static uint16_t to_bf16(uint32_t bits)
{
    return (uint16_t)(bits >> 16);
}

/* IEEE 754 binary16, of 2^-24 <= |x| < 2^16. */
static uint16_t to_f16(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000, mantissa = bits & 0x7fffff;
    int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    if (exponent > 0)
        return (uint16_t)(sign | (uint32_t)exponent << 10 | mantissa >> 13);
    return (uint16_t)(sign | (mantissa | 0x800000) >> (14 - exponent));
}

void noise_fill(void *to, enum fp8d_dtype dtype, uint64_t count, uint64_t seed)
{
    float *wide = to;
    uint16_t *half = to;
    for (uint64_t i = 0; i < count; i++) {
        float x = element(seed, i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == FP8D_F32)
            wide[i] = x;
        else
            half[i] = dtype == FP8D_BF16 ? to_bf16(bits) : to_f16(bits);
    }
}
