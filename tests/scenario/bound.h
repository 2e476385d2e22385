/* bound.h - how far an output may be from the float64 emulation, on the backend under test.
 *
 * CPU: sums of precise float32 products in a fixed order, 1e-5 of the largest output.
 *
 * CUDA: relative to the sum of magnitudes of this one output's k products, factors included: no
 * order of summation can promise more where products cancel. Of that
 *   FP8, forward (fast accumulation)  (k/32 + 2) * 2^-13   as tests/parity holds the GEMM to it:
 *       every 32 products are cut off to the 13 bits of the accumulator, once each; 2 for the ends
 *   high precision, f32               (k + 8) * 2^-24      as any order of float32 sums
 * and 2^-21 of the output: cuBLASLt multiplies the factors in its own order (an ulp each), then bias
 * and rounding. For k = 96, 5 * 2^-13 = 6e-4; for k = 768, 26 * 2^-13 = 3e-3. tests/parity/reference
 * has the numbers; they were written down before any run.
 */
#ifndef FP8D_TESTS_SCENARIO_BOUND_H
#define FP8D_TESTS_SCENARIO_BOUND_H

#include <stdbool.h>
#include <stdint.h>

/* Room for a float64 output and what its bound takes; heap. */
struct bound {
    uint64_t k, count;
    bool high;         /* high precision, else FP8 */
    double *want;      /* [count], the caller's to fill */
    double *magnitude; /* [count], the caller's to fill; looked at on CUDA alone */
};

struct bound bound_new(uint64_t k, uint64_t count);
void bound_free(struct bound *b);

double bound_most(const struct bound *b); /* the largest finite |want| */
double bound_at(const struct bound *b, uint64_t i);

/* Fails the test where an output is further off than bound_at, or NaN where the other is not. */
void bound_check(const struct bound *b, const float *y);

#endif
