#include "kernels/cpu/ops.h"
#include "kernels/cpu/queue.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/transpose.h"
#include "kernels/qtensor_impl.h"

/* One cast or measurement: src in chunks over the pool, counts merged by max and sum afterwards. */
struct cast_run {
    struct cast cast;
    struct qtensor *out;
    struct cpu_queue *queue;
    uint64_t count; /* elements */
    float scale;
};

static uint64_t chunk_of(const struct cast_run *r, uint64_t chunk)
{
    uint64_t left = r->count - chunk * CPU_CHUNK;
    return left < CPU_CHUNK ? left : CPU_CHUNK;
}

static const char *chunk_src(const struct cast_run *r, uint64_t chunk)
{
    const struct tensor *t = &r->cast.src;
    return (const char *)tensor_data(t) + chunk * CPU_CHUNK * (dtype_bits(t->dtype) / 8);
}

static void measure_chunk(void *arg, unsigned worker, uint64_t chunk)
{
    struct cast_run *r = arg;
    r->queue->kernels->measure(chunk_src(r, chunk), r->cast.src.dtype, chunk_of(r, chunk),
                               &r->queue->slots[worker]);
}

static void cast_chunk(void *arg, unsigned worker, uint64_t chunk)
{
    struct cast_run *r = arg;
    uint8_t *codes = (uint8_t *)r->out->mem->data + chunk * CPU_CHUNK;
    r->queue->kernels->cast(chunk_src(r, chunk), r->cast.src.dtype, chunk_of(r, chunk), r->scale,
                            r->cast.fmt, codes, &r->queue->slots[worker]);
}

static struct amax_slot run_chunks(struct cast_run *r, pool_cb fn)
{
    struct cpu_queue *q = r->queue;
    struct amax_slot all = {0};
    memset(q->slots, 0, q->pool.threads * sizeof *q->slots);
    pool_run(&q->pool, fn, r, (r->count + CPU_CHUNK - 1) / CPU_CHUNK);
    for (unsigned i = 0; i < q->pool.threads; i++)
        slot_merge(&all, &q->slots[i]);
    all.casts = 1;
    return all;
}

/* The snapshot: scale and factor as the bytes will be made with. */
static void choose_scale(struct cast_run *r, struct cast_report *report)
{
    const struct cast *c = &r->cast;
    report->from_tensor =
        c->mode == CAST_TENSOR || (c->mode == CAST_SITE_OR_TENSOR && !c->site->set);
    if (!report->from_tensor) {
        report->scale = c->site->scale;
        report->scale_inv = c->site->scale_inv;
        return;
    }
    report->scale = recipe_scale(run_chunks(r, measure_chunk).amax, c->fmt, c->margin);
    report->scale_inv = recipe_scale_inv(report->scale);
}

static void cast_execute(struct cpu_queue *q, void *args)
{
    struct cast_run *r = args;
    struct cast_report report = {0};
    r->queue = q;
    choose_scale(r, &report);
    r->scale = report.scale;
    memcpy((char *)r->out->mem->data + r->out->factor_offset, &report.scale_inv,
           sizeof report.scale_inv);
    report.slot = run_chunks(r, cast_chunk);
    if (r->out->second_offset) {
        uint8_t *codes = r->out->mem->data;
        cpu_transpose_codes(q, codes, r->out->rows, r->out->cols, codes + r->out->second_offset,
                            r->out->second_pitch);
    }
    if (r->cast.sums.buf)
        cpu_column_sums(q, &r->cast.src, &r->cast.sums, r->cast.sums_add);
#ifdef FP8D_MUTANT_AMAX_PADDING
    uint64_t size = dtype_bits(r->cast.src.dtype) / 8, padded = (r->cast.src.rows + 15) / 16 * 16;
    uint64_t most = (r->cast.src.buf->bytes - r->cast.src.offset) / size;
    r->count = padded * r->cast.src.cols < most ? padded * r->cast.src.cols : most;
    report.slot.amax = run_chunks(r, measure_chunk).amax;
#endif
    *r->cast.report = report;
}

