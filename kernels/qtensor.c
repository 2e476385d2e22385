#include "kernels/qtensor.h"

#include "base/checked.h"
#include "base/mem.h"
#include "kernels/qtensor_impl.h"
#include "kernels/tensor_check.h"

/* The least factor that fp8d makes or takes: 1/FLT_MAX rounded (docs/numerics.md 1). */
#define LEAST_FACTOR 0x1p-128f

/* Codes, then the factor at a multiple of 64. */
static bool layout(uint64_t rows, uint64_t cols, uint64_t *factor_at, uint64_t *bytes)
{
    uint64_t codes;
    return ck_mul(rows, cols, &codes) && ck_round_up(codes, 64, factor_at) &&
           ck_add(*factor_at, sizeof(float), bytes);
}

uint64_t qtensor_room(uint64_t rows, uint64_t cols)
{
    uint64_t at;
    uint64_t bytes;
    return layout(rows, cols, &at, &bytes) ? bytes : UINT64_MAX;
}

static int too_large(uint64_t rows, uint64_t cols, const char *what, struct fault *f)
{
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is [%llu, %llu], needed fewer than 2^64 bytes",
                     what, (unsigned long long)rows, (unsigned long long)cols);
}

/* A description without memory. */
static int describe(enum dtype fmt, uint64_t rows, uint64_t cols, const char *what,
                    struct qtensor **out, struct fault *f)
{
    uint64_t at;
    uint64_t bytes;
    if (!layout(rows, cols, &at, &bytes))
        return too_large(rows, cols, what, f);
    struct qtensor *t = mem_zalloc(sizeof *t);
    if (!t)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "%s: no memory for its description", what);
    atomic_init(&t->refs, 1);
    t->fmt = fmt;
    t->granularity = GRANULARITY_TENSOR;
    t->rows = rows;
    t->cols = cols;
    t->factor_offset = at;
    t->factors = 1;
    *out = t;
    return 0;
}

/* The second form behind the first; `bytes` is what both take. */
static bool add_second(struct qtensor *t, uint64_t *bytes)
{
    uint64_t second;
    return ck_round_up(t->rows, QTENSOR_PITCH, &t->second_pitch) &&
           ck_round_up(*bytes, 256, &t->second_offset) &&
           ck_mul(t->second_pitch, t->cols, &second) && ck_add(t->second_offset, second, bytes);
}

/* A tensor with its allocation, codes and factor not yet written: only to be filled by the backend
 * operation that is enqueued next. */
static int qtensor_alloc(struct backend *b, struct ledger *l, enum dtype fmt, uint64_t rows,
                         uint64_t cols, bool second, const char *what, struct qtensor **out,
                         struct fault *f)
{
    struct qtensor *t;
    int rc = describe(fmt, rows, cols, what, &t, f);
    if (rc)
        return rc;
    uint64_t bytes = qtensor_room(rows, cols);
    rc = !second || add_second(t, &bytes) ? 0 : too_large(rows, cols, what, f);
    if (!rc)
        rc = buffer_new(b, l, BUFFER_DEVICE, bytes, what, &t->mem, f);
    if (rc) {
        mem_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

/* All but the source. */
static int check_cast_way(const struct cast *c, struct fault *f)
{
    if (c->mode != CAST_SITE && c->mode != CAST_SITE_OR_TENSOR && c->mode != CAST_TENSOR)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "cast.mode is %d, needed 1, 2 or 3",
                         (int)c->mode);
    if (c->margin < 0 || c->margin > RECIPE_MARGIN_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "cast.margin is %d, needed 0 to %d", c->margin,
                         RECIPE_MARGIN_MAX);
    if (!c->site && c->mode != CAST_TENSOR)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "cast.site is missing");
    if (!c->report)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "cast.report is missing");
    return check_fp8(c->fmt, "cast.fmt", f);
}

static int check_sums(const struct backend *b, const struct cast *c, struct fault *f)
{
    if (!c->sums.buf)
        return 0;
    int rc = check_tensor(b, &c->sums, "cast.sums", f);
    if (!rc && c->sums.dtype != DTYPE_F32)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "cast.sums.dtype is %s, needed F32",
                       dtype_name(c->sums.dtype));
    if (!rc)
        rc = check_dim(c->sums.rows, 1, "cast.sums.rows", f);
    if (!rc)
        rc = check_dim(c->sums.cols, c->src.cols, "cast.sums.cols", f);
    return rc ? rc : check_apart(&c->sums, "cast.sums", &c->src, "cast.src", f);
}

static int check_cast(const struct backend *b, const struct cast *c, struct fault *f)
{
    int rc = check_cast_way(c, f);
    if (!rc)
        rc = check_tensor(b, &c->src, "cast.src", f);
    return rc ? rc : check_sums(b, c, f);
}

int qtensor_cast(struct queue *q, struct ledger *l, const struct cast *c, const char *what,
                 struct qtensor **out, struct fault *f)
{
    struct qtensor *t = NULL;
    int rc = check_cast(q->backend, c, f);
    if (!rc)
        rc = qtensor_alloc(q->backend, l, c->fmt, c->src.rows, c->src.cols, c->transposed, what, &t,
                           f);
    if (!rc)
        rc = q->backend->ops->cast(q, c, t, f);
    if (rc) {
        qtensor_unref(t);
        return rc;
    }
    *out = t;
    return 0;
}

static int check_update_cast(const struct backend *b, const struct update *u, const struct cast *c,
                             struct fault *f)
{
    if (c->mode != CAST_SITE)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "cast.mode is %d, needed 1 (site)",
                         (int)c->mode);
    if (c->sums.buf)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "cast.sums has a buffer, needed none for the cast of an update");
    int rc = check_cast_way(c, f);
    return rc ? rc : check_update(b, u, f);
}

