/* Between high precision and FP8: cast, measure, adopt, export, dequantise. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/queue.h"
#include "kernels/qtensor_impl.h"

#include "base/mem.h"

#include <string.h>

static uint8_t *codes_of(const struct qtensor *t)
{
    return t->mem->data;
}

/* In a slot of its own at a multiple of 64 bytes: cuBLASLt 13.1.0 wrongly needs its scale pointers
 * at 16 (facts 1.8, second fault). */
static float *factor_of(const struct qtensor *t)
{
    return (float *)(void *)((char *)t->mem->data + t->factor_offset);
}

#ifdef FP8D_MUTANT_AMAX_PADDING
/* The amax of whole tiles of 16 rows, as far as the buffer goes, over the report's. */
static int measure_padding(struct cuda_queue *q, const struct cast *c, struct cast_launch a,
                           struct fault *f)
{
    uint64_t size = dtype_bits(c->src.dtype) / 8, padded = (c->src.rows + 15) / 16 * 16;
    uint64_t most = (c->src.buf->bytes - c->src.offset) / size;
    void *room;
    int rc = cuda_scratch(q, sizeof *a.report, "a planted fault", &room, f);
    a.count = padded * c->src.cols < most ? padded * c->src.cols : most;
    a.report = room;
    if (!rc)
        rc = cuda_check(q->cuda, launch_measure(&a, q->stream), f, "a planted fault");
    return rc ? rc
              : cuda_check(q->cuda,
                           cudaMemcpyAsync(&c->report->slot.amax, &a.report->slot.amax,
                                           sizeof(float), cudaMemcpyDefault, q->stream),
                           f, "a planted fault");
}
#endif

struct cast_run {
    struct cast_launch launch;
    struct cast cast;
};

/* Where the cast leaves its part of the column sums. */
static int place_partials(struct cuda_queue *q, struct cast_launch *a, struct fault *f)
{
    void *room;
    if (!a->column_sums)
        return 0;
    uint64_t bytes = cast_partials(a->rows, a->cols) * sizeof *a->partial;
    int rc = cuda_scratch(q, bytes ? bytes : sizeof *a->partial, "column sums", &room, f);
    if (!rc)
        a->partial = room;
    return rc;
}

static int cast_run(struct cuda_queue *q, void *args, struct fault *f)
{
    struct cast_run *r = args;
    const struct tensor *src = &r->cast.src;
    int rc = place_partials(q, &r->launch, f);
    if (!rc)
        rc = cuda_check(q->cuda, launch_cast(&r->launch, q->stream), f,
                        "the cast of [%llu, %llu] %s to %s", (unsigned long long)src->rows,
                        (unsigned long long)src->cols, dtype_name(src->dtype),
                        dtype_name(r->cast.fmt));
#ifdef FP8D_MUTANT_AMAX_PADDING
    rc = rc ? rc : measure_padding(q, &r->cast, r->launch, f);
#endif
    return rc;
}

int cuda_cast(struct queue *base, const struct cast *c, struct qtensor *out, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct cast_run r = {
        .launch =
            {
                .src = tensor_data(&c->src),
                .dtype = c->src.dtype,
                .count = c->src.rows * c->src.cols,
                .codes = codes_of(out),
                .factor = factor_of(out),
                .site = c->mode == CAST_TENSOR ? NULL : c->site,
                .unless_set = c->mode == CAST_SITE_OR_TENSOR,
                .fmt = c->fmt,
                .margin = c->margin,
                .report = c->report,
                .sums = queue_sums(q),
                .sms = q->cuda->sms,
                .second = out->second_offset ? codes_of(out) + out->second_offset : NULL,
                .rows = out->rows,
                .cols = out->cols,
                .pitch = out->second_pitch,
                .column_sums = c->sums.buf ? tensor_data(&c->sums) : NULL,
                .sums_add = c->sums_add,
            },
        .cast = *c,
    };
#ifdef FP8D_MUTANT_SITE_SCALE
    out->site = c->mode == CAST_TENSOR ? NULL : c->site;
#endif
    return cuda_post(q, cast_run, &r, sizeof r, f);
}

struct measure_run {
    struct tensor tensor;
    struct cast_report *report;
};

static int measure_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct measure_run *r = args;
    const struct tensor *t = &r->tensor;
    struct cast_launch a = {
        .src = tensor_data(t),
        .dtype = t->dtype,
        .count = t->rows * t->cols,
        .report = r->report,
        .sums = queue_sums(q),
        .sms = q->cuda->sms,
    };
    return cuda_check(q->cuda, launch_measure(&a, q->stream), f, "measuring [%llu, %llu] %s",
                      (unsigned long long)t->rows, (unsigned long long)t->cols,
                      dtype_name(t->dtype));
}

int cuda_measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                 struct fault *f)
{
    struct measure_run r = {*t, report};
    return cuda_post((struct cuda_queue *)q, measure_run, &r, sizeof r, f);
}

struct adopt_run {
    uint8_t *codes;
    const char *from;
    uint64_t bytes; /* 0: they are there */
    float *factor;
    float scale_inv;
};

static int adopt_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct adopt_run *r = args;
    int rc = 0;
    if (r->bytes)
        rc = cuda_check(q->cuda,
                        cudaMemcpyAsync(r->codes, r->from, r->bytes, cudaMemcpyDefault, q->stream),
                        f, "copying %llu FP8 bytes", (unsigned long long)r->bytes);
    return rc ? rc
              : cuda_check(q->cuda, launch_store_float(r->factor, r->scale_inv, q->stream), f,
                           "storing a factor");
}

