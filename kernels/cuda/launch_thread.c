/* From the enqueuing thread to the stream: operations and notes in a list, and the thread that
 * launches them in order. */
#include "kernels/cuda/queue.h"

#include "base/mem.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct cuda_op {
    struct cuda_op *next;
    uint64_t turn;
    cuda_op_cb run;
    bool always;
    bool dropped; /* fails, and with it what lies between it and the next note */
    _Alignas(max_align_t) char args[];
};

/* --- enqueuing --- */

/* What the thread is woken for, if it sleeps; under the lock. */
static uint64_t next_turn(struct launch_list *l)
{
    uint64_t turn = l->posted + 1;
    atomic_store(&l->posted, turn);
    if (l->asleep)
        pthread_cond_signal(&l->wake);
    return turn;
}

static void append(struct cuda_queue *q, struct cuda_op *op)
{
    struct launch_list *l = &q->list;
    atomic_fetch_add(&q->base.pending, 1);
    pthread_mutex_lock(&l->lock);
    op->turn = next_turn(l);
    *l->ops_tail = op;
    l->ops_tail = &op->next;
    pthread_mutex_unlock(&l->lock);
}

static int post(struct cuda_queue *q, cuda_op_cb run, bool always, const void *args, size_t size,
                struct fault *f)
{
    struct launch_list *l = &q->list;
    if (q->cuda->lost)
        return cuda_enter(q->cuda, f);
    struct cuda_op *op = mem_alloc(sizeof *op + size);
    if (!op)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to enqueue an operation");
    op->next = NULL;
    op->run = run;
    op->always = always;
    op->dropped = false;
    memcpy(op->args, args, size);
    if (!l->held) {
        append(q, op);
        return 0;
    }
    *l->aside_tail = op;
    l->aside_tail = &op->next;
    return 0;
}

void cuda_hold(struct queue *base)
{
    struct launch_list *l = &((struct cuda_queue *)base)->list;
    l->held = true;
    l->aside = NULL;
    l->aside_tail = &l->aside;
}

/* Those that are dropped travel too: some have something to give back. */
void cuda_release(struct queue *base, bool run)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    q->list.held = false;
    for (struct cuda_op *op = q->list.aside, *next; op; op = next) {
        next = op->next;
        op->next = NULL;
        op->dropped = !run;
        append(q, op);
    }
}

int cuda_post(struct cuda_queue *q, cuda_op_cb run, const void *args, size_t size, struct fault *f)
{
    return post(q, run, false, args, size, f);
}

int cuda_post_always(struct cuda_queue *q, cuda_op_cb run, const void *args, size_t size,
                     struct fault *f)
{
    return post(q, run, true, args, size, f);
}

void cuda_notify(struct queue *base, struct queue_note *note)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct launch_list *l = &q->list;
    note->next = NULL;
    atomic_fetch_add(&q->base.pending, 1);
    pthread_mutex_lock(&l->lock);
    note->turn = next_turn(l);
    *l->notes_tail = note;
    l->notes_tail = &note->next;
    pthread_mutex_unlock(&l->lock);
}

struct follow_args {
    uint64_t turn;
};

static int run_follow(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct follow_args *a = args;
    if (q->failed_turn < a->turn)
        return 0;
    return fault_set(f, FP8D_EABORTED, "an operation that this one follows failed");
}

int cuda_follow(struct queue *base, const struct queue_note *note, struct fault *f)
{
    struct follow_args a = {note->turn};
    return cuda_post((struct cuda_queue *)base, run_follow, &a, sizeof a, f);
}

/* --- launching --- */

static void run_op(struct cuda_queue *q, struct cuda_op *op)
{
    struct fault f;
    f.code = 0;
    if (op->dropped && !q->failed.code)
        (void)fault_set(&q->failed, FP8D_EINTERNAL, "the operation was dropped");
    int rc = op->always || q->failed.code ? 0 : cuda_enter(q->cuda, &f);
    if (!rc && (op->always || !q->failed.code))
        rc = op->run(q, op->args, &f);
    if (rc && !q->failed.code)
        q->failed = f;
    mem_free(op);
}

/* The failure goes with the note: what comes behind it is another's. */
static void run_note(struct cuda_queue *q, struct queue_note *note)
{
    note->status = q->failed.code;
    if (note->status)
        q->failed_turn = note->turn;
    if (note->status && note->fault && !note->fault->code)
        *note->fault = q->failed;
    q->failed.code = 0;
    cuda_push(q, note);
}

/* Both lists by turn. */
static void run_all(struct cuda_queue *q, struct cuda_op *ops, struct queue_note *notes)
{
    while (ops || notes) {
        uint64_t turn;
        if (ops && (!notes || ops->turn < notes->turn)) {
            struct cuda_op *op = ops;
            turn = op->turn;
            ops = op->next;
            run_op(q, op);
        } else {
            struct queue_note *note = notes;
            turn = note->turn;
            notes = note->next;
            run_note(q, note);
        }
        atomic_store(&q->list.launched, turn);
    }
}

/* Waits, first by looking. False once the queue closes and nothing is left. */
static bool take(struct cuda_queue *q, struct cuda_op **ops, struct queue_note **notes)
{
    struct launch_list *l = &q->list;
    uint64_t start = now_ns();
    while (l->posted == l->launched && now_ns() - start < cuda_spin_ns(q))
        relax();
    pthread_mutex_lock(&l->lock);
    l->asleep = true;
    while (!l->ops && !l->notes && !l->closing)
        pthread_cond_wait(&l->wake, &l->lock);
    l->asleep = false;
    *ops = l->ops;
    *notes = l->notes;
    l->ops = NULL;
    l->notes = NULL;
    l->ops_tail = &l->ops;
    l->notes_tail = &l->notes;
    pthread_mutex_unlock(&l->lock);
    return *ops || *notes;
}

/* An operation without a note behind it is looked for by a completion thread that is awake. */
static void wake_completion(struct cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    if (q->asleep)
        pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

static void *launch_main(void *arg)
{
    struct cuda_queue *q = arg;
    struct cuda_op *ops;
    struct queue_note *notes;
    (void)cudaSetDevice(q->cuda->device);
    while (take(q, &ops, &notes)) {
        bool lone = !notes;
        run_all(q, ops, notes);
        if (lone)
            wake_completion(q);
    }
    return NULL;
}

/* --- opening and closing --- */

int launch_list_open(struct cuda_queue *q, const char *name, struct fault *f)
{
    char own[16];
    (void)snprintf(own, sizeof own, "%.13s-l", name);
    return cuda_thread(&q->list.thread, own, launch_main, q, f);
}

void launch_list_close(struct cuda_queue *q)
{
    struct launch_list *l = &q->list;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
}
