/* worker.h - the one meeting place of threads: exec.h with a thread and a loop behind it.
 *
 * Where cores are many, both threads look for work for a little before they sleep: waking up takes
 * longer than what a GPU computes for a small request. The engine thread runs posted tasks in
 * order. Its replies go to a list and wake the loop; a reply made on the loop thread goes to its
 * connection at once, behind those that are in the list. After worker_stop, post runs the task
 * inside the call, on the caller's thread, and replies are dropped: what is torn down last needs no
 * thread.
 */
#ifndef FP8D_DAEMON_NET_WORKER_H
#define FP8D_DAEMON_NET_WORKER_H

#include "base/fault.h"
#include "daemon/exec.h"
#include "daemon/net/roster.h"

#include <pthread.h>
#include <uv.h>

struct worker {
    struct exec exec; /* the table that rpc and engine get */
    const struct roster *roster;
    void (*deliver)(void *self, struct reply *r); /* loop thread; owns r */
    void *self;
    pthread_t loop_thread, engine_thread;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t wake;
    struct exec_task *head, *tail;
    _Atomic bool has_tasks;     /* a hint for a thread that looks before it sleeps */
    _Atomic unsigned under_way; /* tasks that a thread which computes will post */
    uint64_t spin_ns;           /* for how long a thread looks; 0 where cores are few */
    uint64_t busy_spin_ns;      /* the same, while tasks are under way */
    bool stop;                  /* the engine thread ends when its list is empty */
    bool stopped;               /* it has ended */
    pthread_mutex_t inbox_lock;
    struct reply *inbox, *inbox_tail;
    bool closed;             /* replies of other threads are dropped; under inbox_lock */
    _Atomic bool inbox_full; /* a hint, to spare the loop thread the lock */
    _Atomic bool awake;      /* the loop looks at the inbox by itself: no wake-up is needed */
    uint64_t awake_until;    /* ns; the loop thread's, as are busy_until, idle and idle_closed */
    uint64_t busy_until;     /* as long as tasks are under way, at most */
    uv_idle_t idle;          /* runs while awake */
    bool idle_closed;
    uv_async_t async;
};

/* Starts the engine thread. The caller's thread is the loop thread from now on. */
int worker_init(struct worker *w, uv_loop_t *loop, const struct roster *roster, unsigned cores,
                void (*deliver)(void *self, struct reply *r), void *self, struct fault *f);

/* Loop thread: run what is posted, end the engine thread, drop its replies, close the handle (the
 * loop has to run once more). Once only. */
void worker_stop(struct worker *w);

/* After the loop is closed. */
void worker_fini(struct worker *w);

#endif
