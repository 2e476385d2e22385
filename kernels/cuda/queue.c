#include "kernels/cuda/queue.h"

#include "base/mem.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define NAP_NS 20000L       /* between looks after the polling phase */
#define LONG_NAP_NS 200000L /* once an operation takes longer than LONG_NS */
#define LONG_NS 10000000ull
#define ASK_NS 1000000ull   /* how often the driver is asked about errors while waiting */
#define LONE_NS 50000000ull /* operations without a note behind them are looked for so often */

/* --- the completion thread --- */

static bool reached(const struct cuda_queue *q, uint64_t mark)
{
    return (int32_t)(*q->flag - (uint32_t)mark) >= 0;
}

/* False once the device is lost, which this finds out. */
static bool still_works(struct cuda_queue *q)
{
    struct fault f;
    if (q->cuda->lost)
        return false;
    cudaError_t e = cudaStreamQuery(q->stream);
    if (e == cudaErrorNotReady)
        return true;
    return !cuda_check(q->cuda, e, &f, "work on queue %p", (void *)q);
}

static int wait_for(struct cuda_queue *q, uint64_t mark)
{
    uint64_t start = now_ns(), asked = start;
    while (!reached(q, mark)) {
        uint64_t now = now_ns();
        if (now - start < q->cuda->busy_spin_ns) {
            relax();
            continue;
        }
        if (now - asked > ASK_NS || q->cuda->lost) {
            asked = now;
            if (!still_works(q) && !reached(q, mark))
                return FP8D_EINTERNAL;
        }
        nap(now - start > LONG_NS ? LONG_NAP_NS : NAP_NS);
    }
    atomic_thread_fence(memory_order_acquire); /* what the device wrote before the mark is seen */
    return q->cuda->lost ? FP8D_EINTERNAL : 0;
}

/* All up to `turn` is complete. */
static void settle(struct cuda_queue *q, uint64_t turn, uint64_t *settled)
{
    if (turn <= *settled)
        return;
    atomic_fetch_sub(&q->base.pending, turn - *settled);
    atomic_fetch_add(&q->base.progress, turn - *settled);
    *settled = turn;
}

/* Operations that nobody waits for end too. */
static void settle_lone(struct cuda_queue *q, uint64_t *settled)
{
    uint64_t turn = q->list.launched;
    if (turn != *settled && (cudaStreamQuery(q->stream) == cudaSuccess || q->cuda->lost))
        settle(q, turn, settled);
}

static struct queue_note *take(struct cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct queue_note *note = q->head;
    if (note) {
        q->head = note->next;
        if (!q->head)
            q->tail = &q->head;
    }
    pthread_mutex_unlock(&q->lock);
    return note;
}

/* Until there may be a note: polls first, then sleeps. False when the queue is closing. */
static bool wait_for_note(struct cuda_queue *q, uint64_t seen, uint64_t *settled)
{
    uint64_t start = now_ns();
    while (q->notes == seen && now_ns() - start < cuda_spin_ns(q))
        relax();
    pthread_mutex_lock(&q->lock);
    q->asleep = true;
    while (!q->head && !q->closing) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)LONE_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (q->base.pending)
            (void)pthread_cond_timedwait(&q->wake, &q->lock, &until);
        else
            (void)pthread_cond_wait(&q->wake, &q->lock);
        if (!q->head)
            settle_lone(q, settled);
    }
    q->asleep = false;
    bool more = q->head != NULL;
    pthread_mutex_unlock(&q->lock);
    return more;
}

static void *queue_main(void *arg)
{
    struct cuda_queue *q = arg;
    uint64_t settled = 0, fired = 0;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    (void)cudaSetDevice(q->cuda->device);
    while (wait_for_note(q, fired, &settled))
        for (struct queue_note *note = take(q); note; note = take(q)) {
            int status = wait_for(q, note->mark);
            settle(q, note->turn, &settled);
            fired++;
            note->done(note, status ? status : note->status);
        }
    return NULL;
}

/* --- notes, from the launching thread --- */

