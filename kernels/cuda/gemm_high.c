/* The high-precision GEMM of calibrate and check: operands of one dtype as they are, mixed ones as
 * float32; float32 accumulators, never TF32; then bias and rounding in a pass of ours. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plan.h"

#define UP512(x) (((x) + 511) & ~(uint64_t)511)

static enum dtype common(const struct gemm_high *g)
{
    return g->a.dtype == g->b.dtype ? g->a.dtype : DTYPE_F32;
}

static uint64_t room_for(const struct tensor *t, enum dtype as)
{
    return UP512(t->rows * t->cols * (dtype_bits(as) / 8));
}

/* In device memory, aligned, and in dtype `as`. */
static bool usable(const struct tensor *t, enum dtype as)
{
    return t->dtype == as && t->buf->kind == BUFFER_DEVICE && (uintptr_t)tensor_data(t) % 16 == 0;
}

static int place(struct cuda_queue *q, const struct tensor *t, enum dtype as, void *room,
                 const void **out, struct fault *f)
{
    *out = tensor_data(t);
    if (usable(t, as))
        return 0;
    *out = room;
    return cuda_check(
        q->cuda, launch_convert(room, as, tensor_data(t), t->dtype, t->rows * t->cols, q->stream),
        f, "converting [%llu, %llu] %s", (unsigned long long)t->rows, (unsigned long long)t->cols,
        dtype_name(t->dtype));
}

struct high_run {
    struct gemm_high g;
    struct tensor bias;
};

static int high_run(struct cuda_queue *q, void *args, struct fault *f)
{
    struct high_run *r = args;
    const struct gemm_high *g = &r->g;
    enum dtype as = common(g);
    uint64_t m = g->a.rows, n = g->b.rows, k = g->a.cols;
    uint64_t room_a = usable(&g->a, as) ? 0 : room_for(&g->a, as);
    uint64_t room_b = usable(&g->b, as) ? 0 : room_for(&g->b, as);
    void *scratch;
    int rc = cuda_scratch(q, room_a + room_b + m * n * sizeof(float), "a high-precision GEMM",
                          &scratch, f);
    if (rc)
        return rc;
    char *at = scratch;
    float *acc = (float *)(void *)(at + room_a + room_b);
    struct plan_call c = {.key = {.m = n, .n = m, .k = k, .ldd = n, .d = DTYPE_F32}, .d = acc};
    c.key.a = c.key.b = (uint8_t)as;
    c.key.reproducible = g->reproducible;
    rc = place(q, &g->a, as, at, &c.b, f);
    if (!rc)
        rc = place(q, &g->b, as, at + room_a, &c.a, f);
    if (!rc)
        rc = plan_run(q, &c, f);
    if (rc)
        return rc;
    struct finish_launch end = {
        .acc = acc,
        .pitch = n,
        .out = tensor_data(&g->out),
        .dtype = g->out.dtype,
        .rows = m,
        .cols = n,
        .bias = g->bias ? tensor_data(&r->bias) : NULL,
        .bias_dtype = g->bias ? r->bias.dtype : DTYPE_NONE,
    };
    return cuda_check(q->cuda, launch_finish(&end, q->stream), f, "the end of a GEMM");
}

int cuda_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f)
{
    struct high_run r = {.g = *g};
    if (!g->a.rows)
        return 0;
    if (g->bias)
        r.bias = *g->bias;
    return cuda_post((struct cuda_queue *)q, high_run, &r, sizeof r, f);
}
