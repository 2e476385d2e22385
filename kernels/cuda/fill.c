/* Tensors made of others without arithmetic: another dtype, zeros. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/queue.h"

struct convert_run {
    struct tensor from, to;
};

static int convert_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct convert_run *r = args;
    return cuda_check(q->cuda,
                      launch_convert(tensor_data(&r->to), r->to.dtype, tensor_data(&r->from),
                                     r->from.dtype, r->to.rows * r->to.cols, q->stream),
                      f, "converting [%llu, %llu] %s to %s", (unsigned long long)r->to.rows,
                      (unsigned long long)r->to.cols, dtype_name(r->from.dtype),
                      dtype_name(r->to.dtype));
}

int cuda_convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                 struct fault *f)
{
    struct convert_run r = {*from, *to};
    return cuda_post((struct cuda_queue *)q, convert_run, &r, sizeof r, f);
}

static int zero_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct tensor *t = args;
    uint64_t bytes = t->rows * t->cols * (dtype_bits(t->dtype) / 8);
    return bytes ? cuda_check(q->cuda, cudaMemsetAsync(tensor_data(t), 0, bytes, q->stream), f,
                              "zeroing %llu bytes", (unsigned long long)bytes)
                 : 0;
}

int cuda_zero(struct queue *q, const struct tensor *t, struct fault *f)
{
    return cuda_post((struct cuda_queue *)q, zero_run, t, sizeof *t, f);
}
