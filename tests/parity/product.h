/* product.h - one product a[m, k] * b[n, k]^T in float64, and how far an output may be from it. */
#ifndef FP8D_TESTS_PARITY_PRODUCT_H
#define FP8D_TESTS_PARITY_PRODUCT_H

#include "base/dtype.h"
#include "tests/parity/reference.h"

struct product {
    uint64_t m, n, k;
    uint64_t *row, rows;     /* that are looked at: all, or a sample of large ones */
    double *sum, *magnitude; /* of these rows, factors included */
    float *bias;             /* [n] */
};

/* Values without factors; `factor` is the product of both. */
struct product product_new(uint64_t m, uint64_t n, uint64_t k, const float *a, const float *b,
                           double factor);
void product_free(struct product *p);

double product_output(const void *y, enum dtype t, uint64_t i);
double product_bias(float bias, enum dtype t); /* rounded to a 16-bit output's dtype */

/* The largest error over the sum of magnitudes, in units of 2^-13; fails beyond `bound` of it, plus
 * the output's own rounding. */
double product_check(const struct product *p, const void *y, enum dtype t, bool with_bias,
                     double bound, const char *what);

#endif
