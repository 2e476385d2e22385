/* Operations that move state rather than compute layers: copy, apply, compare, stamp. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/queue.h"

/* A copy between two host addresses would be done by the calling thread, and wait for the stream: a
 * kernel does it instead. All others go to the copy engines. */
int cuda_copy(struct queue *base, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
              uint64_t src_off, uint64_t bytes, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    char *to = (char *)dst->data + dst_off;
    const char *from = (const char *)src->data + src_off;
    int rc = cuda_begin(q, f);
    if (rc || !bytes)
        return rc;
    bool on_host = dst->kind == BUFFER_HOST && src->kind == BUFFER_HOST;
    cudaError_t e = on_host ? launch_copy(to, from, bytes, q->stream)
                            : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream);
    return cuda_check(q->cuda, e, f, "copying %llu bytes", (unsigned long long)bytes);
}

static struct apply_row row_of(const struct apply_site *s)
{
    return (struct apply_row){.site = s->site,
                              .replace = s->replace,
                              .slot = s->slot,
                              .mirror = s->mirror,
                              .fmt = s->fmt};
}

static void give_rows(struct cuda_queue *q, void *arg, int status)
{
    (void)status;
    heap_give(&q->cuda->host_heap, arg);
}

/* More rows than fit the kernel's arguments: from pinned memory, given back behind the kernel. */
static int apply_many(struct cuda_queue *q, const struct apply *a, struct apply_launch *l,
                      struct fault *f)
{
    struct heap_block *b =
        cuda_take_host(q->cuda, a->count * sizeof(struct apply_row), "the rows of an apply", f);
    if (!b)
        return f->code;
    struct apply_row *rows = block_address(b);
    for (size_t i = 0; i < a->count; i++)
        rows[i] = row_of(&a->sites[i]);
    l->rows = rows;
    int rc = cuda_check(q->cuda, launch_apply(l, q->stream), f, "the apply of %zu sites", a->count);
    if (!rc && !cuda_after(q, give_rows, b, &(struct fault){0}))
        return 0;
    /* Without memory for the note the rows are given back here: an apply that was launched changes
     * state, so it must not be reported as one that was not. */
    if (!rc)
        rc = cuda_check(q->cuda, cudaStreamSynchronize(q->stream), f, "the apply of %zu sites",
                        a->count);
    heap_give(&q->cuda->host_heap, b);
    return rc;
}

int cuda_apply(struct queue *base, const struct apply *a, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct apply_row rows[APPLY_ROWS_INLINE];
    struct apply_launch l = {.rows = rows,
                             .count = (uint32_t)a->count,
                             .algo = a->algo,
                             .margin = a->margin,
                             .frozen = a->frozen};
    if (a->count > UINT32_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "apply.count is %zu, needed fewer than 2^32",
                         a->count);
    int rc = cuda_begin(q, f);
    if (rc || !a->count)
        return rc;
    if (a->count > APPLY_ROWS_INLINE)
        return apply_many(q, a, &l, f);
    for (size_t i = 0; i < a->count; i++)
        rows[i] = row_of(&a->sites[i]);
    return cuda_check(q->cuda, launch_apply(&l, q->stream), f, "the apply of %zu sites", a->count);
}

int cuda_compare(struct queue *base, const struct tensor *a, const struct tensor *b,
                 struct compare_report *report, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    void *partial;
    int rc = cuda_begin(q, f);
    if (!rc)
        rc = cuda_scratch(q, COMPARE_BLOCKS * sizeof *report, "a comparison", &partial, f);
    if (rc)
        return rc;
    return cuda_check(q->cuda,
                      launch_compare(tensor_data(a), a->dtype, tensor_data(b), b->dtype,
                                     a->rows * a->cols, partial, report, q->stream),
                      f, "comparing [%llu, %llu]", (unsigned long long)a->rows,
                      (unsigned long long)a->cols);
}

int cuda_stamp(struct queue *base, uint64_t *at, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    int rc = cuda_begin(q, f);
    return rc ? rc : cuda_check(q->cuda, launch_stamp(at, q->stream), f, "reading the clock");
}
