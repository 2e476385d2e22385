/* product.h - one product a[m, k] * b[n, k]^T in float64, and how far an output may be from it. */
#ifndef FP8D_TESTS_PARITY_PRODUCT_H
#define FP8D_TESTS_PARITY_PRODUCT_H

#include "base/dtype.h"
#include "tests/parity/reference.h"

struct product {
    uint64_t m, n, k;
    uint64_t *row, rows; /* that are looked at: all, or a sample of large ones */
    struct cut *cut;     /* [rows, n], factors included */
    float *bias;         /* [n] */
};

/* Values and their dtypes, without factors; `factor` is the product of both. */
struct product_operand {
    const float *value;
    enum dtype dtype;
};
struct product product_new(uint64_t m, uint64_t n, uint64_t k, struct product_operand a,
                           struct product_operand b, double factor);
void product_free(struct product *p);

double product_output(const void *y, enum dtype t, uint64_t i);
double product_bias(float bias, enum dtype t); /* rounded to a 16-bit output's dtype */

/* How the sum was made, for its bound: tests/oracle/cut.h, and reference.h for the last two. */
enum product_sum { PRODUCT_FAST, PRODUCT_PRECISE, PRODUCT_HALF, PRODUCT_FLOAT32 };

/* The largest errors: over the bound, and over the sum of magnitudes, in units of 2^-13. */
struct product_error {
    double of_bound, of_magnitude;
};
void product_worst(struct product_error *worst, struct product_error e);

/* Fails beyond the bound plus the output's own rounding, which the errors leave out. */
struct product_error product_check(const struct product *p, const void *y, enum dtype t,
                                   bool with_bias, enum product_sum how, const char *what);

#endif
