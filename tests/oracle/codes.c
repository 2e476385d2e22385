#include "tests/oracle/codes.h"

#include <math.h>

/* Fields of a code of 1 + exp_bits + mant bits. */
static double value(unsigned code, int exp_bits, int mant)
{
    int bias = (1 << (exp_bits - 1)) - 1;
    int exp = (int)(code >> mant) & ((1 << exp_bits) - 1);
    double frac = (double)(code & ((1u << mant) - 1));
    double mag = exp ? ldexp(frac + (1 << mant), exp - bias - mant) : ldexp(frac, 1 - bias - mant);
    return code >> (exp_bits + mant) & 1 ? -mag : mag;
}

uint16_t half_code(double v, bool bf16)
{
    int mant = bf16 ? 7 : 10, bias = bf16 ? 127 : 15, exp;
    unsigned sign = signbit(v) ? 0x8000u : 0u, infinite = bf16 ? 0x7f80u : 0x7c00u;
    if (v == 0)
        return (uint16_t)sign;
    (void)frexp(v, &exp);
    int unit = exp - 1 - mant;
    if (unit < 1 - bias - mant)
        unit = 1 - bias - mant;
    double whole = nearbyint(ldexp(fabs(v), -unit)); /* 2^(mant + 1) carries into the exponent */
    double code = ldexp((double)(unit + mant + bias - 1), mant) + whole;
    return (uint16_t)(sign | (code >= infinite ? infinite : (unsigned)code));
}

double half_value(uint16_t code, bool bf16)
{
    return bf16 ? value(code, 8, 7) : value(code, 5, 10);
}

double fp8_value(uint8_t code, bool e5m2)
{
    unsigned mag = code & 0x7fu;
    if (e5m2 && mag >= 0x7c)
        return mag == 0x7c ? copysign(INFINITY, code & 0x80 ? -1 : 1) : NAN;
    if (!e5m2 && mag == 0x7f)
        return NAN;
    return e5m2 ? value(code, 5, 2) : value(code, 4, 3);
}
