#include "client/ctl/bench_client.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

/* Resident tensors of the connection. */
#define INPUT_ID 1u
#define OUTPUT_ID 2u /* and the next ones, one for each slot */

uint64_t bench_client_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int no_memory(struct bench_client *t)
{
    t->err = (struct fp8d_error){.code = -ENOMEM, .text = "no memory for what is measured"};
    return t->err.code;
}

/* --- opening and closing --- */

static struct fp8d_tensor input_of(const struct bench_work *w)
{
    return (struct fp8d_tensor){.dtype = w->plan.dtype,
                                .rank = 2,
                                .dims = {w->plan.m, w->plan.k},
                                .data = w->input,
                                .size = bench_plan_input_bytes(&w->plan)};
}

static uint64_t outputs_bytes(const struct bench_plan *p)
{
    return p->depth * bench_plan_output_bytes(p);
}

int bench_client_open(struct bench_client *t, const struct bench_work *w)
{
    struct fp8d_options o = {
        .connect_timeout_ms = w->timeout_ms,
        .call_timeout_ms = w->timeout_ms,
        .client_name = "fp8ctl bench",
    };
    struct fp8d_tensor input = input_of(w);
    *t = (struct bench_client){.work = w};
    int rc = fp8d_connect(w->socket, &o, &t->c, &t->err);
    if (!rc && w->plan.planes[BENCH_RESIDENT])
        rc = fp8d_put_tensor(t->c, INPUT_ID, &input, NULL, NULL, &t->err);
    if (rc || !w->plan.planes[BENCH_INLINE])
        return rc;
    t->outputs = mem_pages(outputs_bytes(&w->plan));
    return t->outputs ? 0 : no_memory(t);
}

void bench_client_close(struct bench_client *t)
{
    fp8d_close(t->c); /* before the memory that replies go to */
    if (t->outputs)
        mem_pages_free(t->outputs, outputs_bytes(&t->work->plan));
    samples_fini(&t->latency);
    samples_fini(&t->device);
    samples_fini(&t->outside);
    *t = (struct bench_client){0};
}

/* --- one request --- */

static struct fp8d_forward forward_of(const struct bench_client *t, enum bench_plane plane,
                                      unsigned slot)
{
    const struct bench_work *w = t->work;
    struct fp8d_forward q = {.model = w->model, .layer = BENCH_LAYER, .mode = w->plan.mode};
    if (plane == BENCH_RESIDENT) {
        q.input.tensor_id = INPUT_ID;
        q.output_id = OUTPUT_ID + slot;
        q.replace_output = true;
        return q;
    }
    q.input = input_of(w);
    q.output.size = bench_plan_output_bytes(&w->plan);
    q.output.data = (char *)t->outputs + slot * q.output.size;
    return q;
}

int bench_client_prime(struct bench_client *t)
{
    bool resident = t->work->plan.planes[BENCH_RESIDENT];
    struct fp8d_forward q = forward_of(t, resident ? BENCH_RESIDENT : BENCH_INLINE, 0);
    q.mode = FP8D_MODE_TRAIN;
    return fp8d_forward(t->c, &q, NULL, NULL, &t->err);
}

static int submit(struct bench_client *t, unsigned slot)
{
    struct fp8d_forward q = forward_of(t, t->series.plane, slot);
    q.time_compute = t->series.clock;
    t->sent[slot] = bench_client_now();
    return fp8d_submit_forward(t->c, &q, NULL, &t->id[slot], &t->err);
}

static int note(struct bench_client *t, uint64_t took, const struct fp8d_result *r)
{
    if (!t->series.clock)
        return samples_add(&t->latency, took);
    uint64_t device = fp8d_result_forward(r)->compute_ns;
    if (!device) /* an older server */
        return 0;
    int rc = samples_add(&t->device, device);
    return rc ? rc : samples_add(&t->outside, took > device ? took - device : 0);
}

static int take(struct bench_client *t, unsigned slot)
{
    struct fp8d_result *r;
    int rc = fp8d_wait(t->c, t->id[slot], &r, &t->err);
    if (rc)
        return rc;
    rc = note(t, bench_client_now() - t->sent[slot], r);
    fp8d_result_free(r);
    return rc ? no_memory(t) : 0;
}

/* --- a series --- */

static bool wants_more(const struct bench_client *t, uint64_t begun)
{
    if (atomic_load(t->work->stop) || begun >= t->series.most)
        return false;
    return !begun || bench_client_now() - t->began < t->series.ns;
}

/* Replies of a connection come in the order of its requests. */
static int run(struct bench_client *t)
{
    unsigned depth = t->work->plan.depth; /* a slot for each under way */
    uint64_t begun = 0, ended = 0;
    int rc = 0;
    while (!rc) {
        while (!rc && begun - ended < depth && wants_more(t, begun))
            rc = submit(t, (unsigned)(begun++ % depth));
        if (rc || begun == ended)
            return rc;
        rc = take(t, (unsigned)(ended++ % depth));
    }
    return rc;
}

void bench_client_run(struct bench_client *t)
{
    t->latency.count = t->device.count = t->outside.count = 0;
    if (run(t))
        atomic_store(t->work->stop, true);
    t->ended = bench_client_now();
}
