/* The FP8 GEMM. Which way it goes is a pure function of the description (route_of):
 *   direct  cuBLASLt writes the output, with both factors and the bias in its epilogue, or adds to
 *           what is there;
 *   add     the same without bias, which a pass of ours adds (float32 output, bias not bf16);
 *   finish  operands padded to multiples of 16, float32 accumulators in scratch, and a pass of ours
 *           for factors, bias or addition, and rounding.
 * Rows of a second form are padded with zeros already, so that a gradient over any number of tokens
 * goes the direct way: the zeros are multiplied along. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plan.h"
#include "kernels/qtensor_impl.h"

#define UP16(x) (((x) + 15) & ~(uint64_t)15)
#define UP512(x) (((x) + 511) & ~(uint64_t)511)

enum route { ROUTE_DIRECT, ROUTE_ADD, ROUTE_FINISH };

/* cuBLASLt may write there: device memory at a multiple of 16. */
static bool is_plain(const struct tensor *t)
{
    return t->buf->kind == BUFFER_DEVICE && (uintptr_t)tensor_data(t) % 16 == 0;
}

/* k as it is multiplied: its rows are that long, zeros included. */
static bool is_padded(const struct qtensor_form *form)
{
    return form->pitch % 16 == 0 && form->pitch >= UP16(form->cols);
}

static enum route route_of(const struct gemm *g, const struct qtensor_form *a,
                           const struct qtensor_form *b)
{
    if (b->rows % 16 || !is_padded(a) || !is_padded(b))
        return ROUTE_FINISH;
    if (g->accumulate)
        return is_plain(&g->out) ? ROUTE_DIRECT : ROUTE_FINISH;
    /* A float32 output takes a bf16 bias alone (facts 1.1). */
    if (g->bias && g->out.dtype == DTYPE_F32 && g->bias->dtype != DTYPE_BF16)
        return ROUTE_ADD;
    return ROUTE_DIRECT;
}

static uint64_t tensor_size(const struct tensor *t)
{
    return t->rows * t->cols * (dtype_bits(t->dtype) / 8);
}

static const float *factor_of(const struct qtensor *t)
{
    return (const float *)(const void *)((const char *)t->mem->data + t->factor_offset);
}

/* What is enqueued around the GEMM, in scratch. */
struct gemm_run {
    struct cuda_queue *q;
    const struct gemm *g;
    struct qtensor_form a, b;
    uint64_t m, n, k;
    char *scratch;
    void *d;          /* where cuBLASLt writes */
    const void *bias; /* as the epilogue wants it, or NULL */
};

static int padded(struct gemm_run *r, const struct qtensor_form *t, uint64_t rows, uint64_t k16,
                  void *room, const void **out, struct fault *f)
{
    *out = t->codes;
    if (t->pitch == k16 && t->rows == rows)
        return 0;
    *out = room;
    return cuda_check(
        r->q->cuda, launch_pad(room, rows, k16, t->codes, t->rows, t->cols, t->pitch, r->q->stream),
        f, "padding [%llu, %llu] FP8", (unsigned long long)t->rows, (unsigned long long)t->cols);
}

static int finish(struct gemm_run *r, const float *acc, uint64_t pitch, bool factors,
                  struct fault *f)
{
    const struct gemm *g = r->g;
    struct finish_launch a = {
        .acc = acc,
        .pitch = pitch,
        .out = tensor_data(&g->out),
        .dtype = g->out.dtype,
        .rows = r->m,
        .cols = r->n,
        .factor_a = factors ? factor_of(g->a) : NULL,
        .factor_b = factors ? factor_of(g->b) : NULL,
        .bias = g->bias ? tensor_data(g->bias) : NULL,
        .bias_dtype = g->bias ? g->bias->dtype : DTYPE_NONE,
        .accumulate = g->accumulate,
    };
    return cuda_check(r->q->cuda, launch_finish(&a, r->q->stream), f, "the end of a GEMM");
}

/* Padding is zeros, rows and columns of it are never looked at. */
static int run_finish(struct gemm_run *r, struct fault *f)
{
    const struct gemm *g = r->g;
    uint64_t n16 = UP16(r->n), k16 = UP16(r->k);
    uint64_t size_a = UP512(n16 * k16), size_b = UP512(r->m * k16);
    void *scratch;
    int rc = cuda_scratch(r->q, size_a + size_b + r->m * n16 * sizeof(float), "a padded GEMM",
                          &scratch, f);
    if (rc)
        return rc;
    r->scratch = scratch;
    float *acc = (float *)(void *)(r->scratch + size_a + size_b);
    struct plan_call c = {
        .key = {.m = n16, .n = r->m, .k = k16, .ldd = n16, .d = DTYPE_F32},
        .d = acc,
        .factor_a = queue_one(r->q),
        .factor_b = queue_one(r->q),
    };
    c.key.a = (uint8_t)g->b->fmt;
    c.key.b = (uint8_t)g->a->fmt;
    c.key.fast = !g->precise;
    c.key.reproducible = g->reproducible;
    rc = padded(r, &r->b, n16, k16, r->scratch, &c.a, f);
    if (!rc)
        rc = padded(r, &r->a, r->m, k16, r->scratch + size_a, &c.b, f);
    if (!rc)
        rc = plan_run(r->q, &c, f);
    return rc ? rc : finish(r, acc, n16, true, f);
}

