/* queue.h - a queue of the CUDA backend: a stream, the thread that launches on it, the thread that
 * sees it complete, and the stream's scratch.
 *
 * The enqueuing thread never calls CUDA: an operation is a function over a copy of its arguments,
 * put into a list (launch_thread.c). The launching thread takes them in order, launches, and times
 * a GEMM's algorithms where a shape is new; what it cannot launch fails the next note, and what
 * lies between is left out. A note is a value that the stream writes into pinned memory
 * (cuStreamWriteValue32) once all before it is done; the completion thread (queue.c) polls that
 * word for a while, then sleeps between looks, and asks the driver about errors only when it has
 * waited for a while: polling a word takes no driver lock away from the thread that launches.
 */
#ifndef FP8D_KERNELS_CUDA_QUEUE_H
#define FP8D_KERNELS_CUDA_QUEUE_H

#include "kernels/cuda/clock.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"

#define CUDA_WORKSPACE_BYTES ((uint64_t)32 << 20)

struct cuda_op;

/* What waits to be launched: two lists that share one numbering, `turn`. Guarded by lock; posted is
 * read without it, launched is the launching thread's. */
struct launch_list {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct cuda_op *ops, **ops_tail;
    struct queue_note *notes, **notes_tail;
    bool closing, asleep;
    struct cuda_op *aside, **aside_tail; /* held back; the enqueuing thread's, as is held */
    bool held;
    _Atomic uint64_t posted;   /* operations and notes ever enqueued: the turn of the last one */
    _Atomic uint64_t launched; /* the turn of the last one that is on the stream */
};

struct cuda_queue {
    struct queue base; /* first */
    struct cuda *cuda;
    cudaStream_t stream;
    struct heap_block *workspace; /* of cuBLASLt: one GEMM of a stream runs at a time */
    struct heap_block *sums;      /* struct cast_sums, then a float 1 in a slot of its own */
    struct heap_block *flag_block;
    volatile uint32_t *flag;    /* the last mark that the stream reached, modulo 2^32 */
    struct heap_block *scratch; /* reused in stream order; grows. The launching thread's, as are */
    uint64_t marks;             /* the marks given out, and */
    struct fault failed;        /* the first failure since the last note; code 0: none */
    uint64_t failed_turn;       /* of the last note that reported one; 0: none did */
    struct launch_list list;
    pthread_t thread; /* of completion */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct queue_note *head, **tail; /* guarded by lock, as are closing and asleep */
    _Atomic uint64_t notes;          /* ever put into the list */
    bool closing, asleep;
};

int cuda_queue_open(struct backend *b, const char *name, struct queue **out, struct fault *f);
void cuda_queue_close(struct queue *q);

/* --- the enqueuing thread --- */

/* On the launching thread; args is the copy. */
typedef int (*cuda_op_cb)(struct cuda_queue *q, void *args, struct fault *f);

/* Enqueue run() over a copy of args. Fails for memory, and once the device is lost. */
int cuda_post(struct cuda_queue *q, cuda_op_cb run, const void *args, size_t size, struct fault *f);
/* The same, run also where an operation before it failed (q->failed tells) or the device is lost:
 * for those that give something back. */
int cuda_post_always(struct cuda_queue *q, cuda_op_cb run, const void *args, size_t size,
                     struct fault *f);
void cuda_notify(struct queue *q, struct queue_note *note);
void cuda_hold(struct queue *q);
void cuda_release(struct queue *q, bool run);
int cuda_follow(struct queue *q, const struct queue_note *note, struct fault *f);

/* Waits until everything enqueued is on the stream. For tests and benchmarks, which look at the
 * stream itself. */
static inline void cuda_drain(const struct cuda_queue *q)
{
    while (q->list.launched != q->list.posted)
        relax();
}

/* How long a thread of the queue looks for work before it sleeps. */
static inline uint64_t cuda_spin_ns(const struct cuda_queue *q)
{
    return atomic_load(&q->base.pending) ? q->cuda->busy_spin_ns : q->cuda->idle_spin_ns;
}

/* A thread of the queue, signals blocked. */
int cuda_thread(pthread_t *thread, const char *name, void *(*main)(void *), struct cuda_queue *q,
                struct fault *f);

/* --- the launching thread --- */

int launch_list_open(struct cuda_queue *q, const char *name, struct fault *f);
void launch_list_close(struct cuda_queue *q); /* what is enqueued is launched first */

/* The note onto the stream and to the completion thread. */
void cuda_push(struct cuda_queue *q, struct queue_note *note);

/* Device memory for this operation's stream work alone: the next operation may write it. */
int cuda_scratch(struct cuda_queue *q, uint64_t bytes, const char *what, void **out,
                 struct fault *f);

/* Call fn(arg, status) from the completion thread behind everything launched so far. Fails for
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
