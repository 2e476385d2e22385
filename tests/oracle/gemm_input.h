/* gemm_input.h - the inputs of tests/oracle/gemm_hash.py, made the same way in C.
 *
 * Includes nothing of kernels/. Pure; any thread.
 */
#ifndef FP8D_TESTS_GEMM_INPUT_H
#define FP8D_TESTS_GEMM_INPUT_H

#include "base/dtype.h"

#include <stdint.h>

/* splitmix64's output i from this seed. */
uint64_t gemm_stream(uint64_t seed, uint64_t i);

/* Element i of the stream as a little-endian element of t at p (FP8, F32, BF16 or F16). */
void gemm_element(uint64_t seed, uint64_t i, enum dtype t, void *p);

/* `count` elements from p on. */
void gemm_input(uint64_t seed, uint64_t count, enum dtype t, void *p);

/* A bias: `count` elements made as F32 ones are, rounded to t. */
void gemm_bias(uint64_t seed, uint64_t count, enum dtype t, void *p);

#endif
