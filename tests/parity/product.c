#include "tests/parity/product.h"

#include "kernels/fp8.h"
#include "tests/parity/both.h"

#include <math.h>

#define FULL_OPERATIONS 1e10 /* above it rows are sampled */
#define SAMPLED_ROWS 24

struct product product_new(uint64_t m, uint64_t n, uint64_t k, const float *a, const float *b,
                           double factor)
{
    struct product p = {.m = m, .n = n, .k = k, .rows = m};
    double operations = 2.0 * (double)m * (double)n * (double)k;
    if (operations > FULL_OPERATIONS && p.rows > SAMPLED_ROWS)
        p.rows = SAMPLED_ROWS;
    p.row = malloc((p.rows + 1) * sizeof *p.row);
    for (uint64_t i = 0; i < p.rows; i++) /* the first, the last and some between */
        p.row[i] = p.rows == m ? i : i * (m - 1) / (p.rows - 1);
    p.sum = malloc((p.rows * n + 1) * sizeof *p.sum);
    p.magnitude = malloc((p.rows * n + 1) * sizeof *p.magnitude);
    p.bias = malloc(n * sizeof *p.bias);
    struct reference r = {a, b, n, k, p.row, p.rows, p.sum, p.magnitude};
    reference_run(&r);
    for (uint64_t i = 0; i < p.rows * n; i++) {
        p.sum[i] *= factor;
        p.magnitude[i] *= factor;
    }
    for (uint64_t i = 0; i < n; i++)
        p.bias[i] = (float)(both_hash(12, i) >> 40) * 0x1p-22f - 2.0f;
    return p;
}

void product_free(struct product *p)
{
    free(p->row);
    free(p->sum);
    free(p->magnitude);
    free(p->bias);
}

double product_output(const void *y, enum dtype t, uint64_t i)
{
    if (t == DTYPE_F32)
        return (double)((const float *)y)[i];
    uint16_t h = ((const uint16_t *)y)[i];
    return (double)(t == DTYPE_BF16 ? bf16_decode(h) : f16_decode(h));
}

double product_bias(float bias, enum dtype t)
{
    if (t == DTYPE_BF16)
        return (double)bf16_decode(bf16_encode(bias));
    return (double)(t == DTYPE_F16 ? f16_decode(f16_encode(bias)) : bias);
}

/* Half a unit in the last place of t beside y, and of the float32 steps before. */
static double rounding(double y, enum dtype t)
{
    double last = t == DTYPE_F32 ? 0x1p-22 : t == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    return fabs(y) * (last + 0x1p-22) + 0x1p-25;
}

double product_check(const struct product *p, const void *y, enum dtype t, bool with_bias,
                     double bound, const char *what)
{
    double worst = 0;
    for (uint64_t i = 0; i < p->rows; i++)
        for (uint64_t j = 0; j < p->n; j++) {
            double sum = p->sum[i * p->n + j], mag = p->magnitude[i * p->n + j];
            double want = sum + (with_bias ? product_bias(p->bias[j], t) : 0.0);
            double got = product_output(y, t, p->row[i] * p->n + j);
            double error = fabs(got - want) - rounding(want, t);
            if (!(error <= bound * mag))
                ck_abort_msg("%s: m %lu, n %lu, k %lu: [%lu, %lu] is %a, needed %a +- %g", what,
                             p->m, p->n, p->k, p->row[i], j, got, want,
                             bound * mag + rounding(want, t));
            worst = fmax(worst, error / (mag > 0 ? mag : 1));
        }
    return worst * 0x1p13;
}
