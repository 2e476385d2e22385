#include "daemon/net/worker.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 50000
#define SPIN_CORES 8
#define BUSY_SPIN_NS 3000000 /* for what computes already */
#define BUSY_SPIN_CORES 16

static void on_idle(uv_idle_t *idle);
static void empty_inbox(struct worker *w);

static uint64_t now(void *self);

/* --- the loop thread, awake for a little --- */

/* Something came or went: the answer to it is looked for, not slept for. */
static void stay_awake(struct worker *w)
{
    if (!w->spin_ns || w->idle_closed)
        return;
    w->busy_until = now(w) + w->busy_spin_ns;
    w->awake_until = now(w) + w->spin_ns;
    if (!atomic_load(&w->awake) && !uv_idle_start(&w->idle, on_idle))
        atomic_store(&w->awake, true);
}

/* Whoever fills the inbox looks at `awake` after it, as this looks at the inbox after `awake`: one
 * of the two sees the other. */
static void on_idle(uv_idle_t *idle)
{
    struct worker *w = idle->data;
    uint64_t at = now(w);
    if (atomic_load(&w->under_way) && at < w->busy_until)
        w->awake_until = at + w->spin_ns; /* its reply is made a little after it has ended */
    if (!atomic_load(&w->inbox_full) && at >= w->awake_until) {
        uv_idle_stop(idle);
        atomic_store(&w->awake, false);
    }
    if (atomic_load(&w->inbox_full))
        empty_inbox(w);
}

/* --- to the engine thread --- */

static void post(void *self, struct exec_task *task)
{
    struct worker *w = self;
    if (pthread_equal(pthread_self(), w->loop_thread))
        stay_awake(w);
    task->next = NULL;
    pthread_mutex_lock(&w->lock);
    if (w->stopped) {
        pthread_mutex_unlock(&w->lock);
        task->run(task);
        return;
    }
    bool was_empty = !w->head;
    if (w->tail)
        w->tail->next = task;
    else
        w->head = task;
    w->tail = task;
    atomic_store(&w->has_tasks, true);
    pthread_mutex_unlock(&w->lock);
    if (was_empty)
        pthread_cond_signal(&w->wake);
}

/* Look for work a little before going to sleep: waking up takes longer than what a GPU computes for
 * a small request. Not where cores are few. */
static void spin(struct worker *w)
{
    uint64_t start = w->spin_ns ? now(w) : 0;
    while (start && !atomic_load_explicit(&w->has_tasks, memory_order_acquire) &&
           now(w) - start < (atomic_load(&w->under_way) ? w->busy_spin_ns : w->spin_ns))
        __builtin_ia32_pause();
}

/* The whole list, or NULL when the thread is to end. Waits. */
static struct exec_task *next_tasks(struct worker *w)
{
    spin(w);
    pthread_mutex_lock(&w->lock);
    while (!w->head && !w->stop)
        pthread_cond_wait(&w->wake, &w->lock);
    struct exec_task *list = w->head;
    w->head = w->tail = NULL;
    atomic_store(&w->has_tasks, false);
    if (!list)
        w->stopped = true;
    pthread_mutex_unlock(&w->lock);
    return list;
}

static void *engine_main(void *arg)
{
    struct worker *w = arg;
    struct exec_task *list;
    pthread_setname_np(pthread_self(), "fp8d-engine");
    while ((list = next_tasks(w)))
        while (list) {
            struct exec_task *task = list;
            list = task->next; /* run may free or post it */
            task->run(task);
        }
    return NULL;
}

/* --- to the loop thread --- */

static struct reply *take_inbox(struct worker *w)
{
    pthread_mutex_lock(&w->inbox_lock);
    struct reply *list = w->inbox;
    w->inbox = w->inbox_tail = NULL;
    atomic_store(&w->inbox_full, false);
    pthread_mutex_unlock(&w->inbox_lock);
    return list;
}

static void empty_inbox(struct worker *w)
{
    struct reply *list = take_inbox(w);
    stay_awake(w);
    while (list) {
        struct reply *r = list;
        list = r->next;
        w->deliver(w->self, r);
    }
}

static void on_async(uv_async_t *async)
{
    empty_inbox(async->data);
}

/* The wake-up is sent under the lock, so that the handle cannot be closed in between. */
static bool into_inbox(struct worker *w, struct reply *r)
{
    pthread_mutex_lock(&w->inbox_lock);
    bool open = !w->closed;
    if (open) {
        if (w->inbox_tail)
            w->inbox_tail->next = r;
        else
            w->inbox = r;
        w->inbox_tail = r;
        if (!atomic_exchange(&w->inbox_full, true) && !atomic_load(&w->awake))
            uv_async_send(&w->async);
    }
    pthread_mutex_unlock(&w->inbox_lock);
    return open;
}

static void reply(void *self, struct reply *r)
{
    struct worker *w = self;
    r->next = NULL;
    if (pthread_equal(pthread_self(), w->loop_thread)) {
        stay_awake(w);
        if (atomic_load(&w->inbox_full))
            empty_inbox(w);
        w->deliver(w->self, r);
        return;
    }
    if (!into_inbox(w, r))
        r->done(r);
}

/* --- the rest of the table --- */

static bool cancelled(void *self, uint64_t conn)
{
    const struct worker *w = self;
    return !roster_alive(w->roster, conn);
}

static uint64_t now(void *self)
{
    struct timespec t;
    (void)self;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Signals are the loop thread's: the engine thread starts with all of them blocked. */
static int start_thread(struct worker *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&w->engine_thread, NULL, engine_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

static void close_handles(struct worker *w)
{
    w->idle_closed = true;
    uv_close((uv_handle_t *)&w->idle, NULL);
    uv_close((uv_handle_t *)&w->async, NULL);
}

int worker_init(struct worker *w, uv_loop_t *loop, const struct roster *roster, unsigned cores,
                void (*deliver)(void *self, struct reply *r), void *self, struct fault *f)
{
    *w = (struct worker){.roster = roster, .deliver = deliver, .self = self};
    w->exec = (struct exec){.self = w,
                            .post = post,
                            .reply = reply,
                            .cancelled = cancelled,
                            .now = now,
                            .under_way = &w->under_way};
    w->loop_thread = pthread_self();
    cores = cores ? cores : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    w->spin_ns = cores >= SPIN_CORES ? SPIN_NS : 0;
    w->busy_spin_ns = cores >= BUSY_SPIN_CORES ? BUSY_SPIN_NS : w->spin_ns;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->inbox_lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    int rc = uv_async_init(loop, &w->async, on_async);
    if (rc)
        return fault_set(f, rc, "making the wake-up of the loop failed: %s", uv_strerror(rc));
    w->async.data = w;
    uv_idle_init(loop, &w->idle);
    w->idle.data = w;
    rc = start_thread(w);
    if (rc) {
        w->stopped = true;
        close_handles(w);
        return fault_set(f, rc, "starting the engine thread failed: %s", strerror(-rc));
    }
    return 0;
}

void worker_stop(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    pthread_cond_signal(&w->wake);
    pthread_join(w->engine_thread, NULL);
    pthread_mutex_lock(&w->inbox_lock);
    w->closed = true;
    pthread_mutex_unlock(&w->inbox_lock);
    empty_inbox(w);
    close_handles(w);
}

void worker_fini(struct worker *w)
{
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->inbox_lock);
    pthread_mutex_destroy(&w->lock);
}
