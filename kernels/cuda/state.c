/* Operations that move state rather than compute layers: copy, apply, compare, stamp. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/queue.h"

struct copy_run {
    char *to;
    const char *from;
    uint64_t bytes;
    bool on_host;
};

/* A copy between two host addresses would be done by the calling thread, and wait for the stream: a
 * kernel does it instead. All others go to the copy engines. */
static int copy_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct copy_run *r = args;
    cudaError_t e = r->on_host
                        ? launch_copy(r->to, r->from, r->bytes, q->stream)
                        : cudaMemcpyAsync(r->to, r->from, r->bytes, cudaMemcpyDefault, q->stream);
    return cuda_check(q->cuda, e, f, "copying %llu bytes", (unsigned long long)r->bytes);
}

int cuda_copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
              uint64_t src_off, uint64_t bytes, struct fault *f)
{
    struct copy_run r = {
        .to = (char *)dst->data + dst_off,
        .from = (const char *)src->data + src_off,
        .bytes = bytes,
        .on_host = dst->kind == BUFFER_HOST && src->kind == BUFFER_HOST,
    };
    return bytes ? cuda_post((struct cuda_queue *)q, copy_run, &r, sizeof r, f) : 0;
}

static struct apply_row row_of(const struct apply_site *s)
{
    return (struct apply_row){.site = s->site,
                              .replace = s->replace,
                              .slot = s->slot,
                              .mirror = s->mirror,
                              .fmt = s->fmt,
                              .collect = s->collect};
}

struct apply_run {
    struct apply_launch launch;
    struct apply_row rows[APPLY_ROWS_INLINE];
    struct heap_block *block; /* pinned memory of more rows than these, or NULL */
};

static void give_rows(struct cuda_queue *q, void *arg, int status)
{
    (void)status;
    heap_give(&q->cuda->host_heap, arg);
}

static int apply_run(struct cuda_queue *q, void *args, struct fault *f)
{
    struct apply_run *r = args;
    bool skip = q->failed.code || q->cuda->lost;
    r->launch.rows = r->block ? block_address(r->block) : r->rows;
    int rc = skip ? 0
                  : cuda_check(q->cuda, launch_apply(&r->launch, q->stream), f,
                               "the apply of %u sites", r->launch.count);
    if (!r->block || !cuda_after(q, give_rows, r->block, &(struct fault){0}))
        return rc;
    /* Without memory for the note the rows are given back here: an apply that was launched changes
     * state, so it must not be reported as one that was not. */
    (void)cudaStreamSynchronize(q->stream);
    give_rows(q, r->block, 0);
    return rc;
}

/* Rows that are read by the device until the kernel has run. */
static int place_rows(struct cuda_queue *q, const struct apply *a, struct apply_run *r,
                      struct fault *f)
{
    struct apply_row *rows = r->rows;
    if (a->count > APPLY_ROWS_INLINE) {
        r->block = cuda_take_host(q->cuda, a->count * sizeof *rows, "the rows of an apply", f);
        if (!r->block)
            return f->code;
        rows = block_address(r->block);
    }
    for (size_t i = 0; i < a->count; i++)
        rows[i] = row_of(&a->sites[i]);
    return 0;
}

int cuda_apply(struct queue *base, const struct apply *a, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct apply_run r = {.launch = {.count = (uint32_t)a->count,
                                     .algo = a->algo,
                                     .margin = a->margin,
                                     .frozen = a->frozen}};
    if (a->count > UINT32_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "apply.count is %zu, needed fewer than 2^32",
                         a->count);
    if (!a->count)
        return 0;
    int rc = place_rows(q, a, &r, f);
    if (!rc)
        rc = cuda_post_always(q, apply_run, &r, sizeof r, f);
    if (rc)
        heap_give(&q->cuda->host_heap, r.block);
    return rc;
}

struct compare_run {
    struct tensor a, b;
    struct compare_report *report;
};

static int compare_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct compare_run *r = args;
    void *partial;
    int rc = cuda_scratch(q, COMPARE_BLOCKS * sizeof *r->report, "a comparison", &partial, f);
    return rc ? rc
              : cuda_check(q->cuda,
                           launch_compare(tensor_data(&r->a), r->a.dtype, tensor_data(&r->b),
                                          r->b.dtype, r->a.rows * r->a.cols, partial, r->report,
                                          q->stream),
                           f, "comparing [%llu, %llu]", (unsigned long long)r->a.rows,
                           (unsigned long long)r->a.cols);
}

int cuda_compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                 struct compare_report *report, struct fault *f)
{
    struct compare_run r = {*a, *b, report};
    return cuda_post((struct cuda_queue *)q, compare_run, &r, sizeof r, f);
}

/* Fails nothing: what is around it may have changed state already. */
static int stamp_run(struct cuda_queue *q, void *args, struct fault *f)
{
    (void)cuda_check(q->cuda, launch_stamp(*(uint64_t **)args, q->stream), f, "reading the clock");
    return 0;
}

int cuda_stamp(struct queue *q, uint64_t *at, struct fault *f)
{
    return cuda_post((struct cuda_queue *)q, stamp_run, &at, sizeof at, f);
}
