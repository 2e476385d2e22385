#include "daemon/engine/load_optimizer.h"

#include "base/text.h"
#include "daemon/engine/load_bytes.h"
#include "daemon/engine/load_route.h"
#include "daemon/engine/load_state.h"

#include <stdio.h>
#include <string.h>

/* --- from the header --- */

int load_optimizer_header(struct load *ld, struct fault *f)
{
    const char *json = ld->claim.save ? safetensors_meta(ld->header, STATE_OPTIMIZER_META) : NULL;
    int rc = json ? state_take_optimizer(json, &ld->optimizer, f) : 0;
    bool left_out = json != NULL;
    for (size_t i = 0; !rc && i < ld->claim.layer_count; i++) {
        struct source *x = &ld->claim.layers[i];
        rc = source_check_moved(x, json ? &ld->optimizer : NULL, f);
        left_out = left_out || source_has_training(x);
        if (ld->o.no_optimizer)
            source_forget_training(x);
    }
    if (rc || !ld->o.no_optimizer)
        return rc;
    ld->optimizer = (struct optimizer){0};
    if (left_out)
        claim_line(&ld->claim, &ld->claim.notes,
                   "the optimizer and gradients of the file were left out");
    return 0;
}

/* --- memory --- */

/* A float32 weight is its own master: where FP8 becomes F32, the file's has no place. */
static bool keeps_master(const struct load *ld, const struct source *x)
{
    return load_route(ld, x) != ROUTE_WIDEN || ld->o.dequantize != DTYPE_F32;
}

/* A tensor of the file and where it goes; t NULL: it does not. */
struct passage {
    const struct safetensors_tensor *t;
    struct tensor *to;
    bool squares; /* no element is negative */
};

#define PASSAGES (STATE_PARAMETERS * STATE_MOVED_PARTS + 2)

static void passages(struct load *ld, size_t i, struct passage out[PASSAGES])
{
    const struct source *x = &ld->claim.layers[i];
    struct layer *l = &ld->built->layers[i];
    struct optimizer_state *const states[STATE_PARAMETERS] = {&l->weight_state, &l->bias_state};
    unsigned n = 0;
    for (unsigned p = 0; p < STATE_PARAMETERS; p++) {
        struct optimizer_state *s = states[p];
        bool master = p == STATE_BIAS || keeps_master(ld, x);
        out[n++] = (struct passage){master ? x->moved[p][STATE_MASTER] : NULL, &s->master, false};
        out[n++] = (struct passage){x->moved[p][STATE_M], &s->m, false};
        out[n++] = (struct passage){x->moved[p][STATE_V], &s->v, true};
    }
    out[n++] = (struct passage){x->gradient[STATE_GRADIENT_WEIGHT], &l->gradient.weight, false};
    out[n++] = (struct passage){x->gradient[STATE_GRADIENT_BIAS], &l->gradient.bias, false};
}

static int make_room(struct load *ld, const struct passage *p, struct fault *f)
{
    const struct safetensors_tensor *t = p->t;
    const struct engine_options *o = &ld->engine->o;
    char name[256];
    struct tensor to = {
        .dtype = DTYPE_F32,
        .rows = t->rank == 2 ? t->dims[0] : 1,
        .cols = t->dims[t->rank - 1],
    };
    int rc = buffer_new(o->backend, o->ledger, BUFFER_DEVICE, t->bytes,
                        text_escape(name, sizeof name, t->name, strlen(t->name)), &to.buf, f);
    if (rc)
        return rc;
    *p->to = to;
    atomic_fetch_add(&ld->bytes_total, t->bytes);
    atomic_fetch_add(&ld->tensors_total, 1);
    return 0;
}

static void count(struct load *ld, const struct safetensors_tensor *t)
{
    if (t)
        atomic_fetch_add(&ld->bytes_total, t->bytes);
}

int load_optimizer_reserve(struct load *ld, size_t i, struct fault *f)
{
    const struct source *x = &ld->claim.layers[i];
    struct passage p[PASSAGES];
    int rc = 0;
    passages(ld, i, p);
    for (unsigned k = 0; !rc && k < PASSAGES; k++)
        if (p[k].t)
            rc = make_room(ld, &p[k], f);
    count(ld, x->own);
    count(ld, x->origin);
    count(ld, x->gradient[STATE_GRADIENT_COUNTS]);
    return rc;
}

/* --- values --- */

static int take_own(struct load *ld, const struct safetensors_tensor *t, struct layer *l,
                    struct fault *f)
{
    double own[STATE_OWN];
    const char *why;
    int rc = t ? load_bytes_small(ld, t, own, sizeof own, f) : 0;
    if (!rc && t && state_take_own(own, &ld->optimizer, &l->own, &why))
        rc = load_state_wrong(t, FP8D_EDATA_LOSS, why, f);
    return rc;
}