/* The bias in the dtype that the epilogue reads, at 16 bytes; converted into scratch if need be. */
static int place_bias(struct gemm_run *r, void *room, struct fault *f)
{
    const struct tensor *bias = r->g->bias;
    enum dtype wanted = r->g->out.dtype == DTYPE_F32 ? DTYPE_BF16 : r->g->out.dtype;
    r->bias = tensor_data(bias);
    if (bias->dtype == wanted && is_plain(bias))
        return 0;
    r->bias = room;
    return cuda_check(
        r->q->cuda,
        launch_convert(room, wanted, tensor_data(bias), bias->dtype, r->n, r->q->stream), f,
        "converting a bias of %llu", (unsigned long long)r->n);
}

static int run_blas(struct gemm_run *r, bool with_bias, struct fault *f)
{
    const struct gemm *g = r->g;
    struct plan_call c = {
        .key = {.m = r->n, .n = r->m, .k = UP16(r->k), .ldd = r->n},
        .a = r->b.codes,
        .b = r->a.codes,
        .d = r->d,
        .bias = with_bias ? r->bias : NULL,
        .factor_a = factor_of(g->b),
        .factor_b = factor_of(g->a),
    };
    c.key.a = (uint8_t)g->b->fmt;
    c.key.b = (uint8_t)g->a->fmt;
    c.key.d = (uint8_t)g->out.dtype;
    c.key.fast = !g->precise;
    c.key.reproducible = g->reproducible;
    c.key.accumulate = g->accumulate;
    if (with_bias)
        c.key.bias = (uint8_t)(g->out.dtype == DTYPE_F32 ? DTYPE_BF16 : g->out.dtype);
    return plan_run(r->q, &c, f);
}

/* Output and bias where cuBLASLt can reach them; then the output where it was wanted. */
static int run_direct(struct gemm_run *r, bool add, struct fault *f)
{
    const struct tensor *out = &r->g->out;
    bool plain = is_plain(out);
    uint64_t room = plain ? 0 : UP512(tensor_size(out));
    void *scratch;
    int rc = cuda_scratch(r->q, room + r->n * sizeof(float), "the ends of a GEMM", &scratch, f);
    if (rc)
        return rc;
    r->d = plain ? tensor_data(out) : scratch;
    bool with_bias = r->g->bias && !add;
    if (with_bias)
        rc = place_bias(r, (char *)scratch + room, f);
    if (!rc)
        rc = run_blas(r, with_bias, f);
    if (rc)
        return rc;
    if (add)
        return finish(r, r->d, r->n, false, f);
    return plain ? 0
                 : cuda_check(r->q->cuda,
                              cudaMemcpyAsync(tensor_data(out), r->d, tensor_size(out),
                                              cudaMemcpyDefault, r->q->stream),
                              f, "copying an output of %llu bytes",
                              (unsigned long long)tensor_size(out));
}

#ifdef FP8D_MUTANT_SITE_SCALE
/* Through the tensor's own place: cuBLASLt wants a factor at 16 bytes, and the site has it at 4. */
static int take_from_site(struct cuda_queue *q, const struct qtensor *t, struct fault *f)
{
    void *to = (char *)t->mem->data + t->factor_offset;
    return !t->site ? 0
                    : cuda_check(q->cuda,
                                 cudaMemcpyAsync(to, &t->site->scale_inv, sizeof(float),
                                                 cudaMemcpyDefault, q->stream),
                                 f, "a planted fault");
}
#endif

/* As it waits for the launching thread: the bias by value. */
struct gemm_call {
    struct gemm g;
    struct tensor bias;
};

static int gemm_run(struct cuda_queue *q, void *args, struct fault *f)
{
    struct gemm_call *call = args;
    const struct gemm *g = &call->g;
    struct gemm_run r = {
        .q = q,
        .g = g,
        .a = qtensor_form(g->a, g->a_transposed),
        .b = qtensor_form(g->b, g->b_transposed),
    };
    int rc = 0;
    r.m = r.a.rows;
    r.n = r.b.rows;
    r.k = r.a.cols;
    if (g->bias)
        call->g.bias = &call->bias;
#ifdef FP8D_MUTANT_SITE_SCALE
    rc = take_from_site(q, g->a, f);
    rc = rc ? rc : take_from_site(q, g->b, f);
    if (rc)
        return rc;
#endif
    switch (route_of(g, &r.a, &r.b)) {
    case ROUTE_FINISH:
        return run_finish(&r, f);
    case ROUTE_ADD:
        return run_direct(&r, true, f);
    default:
        rc = run_direct(&r, false, f);
        /* No algorithm with this epilogue: the bias is a pass of its own. */
        return rc == FP8D_EUNIMPLEMENTED ? run_finish(&r, f) : rc;
    }
}

int cuda_gemm(struct queue *q, const struct gemm *g, struct fault *f)
{
    struct gemm_call call = {.g = *g};
    if (!qtensor_form(g->a, g->a_transposed).rows)
        return 0;
    if (g->bias)
        call.bias = *g->bias;
    return cuda_post((struct cuda_queue *)q, gemm_run, &call, sizeof call, f);
}
