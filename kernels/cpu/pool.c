#include "kernels/cpu/pool.h"

#include "base/mem.h"
#include "kernels/cpu/fpenv.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

int thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg,
                 struct fault *f)
{
    char cut[16];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "thread %s cannot be started: %s", name,
                         strerrordesc_np(err));
    (void)snprintf(cut, sizeof cut, "%s", name);
    (void)pthread_setname_np(*thread, cut);
    return 0;
}

static void drain(struct pool *p, unsigned worker)
{
    for (;;) {
        uint64_t tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (tile >= p->tiles)
            return;
        p->fn(p->arg, worker, tile);
        atomic_fetch_add_explicit(p->progress, 1, memory_order_relaxed);
    }
}

static void *worker_main(void *arg)
{
    struct pool_worker *w = arg;
    struct pool *p = w->pool;
    uint64_t seen = 0;
    (void)fpenv_enter();
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->round == seen && !p->stop)
            pthread_cond_wait(&p->wake, &p->lock);
        if (p->stop)
            break;
        seen = p->round;
        pthread_mutex_unlock(&p->lock);
        drain(p, w->index);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0)
            pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int pool_init(struct pool *p, const char *name, unsigned threads, _Atomic uint64_t *progress,
              struct fault *f)
{
    *p = (struct pool){.threads = threads, .progress = progress};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->workers = mem_array(threads - 1, sizeof *p->workers);
    if (!p->workers)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for %u threads", threads);
    for (unsigned i = 0; i + 1 < threads; i++) {
        char label[32];
        p->workers[i] = (struct pool_worker){.pool = p, .index = i + 1};
        (void)snprintf(label, sizeof label, "%.10s/%u", name, i + 1);
        int rc = thread_start(&p->workers[i].thread, label, worker_main, &p->workers[i], f);
        if (rc)
            return rc;
        p->started++;
    }
    return 0;
}

void pool_fini(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    mem_free(p->workers);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
}

void pool_run(struct pool *p, pool_cb fn, void *arg, uint64_t tiles)
{
    bool share = tiles > 1 && p->started;
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->tiles = tiles;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (share) {
        p->round++;
        p->busy = p->started;
        pthread_cond_broadcast(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
    drain(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->busy)
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
