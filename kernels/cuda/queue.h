/* queue.h - a queue of the CUDA backend: a stream, a completion thread, and the stream's scratch.
 *
 * Operations go straight onto the stream. A note is an entry in a list and a value that the stream
 * writes into pinned memory (cuStreamWriteValue32) once all before it is done; the completion
 * thread polls that word for spin_us, then sleeps between looks, and asks the driver about errors
 * only when it has waited for a while: polling a word takes no driver lock away from the thread
 * that launches.
 */
#ifndef FP8D_KERNELS_CUDA_QUEUE_H
#define FP8D_KERNELS_CUDA_QUEUE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"

#define CUDA_WORKSPACE_BYTES ((uint64_t)32 << 20)

struct cuda_queue {
    struct queue base; /* first */
    struct cuda *cuda;
    cudaStream_t stream;
    struct heap_block *workspace; /* of cuBLASLt: one GEMM of a stream runs at a time */
    struct heap_block *sums;      /* struct cast_sums, then a float 1 in a slot of its own */
    struct heap_block *flag_block;
    volatile uint32_t *flag;    /* the last mark that the stream reached, modulo 2^32 */
    struct heap_block *scratch; /* reused in stream order; grows */
    uint64_t enqueued;          /* operations and notes; the enqueuing thread's */
    _Atomic uint64_t posted;    /* the same, for the completion thread's look at lone operations */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct queue_note *head, **tail; /* guarded by lock, as are closing and asleep */
    _Atomic uint64_t notes;          /* ever put into the list */
    bool closing, asleep;
};

int cuda_queue_open(struct backend *b, const char *name, struct queue **out, struct fault *f);
void cuda_queue_close(struct queue *q);
void cuda_notify(struct queue *q, struct queue_note *note);

/* An operation begins: the device is set and not lost, and the operation counts as pending. */
int cuda_begin(struct cuda_queue *q, struct fault *f);

/* Device memory for this operation's stream work alone: the next operation may write it. */
int cuda_scratch(struct cuda_queue *q, uint64_t bytes, const char *what, void **out,
                 struct fault *f);

/* Call fn(arg, status) from the completion thread behind everything enqueued so far. Fails for
 * memory alone. */
typedef void (*cuda_after_cb)(struct cuda_queue *q, void *arg, int status);
int cuda_after(struct cuda_queue *q, cuda_after_cb fn, void *arg, struct fault *f);

static inline struct cast_sums *queue_sums(const struct cuda_queue *q)
{
    return block_address(q->sums);
}

/* A device float of 1 at 16 bytes: the factor of operands that have none. */
static inline float *queue_one(const struct cuda_queue *q)
{
    return (float *)block_address(q->sums) + 64;
}

#endif
