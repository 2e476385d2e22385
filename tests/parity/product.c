#include "tests/parity/product.h"

#include "kernels/fp8.h"
#include "tests/parity/both.h"

#include <math.h>

#define FULL_OPERATIONS 1e10 /* above it rows are sampled */
#define SAMPLED_ROWS 24

static double least(enum dtype t)
{
    bool fp8 = t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
    return fp8 ? cut_least(t == DTYPE_F8_E5M2) : 0;
}

struct product product_new(uint64_t m, uint64_t n, uint64_t k, struct product_operand a,
                           struct product_operand b, double factor)
{
    struct product p = {.m = m, .n = n, .k = k, .rows = m};
    double operations = 2.0 * (double)m * (double)n * (double)k;
    if (operations > FULL_OPERATIONS && p.rows > SAMPLED_ROWS)
        p.rows = SAMPLED_ROWS;
    p.row = malloc((p.rows + 1) * sizeof *p.row);
    for (uint64_t i = 0; i < p.rows; i++) /* the first, the last and some between */
        p.row[i] = p.rows == m ? i : i * (m - 1) / (p.rows - 1);
    p.cut = malloc((p.rows * n + 1) * sizeof *p.cut);
    p.bias = malloc(n * sizeof *p.bias);
    struct reference r = {.a = a.value,
                          .b = b.value,
                          .least_a = least(a.dtype),
                          .least_b = least(b.dtype),
                          .n = n,
                          .k = k,
                          .row = p.row,
                          .rows = p.rows,
                          .cut = p.cut};
    reference_run(&r);
    for (uint64_t i = 0; i < p.rows * n; i++)
        cut_scale(&p.cut[i], factor);
    for (uint64_t i = 0; i < n; i++)
        p.bias[i] = (float)(both_hash(12, i) >> 40) * 0x1p-22f - 2.0f;
    return p;
}

void product_free(struct product *p)
{
    free(p->row);
    free(p->cut);
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

static double bound(const struct product *p, const struct cut *c, enum product_sum how)
{
    if (how == PRODUCT_FAST)
        return c->fast;
    if (how == PRODUCT_PRECISE)
        return c->precise;
    return reference_bound_high(p->k, how == PRODUCT_FLOAT32) * c->magnitude;
}

void product_worst(struct product_error *worst, struct product_error e)
{
    worst->of_bound = fmax(worst->of_bound, e.of_bound);
    worst->of_magnitude = fmax(worst->of_magnitude, e.of_magnitude);
}

struct product_error product_check(const struct product *p, const void *y, enum dtype t,
                                   bool with_bias, enum product_sum how, const char *what)
{
    struct product_error worst = {0};
    for (uint64_t i = 0; i < p->rows; i++)
        for (uint64_t j = 0; j < p->n; j++) {
            const struct cut *c = &p->cut[i * p->n + j];
            double want = c->sum + (with_bias ? product_bias(p->bias[j], t) : 0.0);
            double got = product_output(y, t, p->row[i] * p->n + j), most = bound(p, c, how);
            double error = fabs(got - want) - rounding(want, t);
            if (!(error <= most))
                ck_abort_msg("%s: m %lu, n %lu, k %lu: [%lu, %lu] is %a, needed %a +- %g", what,
                             p->m, p->n, p->k, p->row[i], j, got, want, most + rounding(want, t));
            if (error > 0) /* so that neither divisor is 0 */
                product_worst(&worst,
                              (struct product_error){error / most, error / c->magnitude * 0x1p13});
        }
    return worst;
}
