/* weights.h - for tests of the optimizer's step: a weight with gradient, moments and stored copy on
 * one backend, each inside a buffer of its own between guards. */
#ifndef FP8D_TESTS_UNIT_WEIGHTS_H
#define FP8D_TESTS_UNIT_WEIGHTS_H

#include "tests/unit/rig.h"

#define GUARD 32u /* elements at either end of a buffer, besides the shift */
#define GUARD_BYTE 0xa5

/* Tensors `shift` elements behind a multiple of 64 bytes; moments zero, stored poisoned. */
struct weights {
    struct rig *rig;
    struct tensor master, grad, m, v, stored;
    struct buffer *state; /* a scaler, then a report */
    struct scaler *site;
    struct cast_report *report;
};

static inline struct tensor weights_tensor(struct rig *r, enum dtype t, uint64_t rows,
                                           uint64_t cols, unsigned shift)
{
    uint64_t size = dtype_bits(t) / 8, bytes = (rows * cols + 2 * GUARD + shift) * size;
    struct tensor x = {.buf = rig_buffer(r, bytes, NULL),
                       .offset = (GUARD + shift) * size,
                       .dtype = t,
                       .rows = rows,
                       .cols = cols};
    memset(x.buf->host, GUARD_BYTE, bytes);
    return x;
}

static inline void *weights_data(const struct tensor *t)
{
    return (char *)t->buf->host + t->offset;
}

static inline float *weights_floats(const struct tensor *t)
{
    return weights_data(t);
}

static inline uint64_t weights_bytes(const struct tensor *t)
{
    return t->rows * t->cols * (dtype_bits(t->dtype) / 8);
}

static inline struct weights weights_new(struct rig *r, uint64_t rows, uint64_t cols,
                                         enum dtype stored, unsigned shift)
{
    struct weights w = {.rig = r,
                        .master = weights_tensor(r, DTYPE_F32, rows, cols, shift),
                        .grad = weights_tensor(r, DTYPE_F32, rows, cols, shift),
                        .m = weights_tensor(r, DTYPE_F32, rows, cols, shift),
                        .v = weights_tensor(r, DTYPE_F32, rows, cols, shift),
                        .stored = weights_tensor(r, stored, rows, cols, shift)};
    w.state = rig_buffer(r, scaler_bytes(1) + sizeof *w.report, NULL);
    w.site = w.state->host;
    w.report = (struct cast_report *)(void *)((char *)w.state->host + scaler_bytes(1));
    scaler_init(w.site, 1);
    memset(w.report, GUARD_BYTE, sizeof *w.report);
    memset(weights_data(&w.m), 0, weights_bytes(&w.m));
    memset(weights_data(&w.v), 0, weights_bytes(&w.v));
    return w;
}

static inline void weights_guarded(const struct tensor *t)
{
    const uint8_t *p = t->buf->host;
    for (uint64_t i = 0; i < t->buf->bytes; i++)
        if (i < t->offset || i >= t->offset + weights_bytes(t))
            ck_assert_msg(p[i] == GUARD_BYTE, "byte %lu of %lu was written, outside", i,
                          t->buf->bytes);
}

/* Also sees that nothing around the tensors was written. */
static inline void weights_free(struct weights *w)
{
    const struct tensor *all[] = {&w->master, &w->grad, &w->m, &w->v, &w->stored};
    for (unsigned i = 0; i < 5; i++) {
        weights_guarded(all[i]);
        buffer_unref(all[i]->buf);
    }
    buffer_unref(w->state);
}

/* A step over these tensors, moments as the kind has them; `stored` kept. */
static inline struct update weights_update(const struct weights *w,
                                           const struct optimizer_options *o, uint64_t step,
                                           float grad_scale)
{
    unsigned moments = optimizer_moments(o);
    struct update u = {.options = *o,
                       .step = step,
                       .grad_scale = grad_scale,
                       .master = w->master,
                       .grad = w->grad,
                       .round_to = w->stored.dtype,
                       .stored = w->stored};
    if (moments > 0)
        u.m = w->m;
    if (moments > 1)
        u.v = w->v;
    return u;
}

/* Everything that an FP8 tensor holds, on the host. */
struct weights_forms {
    uint8_t *codes, *second;
    float factor;
    uint64_t pitch;
};

static inline void weights_forms_cb(void *arg, const struct qtensor_view *view)
{
    struct weights_forms *h = arg;
    uint64_t n = view->info.rows * view->info.cols, second = view->info.cols * view->pitch;
    h->codes = malloc(n + 1);
    h->second = view->transposed ? malloc(second + 1) : NULL;
    h->factor = *view->scale_inv;
    h->pitch = view->pitch;
    memcpy(h->codes, view->codes, n);
    if (view->transposed)
        memcpy(h->second, view->transposed, second);
}

static inline struct weights_forms weights_look(struct rig *r, struct qtensor *t)
{
    struct weights_forms h = {0};
    ck_assert_msg(!qtensor_export(r->q, t, weights_forms_cb, &h, &r->f), "%s", r->f.text);
    rig_wait(r);
    return h;
}

static inline void weights_forms_free(struct weights_forms *h)
{
    free(h->codes);
    free(h->second);
}

#endif
