#include "client/ctl/bench_crew.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Where members wait until all are there: what a thread takes to start is not measured. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned waiting;
    bool open;
    uint64_t opened; /* bench_client_now */
};

struct member {
    struct gate *gate;
    struct bench_client *client;
    pthread_t thread;
};

static uint64_t gate_pass(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->waiting++;
    pthread_cond_broadcast(&g->moved);
    while (!g->open)
        pthread_cond_wait(&g->moved, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return g->opened;
}

static void gate_open(struct gate *g, unsigned members)
{
    pthread_mutex_lock(&g->lock);
    while (g->waiting < members)
        pthread_cond_wait(&g->moved, &g->lock);
    g->opened = bench_client_now();
    g->open = true;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    m->client->began = gate_pass(m->gate);
    bench_client_run(m->client);
    return NULL;
}

/* Returns how many threads there are; fewer than `count` is a failure, which stops them. */
static unsigned start(struct member *members, struct gate *gate, struct bench_client *clients,
                      unsigned count, const struct bench_series *series, struct fp8d_error *err)
{
    for (unsigned i = 0; i < count; i++) {
        clients[i].series = *series;
        members[i] = (struct member){.gate = gate, .client = &clients[i]};
        int e = pthread_create(&members[i].thread, NULL, member_main, &members[i]);
        if (!e)
            continue;
        err->code = -e;
        (void)snprintf(err->text, sizeof err->text,
                       "thread %u of the %u that --clients asks for cannot be started: %s", i + 1,
                       count, strerrordesc_np(e));
        atomic_store(clients[i].work->stop, true);
        return i;
    }
    return count;
}

static uint64_t last_end(const struct bench_client *clients, unsigned count)
{
    uint64_t end = 0;
    for (unsigned i = 0; i < count; i++)
        end = clients[i].ended > end ? clients[i].ended : end;
    return end;
}

int bench_crew_run(struct bench_client *clients, unsigned count, const struct bench_series *series,
                   double *seconds, struct fp8d_error *err)
{
    struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    struct member *members = mem_array(count, sizeof *members);
    *err = (struct fp8d_error){.code = members ? 0 : -ENOMEM, .text = "no memory for threads"};
    if (!members)
        return err->code;
    unsigned started = start(members, &gate, clients, count, series, err);
    gate_open(&gate, started);
    for (unsigned i = 0; i < started; i++)
        (void)pthread_join(members[i].thread, NULL);
    for (unsigned i = 0; i < started && !err->code; i++)
        if (clients[i].err.code)
            *err = clients[i].err;
    *seconds = (double)(last_end(clients, started) - gate.opened) / 1e9;
    pthread_cond_destroy(&gate.moved);
    pthread_mutex_destroy(&gate.lock);
    mem_free(members);
    return err->code;
}
