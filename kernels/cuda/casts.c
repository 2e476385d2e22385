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

int cuda_cast(struct queue *base, const struct cast *c, struct qtensor *out, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    int rc = cuda_begin(q, f);
    if (rc)
        return rc;
    struct cast_launch a = {
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
    };
#ifdef FP8D_MUTANT_SITE_SCALE
    out->site = c->mode == CAST_TENSOR ? NULL : c->site;
#endif
    rc = cuda_check(q->cuda, launch_cast(&a, q->stream), f, "the cast of [%llu, %llu] %s to %s",
                    (unsigned long long)c->src.rows, (unsigned long long)c->src.cols,
                    dtype_name(c->src.dtype), dtype_name(c->fmt));
#ifdef FP8D_MUTANT_AMAX_PADDING
    rc = rc ? rc : measure_padding(q, c, a, f);
#endif
    return rc;
}

int cuda_measure(struct queue *base, const struct tensor *t, struct cast_report *report,
                 struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    int rc = cuda_begin(q, f);
    if (rc)
        return rc;
    struct cast_launch a = {
        .src = tensor_data(t),
        .dtype = t->dtype,
        .count = t->rows * t->cols,
        .report = report,
        .sums = queue_sums(q),
        .sms = q->cuda->sms,
    };
    return cuda_check(q->cuda, launch_measure(&a, q->stream), f, "measuring [%llu, %llu] %s",
                      (unsigned long long)t->rows, (unsigned long long)t->cols,
                      dtype_name(t->dtype));
}

int cuda_adopt(struct queue *base, const struct buffer *bytes, uint64_t offset, float scale_inv,
               struct qtensor *out, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    uint64_t n = out->rows * out->cols;
    bool there = out->mem == bytes; /* qtensor_adopt_buffer */
    int rc = cuda_begin(q, f);
    if (!rc && n && !there)
        rc = cuda_check(q->cuda,
                        cudaMemcpyAsync(codes_of(out), (const char *)bytes->data + offset, n,
                                        cudaMemcpyDefault, q->stream),
                        f, "copying %llu FP8 bytes", (unsigned long long)n);
    return rc ? rc
              : cuda_check(q->cuda, launch_store_float(factor_of(out), scale_inv, q->stream), f,
                           "storing a factor");
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
    int rc = cuda_begin(q, f);
    return rc ? rc
              : cuda_check(q->cuda, launch_transpose(&a, q->stream), f,
                           "transposing [%llu, %llu] %s", (unsigned long long)t->rows,
                           (unsigned long long)t->cols, dtype_name(t->fmt));
}

/* --- export: through pinned memory, to the completion thread --- */

struct export_run {
    struct heap_block *block; /* codes, then the factor */
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

static int export_copy(struct cuda_queue *q, const struct qtensor *t, struct export_run *r,
                       struct fault *f)
{
    uint64_t bytes = t->second_offset ? t->second_offset + t->cols * t->second_pitch
                                      : t->factor_offset + t->factors * sizeof(float);
    r->block = cuda_take_host(q->cuda, bytes, "the export of an FP8 tensor", f);
    if (!r->block)
        return f->code;
    int rc = cuda_check(q->cuda,
                        cudaMemcpyAsync(block_address(r->block), t->mem->data, bytes,
                                        cudaMemcpyDeviceToHost, q->stream),
                        f, "copying %llu FP8 bytes to the host", (unsigned long long)bytes);
    if (!rc)
        rc = cuda_after(q, export_done, r, f);
    if (rc) /* the copy may run already: the memory must not be dealt again before it has ended */
        (void)cudaStreamSynchronize(q->stream);
    if (rc)
        heap_give(&q->cuda->host_heap, r->block);
    return rc;
}

int cuda_export(struct queue *base, struct qtensor *t, qtensor_export_cb cb, void *arg,
                struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    int rc = cuda_begin(q, f);
    if (rc)
        return rc;
    struct export_run *r = mem_alloc(sizeof *r);
    if (!r)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to enqueue an operation");
    *r = (struct export_run){.factor_at = t->factor_offset,
                             .info = {.fmt = t->fmt,
                                      .granularity = t->granularity,
                                      .rows = t->rows,
                                      .cols = t->cols,
                                      .bytes = t->mem->charged,
                                      .transposed = t->second_offset != 0},
                             .factors = t->factors,
                             .second_at = t->second_offset,
                             .pitch = t->second_pitch,
                             .cb = cb,
                             .arg = arg};
    rc = export_copy(q, t, r, f);
    if (rc)
        mem_free(r);
    return rc;
}

int cuda_dequantize(struct queue *base, const struct qtensor *t, const struct tensor *out,
                    struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    uint64_t n = t->rows * t->cols;
    int rc = cuda_begin(q, f);
    if (rc || !n)
        return rc;
    return cuda_check(q->cuda,
                      launch_dequantize(codes_of(t), t->fmt, factor_of(t), tensor_data(out),
                                        out->dtype, n, q->stream),
                      f, "dequantising [%llu, %llu] %s", (unsigned long long)t->rows,
                      (unsigned long long)t->cols, dtype_name(t->fmt));
}
