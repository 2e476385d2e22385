/* queue.h - a queue of the CPU backend: one compute thread, its pool, and the threads' scratch.
 *
 * An operation is a function over a copy of its arguments; everything that can fail (checks, the
 * copy's memory) fails when it is enqueued, so notes always report 0.
 */
#ifndef FP8D_KERNELS_CPU_QUEUE_H
#define FP8D_KERNELS_CPU_QUEUE_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pool.h"

struct cpu_queue {
    struct queue base; /* first */
    const struct cpu_kernels *kernels;
    struct gemm_scratch *scratch; /* [pool.threads] */
    struct amax_slot *slots;      /* [pool.threads]: what each worker of a cast saw */
    struct pool pool;
    bool is_inline;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct queue_note *head, **tail; /* first in, first out; guarded by lock, as is closing */
    struct queue_note *aside, **aside_tail; /* held back; the enqueuing thread's, as is held */
    bool held;
    bool closing;
};

/* Runs on the queue's thread, or inside cpu_queue_post. */
typedef void (*cpu_op_cb)(struct cpu_queue *q, void *args);

int cpu_queue_new(struct backend *b, const struct cpu_kernels *kernels, const char *name,
                  unsigned threads, bool is_inline, struct cpu_queue **out, struct fault *f);
void cpu_queue_free(struct cpu_queue *q); /* runs what is enqueued first */

/* Enqueue run() over a copy of args, followed by a copy of more_size bytes of `more`. */
int cpu_queue_post(struct cpu_queue *q, cpu_op_cb run, const void *args, size_t args_size,
                   const void *more, size_t more_size, struct fault *f);
void cpu_queue_notify(struct cpu_queue *q, struct queue_note *note);
void cpu_queue_hold(struct cpu_queue *q);
void cpu_queue_release(struct cpu_queue *q, bool run);

#endif
