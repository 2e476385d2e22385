#include "kernels/backend.h"

#include "kernels/tensor_check.h"

void backend_close(struct backend *b)
{
    if (b)
        b->ops->close(b);
}

void backend_info(struct backend *b, struct backend_info *out)
{
    b->ops->info(b, out);
}

int queue_open(struct backend *b, const char *name, struct queue **out, struct fault *f)
{
    return b->ops->queue_open(b, name, out, f);
}

void queue_close(struct queue *q)
{
    if (q)
        q->backend->ops->queue_close(q);
}

void queue_notify(struct queue *q, struct queue_note *note)
{
    q->backend->ops->notify(q, note);
}

void queue_hold(struct queue *q)
{
    q->backend->ops->hold(q);
}

void queue_release(struct queue *q, bool run)
{
    q->backend->ops->release(q, run);
}

int backend_follow(struct queue *q, const struct queue_note *note, struct fault *f)
{
    return q->backend->ops->follow(q, note, f);
}

int backend_copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
                 uint64_t src_off, uint64_t bytes, struct fault *f)
{
    int rc = check_range(q->backend, dst, dst_off, bytes, "copy.dst", f);
    if (!rc)
        rc = check_range(q->backend, src, src_off, bytes, "copy.src", f);
    if (rc)
        return rc;
    uint64_t gap = dst_off > src_off ? dst_off - src_off : src_off - dst_off;
    if (dst == src && gap < bytes)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "copy of %llu bytes from offset %llu to %llu of one buffer overlaps",
                         (unsigned long long)bytes, (unsigned long long)src_off,
                         (unsigned long long)dst_off);
    return q->backend->ops->copy(q, dst, dst_off, src, src_off, bytes, f);
}

int backend_measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                    struct fault *f)
{
    if (!report)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "measure.report is missing");
    int rc = check_tensor(q->backend, t, "measure.tensor", f);
    return rc ? rc : q->backend->ops->measure(q, t, report, f);
}

/* The bias, where there is one, is a single row as wide as the output. */
static int check_bias(const struct backend *b, const struct tensor *bias, uint64_t n,
                      struct fault *f)
{
    if (!bias)
        return 0;
    int rc = check_tensor(b, bias, "gemm.bias", f);
    if (!rc)
        rc = check_dim(bias->rows, 1, "gemm.bias.rows", f);
    return rc ? rc : check_dim(bias->cols, n, "gemm.bias.cols (n)", f);
}

static int check_gemm_out(const struct backend *b, const struct tensor *out, uint64_t m, uint64_t n,
                          struct fault *f)
{
    if (!n) /* an output without columns has nothing to check against */
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "gemm.b.rows (n) is 0, needed at least 1");
    int rc = check_tensor(b, out, "gemm.out", f);
    if (!rc)
        rc = check_dim(out->rows, m, "gemm.out.rows (m)", f);
    return rc ? rc : check_dim(out->cols, n, "gemm.out.cols (n)", f);
}

/* Shape and format of an operand in the form that is multiplied. */
static int check_operand(const struct backend *b, const struct qtensor *t, bool second,
                         const char *field, struct qtensor_info *out, struct fault *f)
{
    int rc = check_qtensor(b, t, field, f);
    if (rc)
        return rc;
    struct qtensor_info i = qtensor_info(t);
    if (second && !i.transposed)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s_transposed is set, needed a tensor that was cast with a second form",
                         field);
    *out = i;
    if (second) {
        out->rows = i.cols;
        out->cols = i.rows;
    }
    return 0;
}

static int check_accumulate(const struct gemm *g, struct fault *f)
{
    if (!g->accumulate)
        return 0;
    if (g->bias)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "gemm.bias is set together with gemm.accumulate, needed one of them");
    return g->out.dtype == DTYPE_F32
               ? 0
               : fault_set(f, FP8D_EINVALID_ARGUMENT,
                           "gemm.out.dtype is %s, needed F32 to accumulate into",
                           dtype_name(g->out.dtype));
}

