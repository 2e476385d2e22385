/* reference.h - products in float64, on all processors: what a GEMM of either precision is held to.
 *
 * Includes nothing of kernels/. Operands are float64 values, or float32 ones that are exact.
 */
#ifndef FP8D_TESTS_PARITY_REFERENCE_H
#define FP8D_TESTS_PARITY_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Value of an FP8 code, by the definition of the format. */
double reference_decode(uint8_t code, bool e5m2);

/* Rows row[0..rows) of a[., k] * b[n, k]^T: sum[rows, n], and the sums of magnitudes. */
struct reference {
    const float *a, *b;
    uint64_t n, k;
    const uint64_t *row;
    uint64_t rows;
    double *sum, *magnitude;
};
void reference_run(const struct reference *r);

/* Largest |y - sum| / magnitude that a GEMM may have; written down before any run.
 *
 * FP8, fast accumulation: the tensor core adds 32 products at a time to an accumulator of 13
 * mantissa bits and cuts off (docs/numerics.md 5): (k/32 + 2) * 2^-13 at worst. FP8,
 * precise: the same over 128 of k, whose sum is then added in float32: 6 * 2^-13 + k/128 * 2^-24.
 * bf16 and f16: exact products, float32 accumulators that cut off: (k/8 + 8) * 2^-23.
 * float32: (k + 8) * 2^-24. TF32 would have 2^-11 for the least k. */
double reference_bound_fp8(uint64_t k, bool fast);
double reference_bound_high(uint64_t k, bool float32);

#endif