static int take_counters(struct load *ld, const struct safetensors_tensor *t, struct gradient *g,
                         struct fault *f)
{
    uint64_t counters[STATE_GRADIENT_COUNTERS];
    int rc = t ? load_bytes_small(ld, t, counters, sizeof counters, f) : 0;
    if (rc || !t)
        return rc;
    if (counters[0] > STATE_COUNT_MAX || counters[1] > STATE_COUNT_MAX)
        return load_state_wrong(t, FP8D_EDATA_LOSS, "a count is above 2^62", f);
    if (!counters[0])
        return load_state_wrong(t, FP8D_EDATA_LOSS, "a gradient of no backward, needed at least 1",
                                f);
    g->held = true;
    g->contributions = counters[0];
    g->nonfinite = counters[1];
    return 0;
}

static int take_origin(struct load *ld, const struct safetensors_tensor *t, struct weight *w,
                       struct fault *f)
{
    uint64_t number;
    int rc = t ? load_bytes_small(ld, t, &number, sizeof number, f) : 0;
    if (rc || !t)
        return rc;
    w->origin = state_take_origin(number);
    return w->origin
               ? 0
               : load_state_wrong(t, FP8D_EDATA_LOSS, "needed 1 (F32), 2 (BF16) or 3 (F16)", f);
}

int load_optimizer_values(struct load *ld, size_t i, struct fault *f)
{
    const struct source *x = &ld->claim.layers[i];
    struct layer *l = &ld->built->layers[i];
    int rc = take_own(ld, x->own, l, f);
    if (!rc)
        rc = take_counters(ld, x->gradient[STATE_GRADIENT_COUNTS], &l->gradient, f);
    if (!rc)
        rc = take_origin(ld, x->origin, &l->weight, f);
    ld->built->optimizer = ld->optimizer;
    return rc;
}

/* --- bytes --- */

/* A second moment is a mean of squares; of a model that diverged it may be NaN. */
static void look_at_squares(void *arg, const unsigned char *bytes, size_t n)
{
    _Atomic uint64_t *wrong = arg;
    uint64_t found = 0;
    for (size_t at = 0; at + sizeof(float) <= n; at += sizeof(float)) {
        float v;
        memcpy(&v, bytes + at, sizeof v);
        found += v < 0.0f;
    }
    atomic_fetch_add(wrong, found); /* several threads look */
}

static int fill_squares(struct load *ld, const struct passage *p, struct queue *q, struct fault *f)
{
    _Atomic uint64_t wrong = 0;
    char why[96];
    int rc = load_bytes_all(ld, p->t, p->to->buf, q, look_at_squares, &wrong, f);
    if (rc || !atomic_load(&wrong))
        return rc;
    (void)snprintf(why, sizeof why, "%llu elements are negative, needed none",
                   (unsigned long long)atomic_load(&wrong));
    return load_state_wrong(p->t, FP8D_EDATA_LOSS, why, f);
}

int load_optimizer_fill(struct load *ld, size_t i, struct queue *q, struct fault *f)
{
    struct passage p[PASSAGES];
    int rc = 0;
    passages(ld, i, p);
    for (unsigned k = 0; !rc && k < PASSAGES; k++) {
        if (!p[k].t)
            continue;
        rc = p[k].squares ? fill_squares(ld, &p[k], q, f)
                          : load_bytes_all(ld, p[k].t, p[k].to->buf, q, NULL, NULL, f);
    }
    return rc;
}

/* --- the report --- */

void load_optimizer_note(struct load *ld)
{
    struct claim *c = &ld->claim;
    const struct optimizer *o = &ld->optimizer;
    size_t held = 0;
    size_t dropped = 0;
    size_t begun = 0;
    for (size_t i = 0; i < c->layer_count; i++) {
        const struct source *x = &c->layers[i];
        held += source_has_gradient(x);
        dropped += x->moved[STATE_WEIGHT][STATE_MASTER] && !keeps_master(ld, x);
        begun += o->updates && x->weight->dtype == DTYPE_F32 && load_route(ld, x) == ROUTE_CAST;
    }
    if (o->set)
        claim_line(c, &c->notes, "optimizer %s goes on after step %llu",
                   state_optimizer_kind(o->options.kind), (unsigned long long)o->steps);
    if (held)
        claim_line(c, &c->notes, "gradients of %zu layer%s wait for a step", held,
                   held == 1 ? "" : "s");
    if (dropped)
        claim_line(
            c, &c->notes,
            "masters of %zu weights were dropped: the weights are F32 now, their own masters",
            dropped);
    if (begun)
        claim_line(c, &c->notes,
                   "masters of %zu weights begin anew from their FP8 codes: the weights were F32, "
                   "their own masters",
                   begun);
}
