/* reference.h - products in float64, on all processors: what a GEMM of either precision is held to.
 *
 * Includes nothing of kernels/. Operands are float64 values, or float32 ones that are exact.
 */
#ifndef FP8D_TESTS_PARITY_REFERENCE_H
#define FP8D_TESTS_PARITY_REFERENCE_H

#include "tests/oracle/cut.h"

#include <stdbool.h>
#include <stdint.h>

/* Value of an FP8 code, by the definition of the format. */
double reference_decode(uint8_t code, bool e5m2);

/* Rows row[0..rows) of a[., k] * b[n, k]^T: cut[rows, n], as cut_of has it of each. */
struct reference {
    const float *a, *b;
    double least_a, least_b; /* cut_least of either; 0 where they are no FP8 */
    uint64_t n, k;
    const uint64_t *row;
    uint64_t rows;
    struct cut *cut;
};
void reference_run(const struct reference *r);

/* Largest |y - sum| / magnitude that a GEMM in high precision may have; written down before any
 * run. What one of FP8 may have is in tests/oracle/cut.h.
 *
 * bf16 and f16: exact products, float32 accumulators that cut off: (k/8 + 8) * 2^-23.
 * float32: (k + 8) * 2^-24. TF32 would have 2^-11 for the least k. */
double reference_bound_high(uint64_t k, bool float32);

#endif
