#include "tests/oracle/cast_inputs.h"

#include <stddef.h>
#include <string.h>

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static float at_bf16(uint64_t i)
{
    return from_bits((uint32_t)i << 16);
}

/* By exponent and fraction as numbers: 2^(e - 25) * (1024 + f), or 2^-24 * f. */
static float at_f16(uint64_t i)
{
    uint32_t sign = (uint32_t)(i >> 15) << 31, e = i >> 10 & 31, f = i & 1023;
    if (e == 31)
        return from_bits(sign | 0x7f800000 | f << 13);
    float m = e ? (float)(1024 + f) * from_bits((102 + e) << 23) : (float)f * from_bits(103u << 23);
    return sign ? -m : m;
}

static float at_random(uint64_t i)
{
    uint64_t z = CAST_SEED + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return from_bits((uint32_t)((z ^ z >> 31) >> 32));
}

static float at_edge(uint64_t i, unsigned bits)
{
    uint32_t last = (1u << bits) - 1;
    const uint32_t low[6] = {0, 1, last >> 1, (last >> 1) + 1, (last >> 1) + 2, last};
    return from_bits(((uint32_t)(i / 6) << bits) + low[i % 6]);
}

static float at_edges(uint64_t i)
{
    return at_edge(i, 16);
}

static float at_edges13(uint64_t i)
{
    return at_edge(i, 13);
}

const struct cast_input *cast_input_find(const char *name)
{
    static const struct cast_input inputs[] = {
        {"bf16", 65536, at_bf16},        {"f16", 65536, at_f16},
        {"edges", 6u << 16, at_edges},   {"edges13", 6u << 19, at_edges13},
        {"random6", 1000000, at_random}, {"random", 10000000, at_random},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (!strcmp(inputs[i].name, name))
            return &inputs[i];
    return NULL;
}