int cpu_cast(struct queue *q, const struct cast *c, struct qtensor *out, struct fault *f)
{
    struct cast_run r = {.cast = *c, .out = out, .count = c->src.rows * c->src.cols};
#ifdef FP8D_MUTANT_SITE_SCALE
    out->site = c->mode == CAST_TENSOR ? NULL : c->site;
#endif
    return cpu_queue_post((struct cpu_queue *)q, cast_execute, &r, sizeof r, NULL, 0, f);
}

static void measure_execute(struct cpu_queue *q, void *args)
{
    struct cast_run *r = args;
    r->queue = q;
    *r->cast.report = (struct cast_report){.slot = run_chunks(r, measure_chunk)};
}

int cpu_measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                struct fault *f)
{
    struct cast_run r = {.cast = {.src = *t, .report = report}, .count = t->rows * t->cols};
    return cpu_queue_post((struct cpu_queue *)q, measure_execute, &r, sizeof r, NULL, 0, f);
}

struct adopt_run {
    struct qtensor *out;
    const uint8_t *codes;
    float scale_inv;
};

static void adopt_execute(struct cpu_queue *q, void *args)
{
    const struct adopt_run *r = args;
    (void)q;
    if (r->out->mem->data != r->codes)
        memcpy(r->out->mem->data, r->codes, r->out->rows * r->out->cols);
    memcpy((char *)r->out->mem->data + r->out->factor_offset, &r->scale_inv, sizeof r->scale_inv);
}

int cpu_adopt(struct queue *q, const struct buffer *bytes, uint64_t offset, float scale_inv,
              struct qtensor *out, struct fault *f)
{
    struct adopt_run r = {out, (const uint8_t *)bytes->data + offset, scale_inv};
    return cpu_queue_post((struct cpu_queue *)q, adopt_execute, &r, sizeof r, NULL, 0, f);
}

struct export_run {
    const struct qtensor *tensor;
    qtensor_export_cb cb;
    void *arg;
};

static void export_execute(struct cpu_queue *q, void *args)
{
    const struct export_run *r = args;
    const struct qtensor *t = r->tensor;
    const char *data = t->mem->data;
    (void)q;
    r->cb(r->arg,
          &(struct qtensor_view){
              .info = qtensor_info(t),
              .codes = (const uint8_t *)data,
              .scale_inv = (const float *)(data + t->factor_offset),
              .factors = t->factors,
              .transposed = t->second_offset ? (const uint8_t *)data + t->second_offset : NULL,
              .pitch = t->second_pitch,
          });
}

int cpu_export(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg, struct fault *f)
{
    struct export_run r = {t, cb, arg};
    return cpu_queue_post((struct cpu_queue *)q, export_execute, &r, sizeof r, NULL, 0, f);
}

struct dequantize_run {
    const struct qtensor *tensor;
    struct tensor out;
    struct cpu_queue *queue;
};

static void dequantize_chunk(void *arg, unsigned worker, uint64_t chunk)
{
    const struct dequantize_run *r = arg;
    const struct qtensor *t = r->tensor;
    const char *data = t->mem->data;
    uint64_t first = chunk * CPU_CHUNK, left = t->rows * t->cols - first;
    float factor;
    (void)worker;
    memcpy(&factor, data + t->factor_offset, sizeof factor);
    r->queue->kernels->dequantize(
        (const uint8_t *)data + first, t->fmt, left < CPU_CHUNK ? left : CPU_CHUNK, factor,
        (char *)tensor_data(&r->out) + first * (dtype_bits(r->out.dtype) / 8), r->out.dtype);
}

static void dequantize_execute(struct cpu_queue *q, void *args)
{
    struct dequantize_run *r = args;
    r->queue = q;
    pool_run(&q->pool, dequantize_chunk, r,
             (r->tensor->rows * r->tensor->cols + CPU_CHUNK - 1) / CPU_CHUNK);
}

int cpu_dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                   struct fault *f)
{
    struct dequantize_run r = {.tensor = t, .out = *out};
    return cpu_queue_post((struct cpu_queue *)q, dequantize_execute, &r, sizeof r, NULL, 0, f);
}