void cuda_push(struct cuda_queue *q, struct queue_note *note)
{
    struct fault f;
    note->next = NULL;
    note->mark = ++q->marks;
    if (!cuda_enter(q->cuda, &f)) {
        CUresult e = q->cuda->write_value(q->stream, (CUdeviceptr)(uintptr_t)q->flag,
                                          (cuuint32_t)note->mark, CU_STREAM_WRITE_VALUE_DEFAULT);
        if (e != CUDA_SUCCESS) { /* the note must fire all the same */
            (void)fault_set(&f, FP8D_EINTERNAL, "cuStreamWriteValue32 on GPU %d: CUresult %d",
                            q->cuda->device, (int)e);
            cuda_lose(q->cuda, f.text);
        }
    }
    pthread_mutex_lock(&q->lock);
    *q->tail = note;
    q->tail = &note->next;
    q->notes++;
    if (q->asleep)
        pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

struct after {
    struct queue_note note; /* first */
    struct cuda_queue *queue;
    cuda_after_cb fn;
    void *arg;
};

static void after_done(struct queue_note *note, int status)
{
    struct after *a = (struct after *)note;
    a->fn(a->queue, a->arg, status);
    mem_free(a);
}

int cuda_after(struct cuda_queue *q, cuda_after_cb fn, void *arg, struct fault *f)
{
    struct after *a = mem_alloc(sizeof *a);
    if (!a)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to enqueue an operation");
    *a = (struct after){.note = {.done = after_done}, .queue = q, .fn = fn, .arg = arg};
    cuda_push(q, &a->note); /* its turn 0 settles nothing */
    return 0;
}

static void give_scratch(struct cuda_queue *q, void *arg, int status)
{
    (void)status;
    heap_give(&q->cuda->device_heap, arg);
}

int cuda_scratch(struct cuda_queue *q, uint64_t bytes, const char *what, void **out,
                 struct fault *f)
{
    if (!q->scratch || q->scratch->size < bytes) {
        struct heap_block *more = cuda_take_device(q->cuda, bytes, what, f);
        if (!more)
            return f->code;
        /* What is on the stream still uses the old one. */
        if (q->scratch && cuda_after(q, give_scratch, q->scratch, f)) {
            heap_give(&q->cuda->device_heap, more);
            return f->code;
        }
        q->scratch = more;
    }
    *out = block_address(q->scratch);
    return 0;
}

/* --- opening and closing --- */

int cuda_thread(pthread_t *thread, const char *name, void *(*main)(void *), struct cuda_queue *q,
                struct fault *f)
{
    char cut[16];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(thread, NULL, main, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "thread %s cannot be started: %s", name,
                         strerrordesc_np(err));
    (void)snprintf(cut, sizeof cut, "%s", name);
    (void)pthread_setname_np(*thread, cut);
    return 0;
}

static void stop_completion(struct cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
}

static int start_threads(struct cuda_queue *q, const char *name, struct fault *f)
{
    int rc = cuda_thread(&q->thread, name, queue_main, q, f);
    if (rc)
        return rc;
    rc = launch_list_open(q, name, f);
    if (rc)
        stop_completion(q);
    return rc;
}

static int fill_memory(struct cuda_queue *q, struct fault *f)
{
    struct cuda *c = q->cuda;
    static const float one = 1.0f;
    q->workspace = cuda_take_device(c, CUDA_WORKSPACE_BYTES, "a GEMM workspace", f);
    if (!q->workspace)
        return f->code;
    q->sums = cuda_take_device(c, CUDA_STEP_DEVICE, "a queue's sums", f);
    if (!q->sums)
        return f->code;
    q->flag_block = cuda_take_host(c, sizeof *q->flag, "a queue's flag", f);
    if (!q->flag_block)
        return f->code;
    q->flag = block_address(q->flag_block);
    *q->flag = 0;
    int rc = cuda_check(c, cudaMemset(queue_sums(q), 0, CUDA_STEP_DEVICE), f, "cudaMemset");
    return rc ? rc
              : cuda_check(c, cudaMemcpy(queue_one(q), &one, sizeof one, cudaMemcpyHostToDevice), f,
                           "cudaMemcpy");
}

static void queue_drop(struct cuda_queue *q)
{
    struct cuda *c = q->cuda;
    if (q->stream)
        (void)cudaStreamDestroy(q->stream);
    heap_give(&c->device_heap, q->scratch);
    heap_give(&c->device_heap, q->workspace);
    heap_give(&c->device_heap, q->sums);
    heap_give(&c->host_heap, q->flag_block);
    pthread_cond_destroy(&q->list.wake);
    pthread_mutex_destroy(&q->list.lock);
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
    mem_free(q);
}

int cuda_queue_open(struct backend *b, const char *name, struct queue **out, struct fault *f)
{
    struct cuda *c = (struct cuda *)b;
    int rc = cuda_enter(c, f);
    if (rc)
        return rc;
    struct cuda_queue *q = mem_zalloc(sizeof *q);
    if (!q)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for queue %s", name);
    q->base.backend = b;
    q->cuda = c;
    q->tail = &q->head;
    q->list.ops_tail = &q->list.ops;
    q->list.notes_tail = &q->list.notes;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    pthread_mutex_init(&q->list.lock, NULL);
    pthread_cond_init(&q->list.wake, NULL);
    rc = cuda_check(c, cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), f,
                    "cudaStreamCreate");
    if (!rc)
        rc = fill_memory(q, f);
    if (!rc)
        rc = start_threads(q, name, f);
    if (rc) {
        queue_drop(q);
        return fault_wrap(f, "queue %s", name);
    }
    c->queues++;
    *out = &q->base;
    return 0;
}

void cuda_queue_close(struct queue *base)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct cuda *c = q->cuda;
    launch_list_close(q);
    stop_completion(q);
    (void)cudaSetDevice(c->device);
    (void)cudaStreamSynchronize(q->stream); /* operations without a note behind them */
    queue_drop(q);
    c->queues--;
}
