/* One step of an optimizer over a weight, a piece at a time: moved, rounded, stored, cast. */
#include "kernels/cpu/ops.h"
#include "kernels/cpu/queue.h"
#include "kernels/cpu/transpose.h"

#include <string.h>

#define PIECE                                                                                      \
    2048u /* elements whose rounded values wait for the cast, in the first-level cache             \
           */

struct update_run {
    struct update update;
    struct optimizer_step step;
    bool casts;
    struct cast cast; /* of a step that casts, as are out and scale */
    struct qtensor *out;
    struct cpu_queue *queue;
    uint64_t count;
    float scale;
};

static float *floats(const struct tensor *t, uint64_t first)
{
    return t->buf ? (float *)tensor_data(t) + first : NULL;
}

/* Elements of one piece, moved in place. */
static void move_piece(const struct update_run *r, uint64_t first, uint64_t n)
{
    const struct update *u = &r->update;
    const float *grad = floats(&u->grad, first);
    float *master = floats(&u->master, first), *m = floats(&u->m, first);
    float *v = floats(&u->v, first);
    for (uint64_t i = 0; i < n; i++) {
        struct optimizer_element e = {master[i], m ? m[i] : 0.0f, v ? v[i] : 0.0f};
        e = optimizer_move(&r->step, e, grad[i]);
        master[i] = e.master;
        if (m)
            m[i] = e.m;
        if (v)
            v[i] = e.v;
    }
}

/* The master of one piece rounded: into `stored` where that is kept, and back as float32. */
static void round_piece(const struct update_run *r, uint64_t first, uint64_t n, float *rounded)
{
    const struct update *u = &r->update;
    const float *master = floats(&u->master, first);
    bool half = u->round_to == DTYPE_BF16 || u->round_to == DTYPE_F16;
    char *to = u->stored.buf ? (char *)tensor_data(&u->stored) + first * (half ? 2 : 4) : NULL;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h = u->round_to == DTYPE_F16 ? f16_encode(master[i]) : bf16_encode(master[i]);
        rounded[i] = master[i];
        if (half)
            rounded[i] = u->round_to == DTYPE_F16 ? f16_decode(h) : bf16_decode(h);
        if (to)
            memcpy(to + i * (half ? 2 : 4), half ? (void *)&h : (void *)&rounded[i], half ? 2 : 4);
    }
}

static void update_chunk(void *arg, unsigned worker, uint64_t chunk)
{
    struct update_run *r = arg;
    uint64_t end = (chunk + 1) * CPU_CHUNK < r->count ? (chunk + 1) * CPU_CHUNK : r->count;
    float rounded[PIECE];
    for (uint64_t i = chunk * CPU_CHUNK; i < end; i += PIECE) {
        uint64_t n = end - i < PIECE ? end - i : PIECE;
        move_piece(r, i, n);
        if (r->casts || r->update.stored.buf)
            round_piece(r, i, n, rounded);
        if (r->casts) /* of the float32 that the rounded value is: the same codes and counts */
            r->queue->kernels->cast(rounded, DTYPE_F32, n, r->scale, r->cast.fmt,
                                    (uint8_t *)r->out->mem->data + i, &r->queue->slots[worker]);
    }
}

/* The pass over the weight; returns what the cast saw. */
static struct amax_slot run_chunks(struct update_run *r)
{
    struct cpu_queue *q = r->queue;
    struct amax_slot all = {0};
    memset(q->slots, 0, q->pool.threads * sizeof *q->slots);
    pool_run(&q->pool, update_chunk, r, (r->count + CPU_CHUNK - 1) / CPU_CHUNK);
    for (unsigned i = 0; i < q->pool.threads; i++)
        slot_merge(&all, &q->slots[i]);
    all.casts = 1;
    return all;
}

static void cast_also(struct update_run *r)
{
    uint8_t *codes = r->out->mem->data;
    struct cast_report report = {.scale = r->cast.site->scale,
                                 .scale_inv = r->cast.site->scale_inv};
    r->scale = report.scale;
    memcpy(codes + r->out->factor_offset, &report.scale_inv, sizeof report.scale_inv);
    report.slot = run_chunks(r);
    if (r->out->second_offset)
        cpu_transpose_codes(r->queue, codes, r->out->rows, r->out->cols,
                            codes + r->out->second_offset, r->out->second_pitch);
    *r->cast.report = report;
}

static void update_execute(struct cpu_queue *q, void *args)
{
    struct update_run *r = args;
    r->queue = q;
    if (r->casts)
        cast_also(r);
    else
        (void)run_chunks(r);
}

int cpu_update(struct queue *q, const struct update *u, const struct cast *c, struct qtensor *out,
               struct fault *f)
{
    struct update_run r = {.update = *u,
                           .step = optimizer_step_of(&u->options, u->step, u->grad_scale),
                           .casts = c != NULL,
                           .out = out,
                           .count = u->master.rows * u->master.cols};
    if (c)
        r.cast = *c;
    return cpu_queue_post((struct cpu_queue *)q, update_execute, &r, sizeof r, NULL, 0, f);
}