int backend_gemm(struct queue *q, const struct gemm *g, struct fault *f)
{
    struct qtensor_info a, b;
    int rc = check_operand(q->backend, g->a, g->a_transposed, "gemm.a", &a, f);
    if (!rc)
        rc = check_operand(q->backend, g->b, g->b_transposed, "gemm.b", &b, f);
    if (rc)
        return rc;
    if (!a.cols) /* of a second form: a cast of no rows */
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "gemm.a.rows (k) is 0, needed at least 1");
    if (a.fmt == DTYPE_F8_E5M2 && b.fmt == DTYPE_F8_E5M2)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "gemm.a and gemm.b are both F8_E5M2, needed at most one");
    rc = check_dim(b.cols, a.cols, "gemm.b.cols (k)", f);
    if (!rc)
        rc = check_gemm_out(q->backend, &g->out, a.rows, b.rows, f);
    if (!rc)
        rc = check_bias(q->backend, g->bias, b.rows, f);
    if (!rc)
        rc = check_accumulate(g, f);
    return rc ? rc : q->backend->ops->gemm(q, g, f);
}

int backend_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f)
{
    int rc = check_tensor(q->backend, &g->a, "gemm.a", f);
    if (!rc)
        rc = check_tensor(q->backend, &g->b, "gemm.b", f);
    if (!rc)
        rc = check_dim(g->b.cols, g->a.cols, "gemm.b.cols (k)", f);
    if (!rc)
        rc = check_gemm_out(q->backend, &g->out, g->a.rows, g->b.rows, f);
    if (!rc)
        rc = check_bias(q->backend, g->bias, g->b.rows, f);
    return rc ? rc : q->backend->ops->gemm_high(q, g, f);
}

int backend_apply(struct queue *q, const struct apply *a, struct fault *f)
{
    if (a->algo != AMAX_MAX && a->algo != AMAX_MOST_RECENT)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "apply.algo is %d, needed 1 (max) or 2 (most_recent)", (int)a->algo);
    if (a->margin < 0 || a->margin > RECIPE_MARGIN_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "apply.margin is %d, needed 0 to %d", a->margin,
                         RECIPE_MARGIN_MAX);
    if (a->count && !a->sites)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "apply.sites is missing");
    for (size_t i = 0; i < a->count; i++) {
        if (!a->sites[i].site)
            return fault_set(f, FP8D_EINVALID_ARGUMENT, "apply.sites[%zu].site is missing", i);
        int rc = a->sites[i].replace ? 0 : check_fp8(a->sites[i].fmt, "apply.sites.fmt", f);
        if (rc)
            return rc;
    }
    return q->backend->ops->apply(q, a, f);
}

int backend_compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                    struct compare_report *report, struct fault *f)
{
    if (!report)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "compare.report is missing");
    int rc = check_tensor(q->backend, a, "compare.a", f);
    if (!rc)
        rc = check_tensor(q->backend, b, "compare.b", f);
    if (!rc)
        rc = check_dim(b->rows, a->rows, "compare.b.rows", f);
    if (!rc)
        rc = check_dim(b->cols, a->cols, "compare.b.cols", f);
    return rc ? rc : q->backend->ops->compare(q, a, b, report, f);
}

int backend_stamp(struct queue *q, uint64_t *at, struct fault *f)
{
    if (!at)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "stamp.at is missing");
    if ((uintptr_t)at % sizeof *at)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "stamp.at is %llu bytes behind a multiple of 8, needed 0",
                         (unsigned long long)((uintptr_t)at % sizeof *at));
    return q->backend->ops->stamp(q, at, f);
}

int backend_norm(struct queue *q, const struct tensor *t, struct norm_report *report,
                 struct fault *f)
{
    if (!report)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "norm.report is missing");
    if ((uintptr_t)report % sizeof(double))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "norm.report is %llu bytes behind a multiple of 8, needed 0",
                         (unsigned long long)((uintptr_t)report % sizeof(double)));
    int rc = check_tensor(q->backend, t, "norm.tensor", f);
    return rc ? rc : q->backend->ops->norm(q, t, report, f);
}

int backend_convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                    struct fault *f)
{
    int rc = check_tensor(q->backend, from, "convert.from", f);
    if (!rc)
        rc = check_tensor(q->backend, to, "convert.to", f);
    if (!rc)
        rc = check_dim(to->rows, from->rows, "convert.to.rows", f);
    if (!rc)
        rc = check_dim(to->cols, from->cols, "convert.to.cols", f);
    if (!rc && from->buf == to->buf)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "convert.from and convert.to are one buffer, needed two");
    return rc ? rc : q->backend->ops->convert(q, from, to, f);
}

int backend_zero(struct queue *q, const struct tensor *t, struct fault *f)
{
    int rc = check_tensor(q->backend, t, "zero.tensor", f);
    return rc ? rc : q->backend->ops->zero(q, t, f);
}
