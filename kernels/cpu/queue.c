#include "kernels/cpu/queue.h"

#include "base/mem.h"
#include "kernels/cpu/fpenv.h"

#include <stdio.h>
#include <string.h>

/* An operation travels as a note whose done() is op_done. */
struct cpu_op {
    struct queue_note note; /* first */
    cpu_op_cb run;
    _Alignas(16) unsigned char args[];
};

static void op_done(struct queue_note *note, int status)
{
    (void)note;
    (void)status;
}

static void finish(struct cpu_queue *q, struct queue_note *note)
{
    if (note->done == op_done) {
        struct cpu_op *op = (struct cpu_op *)note;
        op->run(q, op->args);
        mem_free(op);
        atomic_fetch_add(&q->base.progress, 1);
        atomic_fetch_sub(&q->base.pending, 1);
        return;
    }
    /* Before the call: whoever it wakes may look, and the note's memory is its owner's again. */
    atomic_fetch_add(&q->base.progress, 1);
    atomic_fetch_sub(&q->base.pending, 1);
    note->done(note, 0);
}

static void *queue_main(void *arg)
{
    struct cpu_queue *q = arg;
    (void)fpenv_enter();
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->head && !q->closing)
            pthread_cond_wait(&q->wake, &q->lock);
        struct queue_note *note = q->head;
        if (!note)
            break;
        q->head = note->next;
        if (!q->head)
            q->tail = &q->head;
        pthread_mutex_unlock(&q->lock);
        finish(q, note);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void enqueue(struct cpu_queue *q, struct queue_note *note)
{
    atomic_fetch_add(&q->base.pending, 1);
    if (q->is_inline) {
        unsigned before = fpenv_enter();
        finish(q, note);
        fpenv_leave(before);
        return;
    }
    note->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->tail = note;
    q->tail = &note->next;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

int cpu_queue_post(struct cpu_queue *q, cpu_op_cb run, const void *args, size_t args_size,
                   const void *more, size_t more_size, struct fault *f)
{
    struct cpu_op *op = mem_alloc(sizeof *op + args_size + more_size);
    if (!op)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to enqueue an operation");
    op->note = (struct queue_note){.done = op_done};
    op->run = run;
    memcpy(op->args, args, args_size);
    if (more_size)
        memcpy(op->args + args_size, more, more_size);
    if (!q->held) {
        enqueue(q, &op->note);
        return 0;
    }
    *q->aside_tail = &op->note;
    q->aside_tail = &op->note.next;
    return 0;
}

void cpu_queue_hold(struct cpu_queue *q)
{
    q->held = true;
    q->aside = NULL;
    q->aside_tail = &q->aside;
}

void cpu_queue_release(struct cpu_queue *q, bool run)
{
    q->held = false;
    for (struct queue_note *note = q->aside, *next; note; note = next) {
        next = note->next;
        if (run)
            enqueue(q, note);
        else
            mem_free(note);
    }
}

void cpu_queue_notify(struct cpu_queue *q, struct queue_note *note)
{
    enqueue(q, note);
}

/* What the queue's threads need; everything is undone by queue_drop. */
static int queue_fill(struct cpu_queue *q, const char *name, unsigned threads, struct fault *f)
{
    int rc = pool_init(&q->pool, name, threads, &q->base.progress, f);
    if (rc)
        return rc;
    q->slots = mem_array(threads, sizeof *q->slots);
    q->scratch = mem_pages(threads * sizeof *q->scratch);
    if (!q->slots || !q->scratch)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for the scratch of %u threads",
                         threads);
    return q->is_inline ? 0 : thread_start(&q->thread, name, queue_main, q, f);
}

static void queue_drop(struct cpu_queue *q)
{
    unsigned threads = q->pool.threads;
    pool_fini(&q->pool);
    mem_pages_free(q->scratch, threads * sizeof *q->scratch);
    mem_free(q->slots);
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
    mem_free(q);
}

int cpu_queue_new(struct backend *b, const struct cpu_kernels *kernels, const char *name,
                  unsigned threads, bool is_inline, struct cpu_queue **out, struct fault *f)
{
    struct cpu_queue *q = mem_zalloc(sizeof *q);
    if (!q)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for queue %s", name);
    q->base.backend = b;
    q->kernels = kernels;
    q->is_inline = is_inline;
    q->tail = &q->head;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    int rc = queue_fill(q, name, threads, f);
    if (rc) {
        queue_drop(q);
        return fault_wrap(f, "queue %s", name);
    }
    *out = q;
    return 0;
}

void cpu_queue_free(struct cpu_queue *q)
{
    if (!q->is_inline) {
        pthread_mutex_lock(&q->lock);
        q->closing = true;
        pthread_cond_signal(&q->wake);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->thread, NULL);
    }
    queue_drop(q);
}
