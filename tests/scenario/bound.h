/* bound.h - how far an output may be from the float64 emulation, on the backend under test.
 *
 * CPU: sums of precise float32 products in a fixed order, 1e-5 of the largest output.
 *
 * CUDA: that of this one output's k products, factors included: no order of summation can promise
 * more where products cancel.
 *   FP8, forward (fast accumulation)  tests/oracle/cut.h: what cutting off loses, from the largest
 *       product and sum; no multiple of the sum of magnitudes alone would do
 *   high precision, f32               (k + 8) * 2^-24 of the sum of magnitudes: any order of
 *       float32 sums
 * and 2^-21 of the output: cuBLASLt multiplies the factors in its own order (an ulp each), then
 * bias and rounding.
 */
#ifndef FP8D_TESTS_SCENARIO_BOUND_H
#define FP8D_TESTS_SCENARIO_BOUND_H

#include "tests/oracle/cut.h"

#include <stdbool.h>
#include <stdint.h>

/* Room for a float64 output and what its bound takes; heap. */
struct bound {
    uint64_t k, count;
    bool high;       /* high precision, else FP8 */
    double *want;    /* [count], the caller's to fill */
    struct cut *cut; /* [count], the caller's to fill; looked at on CUDA alone */
};

struct bound bound_new(uint64_t k, uint64_t count);
void bound_free(struct bound *b);

double bound_most(const struct bound *b); /* the largest finite |want| */
double bound_at(const struct bound *b, uint64_t i);

/* Fails the test where an output is further off than bound_at, or NaN where the other is not. */
void bound_check(const struct bound *b, const float *y);

#endif
