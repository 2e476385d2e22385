/* fp8ctl bench: a model of its own, connections that send it forwards, and what that took. */
#include "client/ctl/bench_crew.h"
#include "client/ctl/bench_report.h"
#include "client/ctl/ctl.h"
#include "client/ctl/noise.h"

#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WARM_NS 250000000u
#define TIMED_NS 2000000000u /* where --requests does not say how many */
#define CLOCK_NS 500000000u
#define DROP_NS 10000000000u
#define INPUT_SEED 1
#define WEIGHT_SEED 2

struct bench {
    struct bench_work work;
    char model[64];
    void *input;
    struct bench_client *clients; /* [plan.clients] */
    struct bench_figures planes[BENCH_PLANES];
    size_t count; /* of planes measured */
};

/* --- the end that the user wants --- */

static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP};
#define END_SIGNALS (sizeof end_signals / sizeof end_signals[0])

static atomic_bool stop;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&stop, true);
}

/* The second one ends the program as ever: a server may hang. */
static void signals_take(struct sigaction before[END_SIGNALS])
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    atomic_store(&stop, false);
    for (size_t i = 0; i < END_SIGNALS; i++)
        (void)sigaction(end_signals[i], &a, &before[i]);
}

static void signals_give(const struct sigaction before[END_SIGNALS])
{
    for (size_t i = 0; i < END_SIGNALS; i++)
        (void)sigaction(end_signals[i], &before[i], NULL);
}

static int interrupted(const struct ctl *ctl)
{
    struct fault f = {0};
    fault_set(&f, FP8D_ECANCELLED, "interrupted; nothing is reported");
    return ctl_fault(ctl, &f);
}

/* --- the model --- */

static int no_memory(const struct ctl *ctl, const char *what, uint64_t bytes)
{
    struct fault f = {0};
    fault_set(&f, -ENOMEM, "no memory for the %s of %llu bytes", what, (unsigned long long)bytes);
    return ctl_fault(ctl, &f);
}

static void name_model(char out[64])
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    (void)snprintf(out, 64, "fp8ctl-bench-%ld-%llx", (long)getpid(),
                   (unsigned long long)t.tv_sec << 32 | (unsigned long long)t.tv_nsec);
}

/* *made: there may be a model to drop, also where the answer came too late or not at all. */
static int make_model(const struct ctl *ctl, const struct bench *b, bool *made)
{
    const struct bench_plan *p = &b->work.plan;
    struct fp8d_error err;
    uint64_t bytes = bench_plan_weight_bytes(p);
    void *weight = mem_pages(bytes);
    if (!weight)
        return no_memory(ctl, "weight", bytes);
    noise_fill(weight, p->dtype, p->n * p->k, WEIGHT_SEED);
    struct fp8d_layer_spec layer = {
        .name = BENCH_LAYER,
        .weight = {
            .dtype = p->dtype, .rank = 2, .dims = {p->n, p->k}, .data = weight, .size = bytes}};
    struct fp8d_create_model create = {.model = b->model, .layers = &layer, .count = 1};
    int rc = fp8d_create_model(ctl->c, &create, NULL, NULL, &err);
    mem_pages_free(weight, bytes);
    *made = rc != FP8D_EALREADY_EXISTS;
    return rc ? ctl_failed(ctl, &err) : CTL_OK;
}

/* A request that is not waited for may end with the connection: --timeout is not for this one. What
 * went wrong before was said already, and matters more. */
static int drop_model(const struct ctl *ctl, const struct bench *b, int rc)
{
    struct fp8d_error err;
    uint64_t id = 0, began = bench_client_now();
    int bad = fp8d_submit_drop_model(ctl->c, b->model, NULL, NULL, &id, &err);
    if (!bad)
        do
            bad = fp8d_wait(ctl->c, id, NULL, &err);
        while (bad == -ETIMEDOUT && bench_client_now() - began < DROP_NS);
    return bad && !rc ? ctl_failed(ctl, &err) : rc;
}

/* --- the clients --- */

