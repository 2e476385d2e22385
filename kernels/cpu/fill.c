/* Tensors made of others without arithmetic: another dtype, zeros. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/queue.h"

#include <string.h>

struct convert_run {
    struct tensor from, to;
};

static void store(const struct tensor *t, uint64_t i, float x)
{
    char *p = tensor_data(t);
    if (x != x)
        x = fp8_bits_float(0x7fc00000u);
    if (t->dtype == DTYPE_F32) {
        memcpy(p + 4 * i, &x, sizeof x);
        return;
    }
    uint16_t half = t->dtype == DTYPE_BF16 ? bf16_encode(x) : f16_encode(x);
    memcpy(p + 2 * i, &half, sizeof half);
}

static void convert_chunk(void *arg, unsigned worker, uint64_t chunk)
{
    const struct convert_run *r = arg;
    uint64_t first = chunk * CPU_CHUNK, n = r->from.rows * r->from.cols;
    uint64_t end = n - first < CPU_CHUNK ? n : first + CPU_CHUNK;
    (void)worker;
    for (uint64_t i = first; i < end; i++)
        store(&r->to, i, tensor_element(&r->from, i));
}

static void convert_execute(struct cpu_queue *q, void *args)
{
    struct convert_run *r = args;
    uint64_t n = r->from.rows * r->from.cols;
    pool_run(&q->pool, convert_chunk, r, (n + CPU_CHUNK - 1) / CPU_CHUNK);
}

int cpu_convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                struct fault *f)
{
    struct convert_run r = {*from, *to};
    return cpu_queue_post((struct cpu_queue *)q, convert_execute, &r, sizeof r, NULL, 0, f);
}

static void zero_execute(struct cpu_queue *q, void *args)
{
    const struct tensor *t = args;
    (void)q;
    memset(tensor_data(t), 0, t->rows * t->cols * (dtype_bits(t->dtype) / 8));
}

int cpu_zero(struct queue *q, const struct tensor *t, struct fault *f)
{
    return cpu_queue_post((struct cpu_queue *)q, zero_execute, t, sizeof *t, NULL, 0, f);
}
