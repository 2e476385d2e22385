#include "daemon/engine/queuewait.h"

#include <pthread.h>

struct queue_waiter {
    struct queue_note note;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool complete;
    int status;
};

static void on_complete(struct queue_note *note, int status)
{
    struct queue_waiter *w = (struct queue_waiter *)note;
    pthread_mutex_lock(&w->lock);
    w->status = status;
    w->complete = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

int queue_wait(struct queue *q, struct fault *f)
{
    struct fault own = {0};
    struct queue_waiter w = {
        .note = {.done = on_complete, .fault = &own},
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .wake = PTHREAD_COND_INITIALIZER,
    };
    queue_notify(q, &w.note);
    pthread_mutex_lock(&w.lock);
    while (!w.complete)
        pthread_cond_wait(&w.wake, &w.lock);
    pthread_mutex_unlock(&w.lock);
    if (!w.status)
        return 0;
    if (!own.code)
        return fault_set(f, w.status, "the backend failed: %s", status_text(w.status));
    own.stage = f->stage;
    *f = own;
    return f->code;
}
