#include "kernels/cuda/tune.h"

#include <stdlib.h>

#define STEP 512u

struct tune {
    struct cuda_queue *q;
    struct heap_block *memory;
    struct tune_operands o;
    void *flush;
    uint64_t flush_bytes;
    cudaEvent_t begin, end;
    float ms[TUNE_CANDIDATES][TUNE_ROUNDS];
};

static uint64_t bytes_of(uint64_t count, enum dtype t)
{
    return (count * (dtype_bits(t) / 8) + STEP - 1) & ~(uint64_t)(STEP - 1);
}

static void *part(char **at, uint64_t bytes)
{
    void *p = *at;
    *at += bytes;
    return p;
}

static int fill(struct tune *t, const struct tune_shape *s, struct fault *f)
{
    cudaStream_t stream = t->q->stream;
    cudaError_t e = launch_fill(t->o.a, s->a, s->count_a, 1, stream);
    if (!e)
        e = launch_fill(t->o.b, s->b, s->count_b, 2, stream);
    if (!e && s->bias)
        e = launch_fill(t->o.bias, s->bias, s->count_bias, 3, stream);
    if (!e && s->reads_d)
        e = launch_fill(t->o.d, s->d, s->count_d, 4, stream);
    if (!e)
        e = cudaEventCreate(&t->begin);
    if (!e)
        e = cudaEventCreate(&t->end);
    return cuda_check(t->q->cuda, e, f, "preparing to time a GEMM");
}

static int prepare(struct tune *t, const struct tune_shape *s, struct fault *f)
{
    uint64_t a = bytes_of(s->count_a, s->a), b = bytes_of(s->count_b, s->b);
    uint64_t d = bytes_of(s->count_d, s->d);
    uint64_t bias = s->bias ? bytes_of(s->count_bias, s->bias) : 0;
    t->flush_bytes = 2 * t->q->cuda->l2_bytes;
    t->memory = cuda_take_device(t->q->cuda, a + b + d + bias + t->flush_bytes, "timing a GEMM", f);
    if (!t->memory)
        return f->code;
    char *at = block_address(t->memory);
    t->o.a = part(&at, a);
    t->o.b = part(&at, b);
    t->o.d = part(&at, d);
    t->o.bias = s->bias ? part(&at, bias) : NULL;
    t->flush = at;
    return fill(t, s, f);
}

/* One run, in ms; negative if the candidate does not run. */
static float time_one(struct tune *t, const cublasLtMatmulHeuristicResult_t *candidate,
                      tune_run_cb run, void *arg, struct fault *f)
{
    float ms = -1.0f;
    cudaStream_t stream = t->q->stream;
    cudaError_t e = cudaMemsetAsync(t->flush, 0x5a, t->flush_bytes, stream);
    if (!e)
        e = cudaEventRecord(t->begin, stream);
    if (e || run(arg, &t->o, candidate, f))
        return -1.0f;
    e = cudaEventRecord(t->end, stream);
    if (!e)
        e = cudaEventSynchronize(t->end);
    if (!e)
        e = cudaEventElapsedTime(&ms, t->begin, t->end);
    return cuda_check(t->q->cuda, e, f, "timing a GEMM") ? -1.0f : ms;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int fastest(struct tune *t, int count)
{
    int best = 0;
    float least = 0.0f;
    for (int i = 0; i < count; i++) {
        qsort(t->ms[i], TUNE_ROUNDS, sizeof t->ms[i][0], by_value);
        float median = t->ms[i][TUNE_ROUNDS / 2];
        if (t->ms[i][0] >= 0.0f && (least <= 0.0f || median < least)) {
            least = median;
            best = i;
        }
    }
    return best;
}

int tune_best(struct cuda_queue *q, const struct tune_shape *s,
              const cublasLtMatmulHeuristicResult_t *candidates, int count, tune_run_cb run,
              void *arg)
{
    struct tune t = {.q = q};
    struct fault f;
    int best = 0;
    if (count < 2)
        return 0;
    if (!prepare(&t, s, &f)) {
        for (int i = 0; i < count; i++) /* loads the code, which takes milliseconds */
            (void)time_one(&t, &candidates[i], run, arg, &f);
        for (int round = 0; round < TUNE_ROUNDS; round++)
            for (int i = 0; i < count; i++)
                t.ms[i][round] = time_one(&t, &candidates[i], run, arg, &f);
        best = fastest(&t, count);
    }
    if (t.begin)
        (void)cudaEventDestroy(t.begin);
    if (t.end)
        (void)cudaEventDestroy(t.end);
    (void)cudaStreamSynchronize(q->stream); /* the memory is dealt again */
    heap_give(&q->cuda->device_heap, t.memory);
    return best;
}
