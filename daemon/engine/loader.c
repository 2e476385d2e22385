#include "daemon/engine/loader.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

struct loader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct loader_job *first, **last;
    bool stop;
    struct queue *queue;
    const struct exec *exec;
};

static void on_engine(struct exec_task *task)
{
    struct loader_job *job = (struct loader_job *)(void *)((char *)task -
                                                           offsetof(struct loader_job, task));
    job->finish(job);
}

static struct loader_job *take(struct loader *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->first && !l->stop)
        pthread_cond_wait(&l->wake, &l->lock);
    struct loader_job *job = l->first;
    if (job) {
        l->first = job->next;
        if (!l->first)
            l->last = &l->first;
    }
    pthread_mutex_unlock(&l->lock);
    return job;
}

static void *work(void *arg)
{
    struct loader *l = arg;
    struct loader_job *job;
    while ((job = take(l))) {
        job->run(job, l->queue);
        job->task.run = on_engine;
        l->exec->post(l->exec->self, &job->task);
    }
    return NULL;
}

/* Signals are the loop thread's. */
static int start_thread(struct loader *l)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&l->thread, NULL, work, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int loader_new(struct engine *e, struct loader **out, struct fault *f)
{
    struct loader *l = mem_zalloc(sizeof *l);
    if (!l)
        return fault_set(f, -ENOMEM, "out of memory for the loader");
    l->last = &l->first;
    l->exec = e->o.exec;
    int rc = queue_open(e->o.backend, "loader", &l->queue, f);
    if (rc) {
        mem_free(l);
        return rc;
    }
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    rc = start_thread(l);
    if (rc) {
        queue_close(l->queue);
        pthread_cond_destroy(&l->wake);
        pthread_mutex_destroy(&l->lock);
        mem_free(l);
        return fault_set(f, -rc, "cannot start the loader thread: %s", status_text(-rc));
    }
    (void)pthread_setname_np(l->thread, "fp8d-loader");
    *out = l;
    return 0;
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    queue_close(l->queue);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

void loader_post(struct loader *l, struct loader_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&l->lock);
    *l->last = job;
    l->last = &job->next;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}
