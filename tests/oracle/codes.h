/* codes.h - what the codes of bf16, f16 and FP8 mean, and which code is nearest to a number: by
 * ldexp and nearbyint on doubles. Includes nothing of kernels/. Pure; any thread. */
#ifndef FP8D_TESTS_CODES_H
#define FP8D_TESTS_CODES_H

#include <stdbool.h>
#include <stdint.h>

/* Nearest, ties to even, overflow to infinity. v is finite. */
uint16_t half_code(double v, bool bf16);
double half_value(uint16_t code, bool bf16);

/* E4M3FN or E5M2; NaN for its NaNs. */
double fp8_value(uint8_t code, bool e5m2);

#endif
