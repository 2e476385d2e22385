#include "kernels/cpu/ops.h"
#include "kernels/cpu/queue.h"
#include "kernels/qtensor_impl.h"

/* Below this many products waking another thread costs more than it saves. */
#define SHARE_FROM ((uint64_t)1 << 18)

struct gemm_run {
    struct gemm_job job;
    struct cpu_queue *queue;
    /* The factors travel with the tensors and are read when the operation runs: a cast enqueued
     * just before has not written them yet. */
    const struct qtensor *a, *b;
};

static void run_tile(void *arg, unsigned worker, uint64_t tile)
{
    const struct gemm_run *r = arg;
    r->queue->kernels->gemm_tile(&r->job, tile, &r->queue->scratch[worker]);
}

static float factor_of(const struct qtensor *t)
{
    float factor;
#ifdef FP8D_MUTANT_SITE_SCALE
    if (t->site)
        return t->site->scale_inv;
#endif
    memcpy(&factor, (const char *)t->mem->data + t->factor_offset, sizeof factor);
    return factor;
}

static void gemm_execute(struct cpu_queue *q, void *args)
{
    struct gemm_run *r = args;
    struct gemm_job *j = &r->job;
    r->queue = q;
    if (r->a) {
        j->factor_a = factor_of(r->a);
        j->factor_b = factor_of(r->b);
    }
    uint64_t tiles = gemm_tiles_m(j) * gemm_tiles_n(j);
    /* In float: m * n * k may not fit 64 bits, and only its size matters. */
    if ((double)j->m * (double)j->n * (double)j->k >= (double)SHARE_FROM) {
        pool_run(&q->pool, run_tile, r, tiles);
        return;
    }
    for (uint64_t tile = 0; tile < tiles; tile++)
        run_tile(r, 0, tile);
}

static void job_ends(struct gemm_job *j, const struct tensor *bias, const struct tensor *out)
{
    j->out = tensor_data(out);
    j->out_dtype = out->dtype;
    j->bias = bias ? tensor_data(bias) : NULL;
    j->bias_dtype = bias ? bias->dtype : DTYPE_NONE;
}

int cpu_gemm(struct queue *q, const struct gemm *g, struct fault *f)
{
    struct gemm_run r = {.a = g->a, .b = g->b};
    struct qtensor_form a = qtensor_form(g->a, g->a_transposed);
    struct qtensor_form b = qtensor_form(g->b, g->b_transposed);
    r.job.a = (struct gemm_operand){a.codes, g->a->fmt, a.pitch};
    r.job.b = (struct gemm_operand){b.codes, g->b->fmt, b.pitch};
    r.job.m = a.rows;
    r.job.n = b.rows;
    r.job.k = a.cols;
    r.job.accumulate = g->accumulate;
    job_ends(&r.job, g->bias, &g->out);
    return cpu_queue_post((struct cpu_queue *)q, gemm_execute, &r, sizeof r, NULL, 0, f);
}

int cpu_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f)
{
    struct gemm_run r = {.job = {.factor_a = 1.0f, .factor_b = 1.0f}};
    r.job.a = (struct gemm_operand){tensor_data(&g->a), g->a.dtype, g->a.cols};
    r.job.b = (struct gemm_operand){tensor_data(&g->b), g->b.dtype, g->b.cols};
    r.job.m = g->a.rows;
    r.job.n = g->b.rows;
    r.job.k = g->a.cols;
    job_ends(&r.job, g->bias, &g->out);
    return cpu_queue_post((struct cpu_queue *)q, gemm_execute, &r, sizeof r, NULL, 0, f);
}