int qtensor_update(struct queue *q, struct ledger *l, const struct update *u, const struct cast *c,
                   const char *what, struct qtensor **out, struct fault *f)
{
    struct qtensor *t = NULL;
    int rc = check_update_cast(q->backend, u, c, f);
    if (!rc)
        rc = qtensor_alloc(q->backend, l, c->fmt, u->master.rows, u->master.cols, c->transposed,
                           what, &t, f);
    if (!rc)
        rc = q->backend->ops->update(q, u, c, t, f);
    if (rc) {
        qtensor_unref(t);
        return rc;
    }
    *out = t;
    return 0;
}

static int check_adopt(const struct backend *b, enum dtype fmt, uint64_t rows, uint64_t cols,
                       const struct buffer *bytes, uint64_t offset, float scale_inv,
                       struct fault *f)
{
    uint64_t codes;
    int rc = check_fp8(fmt, "adopt.fmt", f);
    if (rc)
        return rc;
    if (!cols)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "adopt.cols is 0, needed at least 1");
    if (!ck_mul(rows, cols, &codes))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "adopt is [%llu, %llu], needed fewer than 2^64 bytes",
                         (unsigned long long)rows, (unsigned long long)cols);
    if (!(scale_inv >= LEAST_FACTOR && scale_inv <= FP8_FLT_MAX))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "adopt.scale_inv is %g, needed finite and at least 2^-128",
                         (double)scale_inv);
    return check_range(b, bytes, offset, codes, "adopt.bytes", f);
}

int qtensor_adopt(struct queue *q, struct ledger *l, enum dtype fmt, uint64_t rows, uint64_t cols,
                  struct buffer *bytes, uint64_t offset, float scale_inv, const char *what,
                  struct qtensor **out, struct fault *f)
{
    struct qtensor *t = NULL;
    int rc = check_adopt(q->backend, fmt, rows, cols, bytes, offset, scale_inv, f);
    if (!rc)
        rc = qtensor_alloc(q->backend, l, fmt, rows, cols, false, what, &t, f);
    if (!rc)
        rc = q->backend->ops->adopt(q, bytes, offset, scale_inv, t, f);
    if (rc) {
        qtensor_unref(t);
        return rc;
    }
    *out = t;
    return 0;
}

int qtensor_adopt_buffer(struct queue *q, enum dtype fmt, uint64_t rows, uint64_t cols,
                         struct buffer *codes, float scale_inv, struct qtensor **out,
                         struct fault *f)
{
    struct qtensor *t = NULL;
    int rc = check_adopt(q->backend, fmt, rows, cols, codes, 0, scale_inv, f);
    if (!rc && (codes->kind != BUFFER_DEVICE || codes->bytes != qtensor_room(rows, cols) ||
                atomic_load(&codes->refs) != 1))
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "adopt.codes: %llu bytes held %u times, needed %llu of the device held once",
                       (unsigned long long)codes->bytes, atomic_load(&codes->refs),
                       (unsigned long long)qtensor_room(rows, cols));
    if (!rc)
        rc = describe(fmt, rows, cols, "the FP8 tensor", &t, f);
    if (rc)
        return rc;
    t->mem = codes;
    rc = q->backend->ops->adopt(q, codes, 0, scale_inv, t, f); /* the codes stand there already */
    if (rc) {
        mem_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

int check_qtensor(const struct backend *b, const struct qtensor *t, const char *field,
                  struct fault *f)
{
    if (!t)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is missing", field);
    if (t->mem->backend != b)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is memory of another backend", field);
    return 0;
}

int qtensor_export(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg,
                   struct fault *f)
{
    if (!cb)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "export.cb is missing");
    int rc = check_qtensor(q->backend, t, "export.tensor", f);
    return rc ? rc : q->backend->ops->export_qtensor(q, t, cb, arg, f);
}

int qtensor_transpose(struct queue *q, struct ledger *l, const struct qtensor *t, const char *what,
                      struct qtensor **out, struct fault *f)
{
    struct qtensor *made = NULL;
    int rc = check_qtensor(q->backend, t, "transpose.tensor", f);
    if (!rc && !t->rows) /* a tensor without columns does not exist */
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "transpose.tensor.rows is 0, needed at least 1");
    if (!rc)
        rc = qtensor_alloc(q->backend, l, t->fmt, t->cols, t->rows, false, what, &made, f);
    if (!rc)
        rc = q->backend->ops->transpose(q, t, made, f);
    if (rc) {
        qtensor_unref(made);
        return rc;
    }
    *out = made;
    return 0;
}

int qtensor_dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                       struct fault *f)
{
    int rc = check_qtensor(q->backend, t, "dequantize.tensor", f);
    if (!rc)
        rc = check_tensor(q->backend, out, "dequantize.out", f);
    if (!rc)
        rc = check_dim(out->rows, t->rows, "dequantize.out.rows", f);
    if (!rc)
        rc = check_dim(out->cols, t->cols, "dequantize.out.cols", f);
    return rc ? rc : q->backend->ops->dequantize(q, t, out, f);
}

struct qtensor_info qtensor_info(const struct qtensor *t)
{
    return (struct qtensor_info){.fmt = t->fmt,
                                 .granularity = t->granularity,
                                 .rows = t->rows,
                                 .cols = t->cols,
                                 .bytes = t->mem->charged,
                                 .transposed = t->second_offset != 0};
}

struct qtensor *qtensor_ref(struct qtensor *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void qtensor_unref(struct qtensor *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    buffer_unref(t->mem);
    mem_free(t);
}
