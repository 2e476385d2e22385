/* Operations that move state rather than compute layers: copy, apply, compare, stamp. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/queue.h"

#include <time.h>

struct copy_run {
    char *dst;
    const char *src;
    uint64_t bytes;
};

static void copy_execute(struct cpu_queue *q, void *args)
{
    const struct copy_run *r = args;
    (void)q;
    memcpy(r->dst, r->src, r->bytes);
}

int cpu_copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
             uint64_t src_off, uint64_t bytes, struct fault *f)
{
    struct copy_run r = {(char *)dst->data + dst_off, (const char *)src->data + src_off, bytes};
    return cpu_queue_post((struct cpu_queue *)q, copy_execute, &r, sizeof r, NULL, 0, f);
}

static void apply_one(const struct apply *a, const struct apply_site *at)
{
    struct scaler *s = at->site;
    if (at->replace) {
        memcpy(s, at->replace, scaler_bytes(at->replace->len));
    } else {
        if (at->slot)
            scaler_collect(s, at->slot);
        if (!at->collect)
            scaler_apply(s, at->fmt, a->algo, a->margin, a->frozen);
    }
    if (at->mirror)
        memcpy(at->mirror, s, scaler_bytes(s->len));
}

static void apply_execute(struct cpu_queue *q, void *args)
{
    const struct apply *a = args;
    const struct apply_site *sites = (const struct apply_site *)(a + 1);
    (void)q;
    for (size_t i = 0; i < a->count; i++)
        apply_one(a, &sites[i]);
}

int cpu_apply(struct queue *q, const struct apply *a, struct fault *f)
{
    return cpu_queue_post((struct cpu_queue *)q, apply_execute, a, sizeof *a, a->sites,
                          a->count * sizeof *a->sites, f);
}

struct compare_run {
    struct tensor a, b;
    struct compare_report *report;
};

static void compare_one(struct compare_report *r, double a, double b)
{
    /* x - x is 0 for every finite x, and NaN otherwise. */
    if (!(a - a == 0.0) || !(b - b == 0.0)) {
        r->nonfinite++;
        return;
    }
    double diff = a > b ? a - b : b - a;
    double ref = b < 0.0 ? -b : b;
    r->max_diff = diff > r->max_diff ? diff : r->max_diff;
    r->max_ref = ref > r->max_ref ? ref : r->max_ref;
    r->sum_diff2 += diff * diff;
    r->sum_ref2 += ref * ref;
}

static void compare_execute(struct cpu_queue *q, void *args)
{
    const struct compare_run *r = args;
    struct compare_report report = {0};
    uint64_t count = r->a.rows * r->a.cols;
    for (uint64_t i = 0; i < count; i++) {
        compare_one(&report, (double)tensor_element(&r->a, i), (double)tensor_element(&r->b, i));
        if (i % CPU_CHUNK == 0)
            atomic_fetch_add(&q->base.progress, 1);
    }
    *r->report = report;
}

int cpu_compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                struct compare_report *report, struct fault *f)
{
    struct compare_run r = {*a, *b, report};
    return cpu_queue_post((struct cpu_queue *)q, compare_execute, &r, sizeof r, NULL, 0, f);
}

struct stamp_run {
    uint64_t *at;
};

static void stamp_execute(struct cpu_queue *q, void *args)
{
    const struct stamp_run *r = args;
    struct timespec t;
    (void)q;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    *r->at = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int cpu_stamp(struct queue *q, uint64_t *at, struct fault *f)
{
    struct stamp_run r = {at};
    return cpu_queue_post((struct cpu_queue *)q, stamp_execute, &r, sizeof r, NULL, 0, f);
}
