#include "kernels/cpu/sums.h"

#include "kernels/cpu/element.h"
#include "kernels/optimizer.h"

#define STRIP 64u /* columns that one thread adds up together */

struct sums_run {
    const struct tensor *src, *sums;
    bool add;
};

static void sum_strip(void *arg, unsigned worker, uint64_t strip)
{
    const struct sums_run *r = arg;
    uint64_t cols = r->src->cols, first = strip * STRIP;
    uint64_t n = cols - first < STRIP ? cols - first : STRIP;
    float *out = (float *)tensor_data(r->sums) + first;
    double sum[STRIP] = {0};
    (void)worker;
    for (uint64_t row = 0; row < r->src->rows; row++)
        for (uint64_t i = 0; i < n; i++)
            sum[i] += (double)tensor_element(r->src, row * cols + first + i);
    for (uint64_t i = 0; i < n; i++) {
        float rounded = (float)sum[i];
        out[i] = optimizer_quiet(r->add ? out[i] + rounded : rounded);
    }
}

void cpu_column_sums(struct cpu_queue *q, const struct tensor *src, const struct tensor *sums,
                     bool add)
{
    struct sums_run r = {src, sums, add};
    pool_run(&q->pool, sum_strip, &r, (src->cols + STRIP - 1) / STRIP);
}
