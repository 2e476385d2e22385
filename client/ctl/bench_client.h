/* bench_client.h - one connection of 'fp8ctl bench', which keeps `depth` forwards under way.
 *
 * Opened and closed by one thread; bench_client_run is called by the thread that has it meanwhile.
 */
#ifndef FP8D_CLIENT_CTL_BENCH_CLIENT_H
#define FP8D_CLIENT_CTL_BENCH_CLIENT_H

#include "client/ctl/bench_plan.h"
#include "client/ctl/samples.h"

#include <stdatomic.h>

#define BENCH_LAYER "l"

/* What all clients share. Constant while they run, but for stop. */
struct bench_work {
    struct bench_plan plan;
    const char *socket;
    uint32_t timeout_ms;
    const char *model; /* with the one layer BENCH_LAYER */
    const void *input; /* [M, K] */
    atomic_bool *stop; /* begin no more requests: a client failed, or the user wants the end */
};

/* A row of requests: the first, and more while there are fewer than `most` and `ns` nanoseconds
 * have not passed. */
struct bench_series {
    enum bench_plane plane;
    bool clock; /* ask for the device's time: fill device and outside, not latency */
    uint64_t most, ns;
};

struct bench_client {
    const struct bench_work *work;
    struct fp8d *c;
    void *outputs; /* mem_pages for one of each slot, where they travel */
    struct bench_series series;
    uint64_t began, ended;                   /* of the series; bench_client_now */
    struct samples latency, device, outside; /* of the series, as in bench_figures.h */
    struct fp8d_error err;                   /* code 0: none */
    uint64_t id[BENCH_DEPTH_MAX], sent[BENCH_DEPTH_MAX]; /* of those under way, by slot */
};

uint64_t bench_client_now(void); /* nanoseconds */

/* Connect, and put the input where the plan has the resident plane. On failure the code, which is
 * in err, too; c is NULL if there is no connection. bench_client_close in any case. */
int bench_client_open(struct bench_client *t, const struct bench_work *w);
void bench_client_close(struct bench_client *t); /* also zeroed */

/* One forward in train mode: from then on the layer's scales are set, and a copy of the weight is
 * there. */
int bench_client_prime(struct bench_client *t);

/* Run t->series, which began at t->began. A failure is in err, and stops all clients. */
void bench_client_run(struct bench_client *t);

#endif