static int open_clients(const struct ctl *ctl, struct bench *b)
{
    const struct bench_plan *p = &b->work.plan;
    uint64_t bytes = bench_plan_input_bytes(p);
    b->work.input = b->input = mem_pages(bytes);
    if (!b->input)
        return no_memory(ctl, "input", bytes);
    noise_fill(b->input, p->dtype, p->m * p->k, INPUT_SEED);
    b->clients = mem_array(p->clients, sizeof *b->clients);
    if (!b->clients)
        return no_memory(ctl, "clients", p->clients * sizeof *b->clients);
    for (uint32_t i = 0; i < p->clients && !atomic_load(&stop); i++) {
        struct bench_client *t = &b->clients[i];
        if (bench_client_open(t, &b->work))
            return t->c ? ctl_failed(ctl, &t->err) : ctl_no_connection(ctl, &t->err);
    }
    if (!atomic_load(&stop) && bench_client_prime(&b->clients[0]))
        return ctl_failed(ctl, &b->clients[0].err);
    return CTL_OK;
}

static void bench_fini(struct bench *b)
{
    for (uint32_t i = 0; b->clients && i < b->work.plan.clients; i++)
        bench_client_close(&b->clients[i]);
    mem_free(b->clients);
    if (b->input)
        mem_pages_free(b->input, bench_plan_input_bytes(&b->work.plan));
    for (size_t i = 0; i < BENCH_PLANES; i++)
        bench_figures_fini(&b->planes[i]);
}

/* --- measuring --- */

/* What the clients saw in the last series. */
static int gather(const struct ctl *ctl, const struct bench *b, struct bench_figures *g)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < b->work.plan.clients; i++) {
        const struct bench_client *t = &b->clients[i];
        rc = samples_append(&g->latency, &t->latency);
        if (!rc)
            rc = samples_append(&g->device, &t->device);
        if (!rc)
            rc = samples_append(&g->outside, &t->outside);
    }
    return rc ? no_memory(ctl, "samples", g->latency.count * sizeof *g->latency.values) : CTL_OK;
}

static int series(const struct ctl *ctl, struct bench *b, const struct bench_series *s,
                  double *seconds)
{
    struct fp8d_error err;
    if (bench_crew_run(b->clients, b->work.plan.clients, s, seconds, &err))
        return ctl_failed(ctl, &err);
    return atomic_load(&stop) ? interrupted(ctl) : CTL_OK;
}

/* Warm up; measure; and ask for the device's time in requests that are not measured otherwise. */
static int measure(const struct ctl *ctl, struct bench *b, enum bench_plane plane)
{
    uint64_t asked = b->work.plan.requests;
    uint64_t most = asked ? asked : UINT64_MAX;
    struct bench_figures *g = &b->planes[b->count];
    const struct bench_series warm = {plane, false, most, WARM_NS};
    const struct bench_series timed = {plane, false, most, asked ? UINT64_MAX : TIMED_NS};
    const struct bench_series clocked = {plane, true, most, CLOCK_NS};
    double ignored;
    g->plane = plane;
    int rc = series(ctl, b, &warm, &ignored);
    if (!rc)
        rc = series(ctl, b, &timed, &g->seconds);
    if (!rc)
        rc = gather(ctl, b, g);
    g->requests = g->latency.count;
    if (!rc)
        rc = series(ctl, b, &clocked, &ignored);
    if (!rc)
        rc = gather(ctl, b, g);
    samples_sort(&g->latency);
    samples_sort(&g->device);
    samples_sort(&g->outside);
    b->count++;
    return rc;
}

static int bench(struct ctl *ctl, struct bench *b)
{
    bool made = false;
    int rc = make_model(ctl, b, &made);
    if (!rc)
        rc = open_clients(ctl, b);
    if (!rc && atomic_load(&stop))
        rc = interrupted(ctl);
    for (int i = 0; !rc && i < BENCH_PLANES; i++)
        if (b->work.plan.planes[i])
            rc = measure(ctl, b, (enum bench_plane)i);
    return made ? drop_model(ctl, b, rc) : rc;
}

int cmd_bench(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct sigaction before[END_SIGNALS];
    struct bench b = {
        .work = {.socket = ctl->socket, .timeout_ms = ctl->timeout_ms, .stop = &stop}};
    if (bench_plan_read(a, &b.work.plan, &f))
        return ctl_usage(ctl, "%s", f.text);
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (bench_plan_fits(&b.work.plan, fp8d_server_info(ctl->c), &f))
        return ctl_usage(ctl, "%s", f.text);
    name_model(b.model);
    b.work.model = b.model;
    signals_take(before);
    rc = bench(ctl, &b);
    signals_give(before);
    if (!rc)
        rc = bench_report(ctl, &b.work.plan, b.planes, b.count);
    bench_fini(&b);
    return rc;
}