int cuda_adopt(struct queue *q, const struct buffer *bytes, uint64_t offset, float scale_inv,
               struct qtensor *out, struct fault *f)
{
    bool there = out->mem == bytes; /* qtensor_adopt_buffer */
    struct adopt_run r = {
        .codes = codes_of(out),
        .from = (const char *)bytes->data + offset,
        .bytes = there ? 0 : out->rows * out->cols,
        .factor = factor_of(out),
        .scale_inv = scale_inv,
    };
    return cuda_post((struct cuda_queue *)q, adopt_run, &r, sizeof r, f);
}

static int transpose_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct transpose_launch *a = args;
    return cuda_check(q->cuda, launch_transpose(a, q->stream), f, "transposing [%llu, %llu] FP8",
                      (unsigned long long)a->rows, (unsigned long long)a->cols);
}

int cuda_transpose(struct queue *base, const struct qtensor *t, struct qtensor *out,
                   struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct transpose_launch a = {
        .from = codes_of(t),
        .factor = factor_of(t),
        .to = codes_of(out),
        .factor_to = factor_of(out),
        .rows = t->rows,
        .cols = t->cols,
        .sms = q->cuda->sms,
    };
    return cuda_post(q, transpose_run, &a, sizeof a, f);
}

/* --- export: through pinned memory, to the completion thread --- */

struct export_run {
    struct heap_block *block; /* codes, then the factor */
    const void *from;
    uint64_t bytes;
    uint64_t factor_at;
    struct qtensor_info info;
    uint64_t factors;
    uint64_t second_at, pitch; /* as in the tensor; 0: no second form */
    qtensor_export_cb cb;
    void *arg;
};

/* The callback is called whatever happened: after a failure its bytes are undefined, and the note
 * that the caller waits for says so. */
static void export_done(struct cuda_queue *q, void *arg, int status)
{
    struct export_run *r = arg;
    const char *data = block_address(r->block);
    (void)status;
    r->cb(r->arg, &(struct qtensor_view){
                      .info = r->info,
                      .codes = (const uint8_t *)data,
                      .scale_inv = (const float *)(const void *)(data + r->factor_at),
                      .factors = r->factors,
                      .transposed = r->second_at ? (const uint8_t *)data + r->second_at : NULL,
                      .pitch = r->pitch,
                  });
    heap_give(&q->cuda->host_heap, r->block);
    mem_free(r);
}

static int export_run(struct cuda_queue *q, void *args, struct fault *f)
{
    struct export_run *r = *(struct export_run **)args;
    int rc = 0;
    if (!q->failed.code && !q->cuda->lost)
        rc = cuda_check(q->cuda,
                        cudaMemcpyAsync(block_address(r->block), r->from, r->bytes,
                                        cudaMemcpyDeviceToHost, q->stream),
                        f, "copying %llu FP8 bytes to the host", (unsigned long long)r->bytes);
    if (!cuda_after(q, export_done, r, &(struct fault){0}))
        return rc;
    (void)cudaStreamSynchronize(q->stream); /* no memory for the note: the bytes are waited for */
    export_done(q, r, 0);
    return rc;
}

static void fill_export(struct export_run *r, const struct qtensor *t)
{
    *r = (struct export_run){
        .from = t->mem->data,
        .bytes = t->second_offset ? t->second_offset + t->cols * t->second_pitch
                                  : t->factor_offset + t->factors * sizeof(float),
        .factor_at = t->factor_offset,
        .info = {.fmt = t->fmt,
                 .granularity = t->granularity,
                 .rows = t->rows,
                 .cols = t->cols,
                 .bytes = t->mem->charged,
                 .transposed = t->second_offset != 0},
        .factors = t->factors,
        .second_at = t->second_offset,
        .pitch = t->second_pitch,
    };
}

int cuda_export(struct queue *base, struct qtensor *t, qtensor_export_cb cb, void *arg,
                struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct export_run *r = mem_alloc(sizeof *r);
    if (!r)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to enqueue an operation");
    fill_export(r, t);
    r->cb = cb;
    r->arg = arg;
    r->block = cuda_take_host(q->cuda, r->bytes, "the export of an FP8 tensor", f);
    int rc = r->block ? cuda_post_always(q, export_run, &r, sizeof r, f) : f->code;
    if (rc) {
        heap_give(&q->cuda->host_heap, r->block);
        mem_free(r);
    }
    return rc;
}

struct dequantize_run {
    const uint8_t *codes;
    const float *factor;
    enum dtype fmt;
    struct tensor out;
};

static int dequantize_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct dequantize_run *r = args;
    const struct tensor *out = &r->out;
    return cuda_check(q->cuda,
                      launch_dequantize(r->codes, r->fmt, r->factor, tensor_data(out), out->dtype,
                                        out->rows * out->cols, q->stream),
                      f, "dequantising [%llu, %llu] %s", (unsigned long long)out->rows,
                      (unsigned long long)out->cols, dtype_name(r->fmt));
}

int cuda_dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                    struct fault *f)
{
    struct dequantize_run r = {codes_of(t), factor_of(t), t->fmt, *out};
    if (!t->rows)
        return 0;
    return cuda_post((struct cuda_queue *)q, dequantize_run, &r, sizeof r, f);
}
