#include "daemon/engine/step_layer.h"

#include <math.h>

double step_sqrt(double x)
{
    return sqrt(x);
}

/* --- memory --- */

static int float_tensor(struct engine *e, uint64_t rows, uint64_t cols, const char *what,
                        struct tensor *out, struct fault *f)
{
    *out = (struct tensor){.dtype = DTYPE_F32, .rows = rows, .cols = cols};
    return buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, rows * cols * sizeof(float), what,
                      &out->buf, f);
}

/* None yet, or somebody else holds this version of it (a save; a context, of a bias; who shares a
 * tensor of CreateModel): the step writes elsewhere. */
static bool wants_memory(const struct tensor *have)
{
#ifdef FP8D_MUTANT_STEP_IN_PLACE
    return !have->buf;
#endif
    return !have->buf || atomic_load(&have->buf->refs) > 1;
}

/* Masters and moments that `have` lacks. A float32 tensor needs no master. */
static int state_init(struct step_tensor *t, struct engine *e, const struct optimizer *o,
                      const struct optimizer_state *have, enum dtype dtype, uint64_t rows,
                      uint64_t cols, struct fault *f)
{
    unsigned moments = optimizer_moments(&o->options);
    int rc = 0;
    if (dtype != DTYPE_F32 && wants_memory(&have->master))
        rc = float_tensor(e, rows, cols, "a master weight", &t->fresh.master, f);
    if (!rc && moments > 0 && wants_memory(&have->m))
        rc = float_tensor(e, rows, cols, "a moment of the optimizer", &t->fresh.m, f);
    if (!rc && moments > 1 && wants_memory(&have->v))
        rc = float_tensor(e, rows, cols, "a moment of the optimizer", &t->fresh.v, f);
    return rc;
}

/* Where a high-precision tensor is written: in place unless somebody else holds this version of it.
 */
static int place_init(struct step_tensor *t, struct engine *e, const struct tensor *now,
                      struct fault *f)
{
    t->to = *now;
    if (!now->buf || !wants_memory(now))
        return 0;
    uint64_t bytes = now->rows * now->cols * (dtype_bits(now->dtype) / 8);
    int rc =
        buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes, "a weight", &t->fresh_to, f);
    t->to.buf = t->fresh_to;
    t->to.offset = 0;
    return rc;
}

/* A bias that an edit gave to the layer has no gradient before the next backward. */
static bool moves_bias(const struct layer *l)
{
    return l->weight.bias.buf && gradient_bias(&l->gradient)->buf;
}

/* The moments that a layer's options ask for are the model's: only rate and decay are its own. */
int step_layer_init(struct step_layer *s, struct model *m, struct layer *l, struct fault *f)
{
    const struct weight *w = &l->weight;
    enum dtype dtype = w->primary.q ? DTYPE_NONE : w->high.dtype;
    *s = (struct step_layer){.layer = l};
    int rc =
        state_init(&s->weight, m->engine, &m->optimizer, &l->weight_state, dtype, l->out, l->in, f);
    if (!rc)
        rc = place_init(&s->weight, m->engine, &w->high, f);
    if (rc || !moves_bias(l))
        return rc;
    rc =
        state_init(&s->bias, m->engine, &m->optimizer, &l->bias_state, w->bias.dtype, 1, l->out, f);
    return rc ? rc : place_init(&s->bias, m->engine, &w->bias, f);
}

static void tensor_fini(struct step_tensor *t)
{
    optimizer_state_fini(&t->fresh);
    buffer_unref(t->fresh_to);
    *t = (struct step_tensor){0};
}

void step_layer_measured(struct step_layer *s)
{
    for (int i = 0; i < 2; i++) {
        buffer_unref(s->measured[i]);
        s->measured[i] = NULL;
    }
}

void step_layer_fini(struct step_layer *s)
{
    tensor_fini(&s->weight);
    tensor_fini(&s->bias);
    step_layer_measured(s);
    qtensor_unref(s->q);
    *s = (struct step_layer){0};
}

/* --- first round --- */

static int copy(struct queue *q, const struct tensor *from, struct buffer *to, struct fault *f)
{
    return backend_copy(q, to, 0, from->buf, from->offset, from->rows * from->cols * sizeof(float),
                        f);
}

/* A moment as it is before the step: zeros before the first. */
static int fill_moment(struct queue *q, const struct tensor *have, const struct tensor *fresh,
                       struct fault *f)
{
    if (!fresh->buf)
        return 0;
#ifdef FP8D_MUTANT_MOVED_MOMENT
    return backend_zero(q, fresh, f);
#endif
    return have->buf ? copy(q, have, fresh->buf, f) : backend_zero(q, fresh, f);
}

/* `now` is the high-precision tensor (buf NULL where there is none), `codes` the FP8 primary one.
 */
static int fill_master(struct queue *q, const struct tensor *have, const struct tensor *fresh,
                       const struct tensor *now, const struct qtensor *codes, struct fault *f)
{
    if (!fresh->buf)
        return 0;
#ifndef FP8D_MUTANT_MOVED_MASTER
    if (have->buf)
        return copy(q, have, fresh->buf, f);
#endif
    return codes ? qtensor_dequantize(q, codes, fresh, f) : backend_convert(q, now, fresh, f);
}

/* Fresh state as it is before this step; a float32 tensor that moves is copied there. */
static int fill(struct step_tensor *t, const struct optimizer_state *have, struct queue *q,
                const struct tensor *now, const struct qtensor *codes, struct fault *f)
{
    int rc = fill_moment(q, &have->m, &t->fresh.m, f);
    if (!rc)
        rc = fill_moment(q, &have->v, &t->fresh.v, f);
    if (!rc)
        rc = fill_master(q, &have->master, &t->fresh.master, now, codes, f);
    if (!rc && t->fresh_to && now->dtype == DTYPE_F32)
        rc = copy(q, now, t->fresh_to, f);
    return rc;
}

int step_layer_begin(struct step_layer *s, struct model *m, struct step_report *r, struct fault *f)
{
    const struct layer *l = s->layer;
    struct queue *q = m->engine->queue;
    s->measured[0] = buffer_ref(gradient_weight(&l->gradient)->buf);
    if (moves_bias(l))
        s->measured[1] = buffer_ref(gradient_bias(&l->gradient)->buf);
    int rc = fill(&s->weight, &l->weight_state, q, &l->weight.high, l->weight.primary.q, f);
    if (!rc)
        rc = backend_norm(q, gradient_weight(&l->gradient), &r->weight, f);
    if (rc || !moves_bias(l))
        return rc;
    rc = fill(&s->bias, &l->bias_state, q, &l->weight.bias, NULL, f);
    return rc ? rc : backend_norm(q, gradient_bias(&l->gradient), &r->bias, f);
}

/* --- second round --- */

static struct tensor either(const struct tensor *fresh, const struct tensor *have)
{
    return fresh->buf ? *fresh : *have;
}

static struct update update_of(const struct step_tensor *t, const struct optimizer_state *have,
                               const struct model *m, const struct layer *l,
                               const struct tensor *grad, float grad_scale)
{
    struct update u = {
        .options = optimizer_of(&m->optimizer, &l->own),
        .step = m->optimizer.updates + 1,
        .grad_scale = grad_scale,
        .master = either(&t->fresh.master, &have->master),
        .grad = *grad,
        .m = either(&t->fresh.m, &have->m),
        .v = either(&t->fresh.v, &have->v),
    };
    if (!u.master.buf) {
        u.master = t->to; /* float32: its own master */
    } else if (t->to.buf) {
        u.round_to = t->to.dtype;
        u.stored = t->to;
    }
    return u;
}

/* Under a scale that is known beforehand the new bytes come from the same pass. Under recipe
 * current a copy is made when it is needed, but an FP8 primary weight is its bytes. */
static int update_weight(struct step_layer *s, struct model *m, const struct update *u,
                         struct step_report *r, struct fault *f)
{
    struct layer *l = s->layer;
    struct engine *e = m->engine;
    bool primary = l->weight.primary.q != NULL;
    bool delayed = m->recipe.kind == RECIPE_DELAYED;
    struct cast c = {
        .src = u->master,
        .fmt =
            primary ? qtensor_info(l->weight.primary.q).fmt : recipe_dtype(&m->recipe, SITE_WEIGHT),
        .mode = delayed ? CAST_SITE : CAST_TENSOR,
        .margin = m->recipe.margin,
        .site = site_state(&l->sites[SITE_WEIGHT]),
        .report = &r->cast,
        .transposed = true,
    };
    if (delayed && (primary || l->weight.train.q))
        return qtensor_update(e->queue, e->o.ledger, u, &c, "the new FP8 weight", &s->q, f);
    int rc = backend_update(e->queue, u, f);
    if (rc || !primary)
        return rc;
    return qtensor_cast(e->queue, e->o.ledger, &c, "the new FP8 weight", &s->q, f);
}

int step_layer_update(struct step_layer *s, struct model *m, float grad_scale,
                      struct step_report *r, struct fault *f)
{
    struct layer *l = s->layer;
    struct update u =
        update_of(&s->weight, &l->weight_state, m, l, &l->gradient.weight, grad_scale);
    if (l->weight.primary.q)
        u.round_to = l->weight.origin; /* an FP8 source: not rounded */
    int rc = update_weight(s, m, &u, r, f);
    if (rc || !moves_bias(l))
        return rc;
    u = update_of(&s->bias, &l->bias_state, m, l, &l->gradient.bias, grad_scale);
    return backend_update(m->engine->queue, &u, f);
}

/* --- the end --- */

static void settle_tensor(struct step_tensor *t, struct optimizer_state *state, struct tensor *now)
{
    struct tensor *const fresh[] = {&t->fresh.master, &t->fresh.m, &t->fresh.v};
    struct tensor *const have[] = {&state->master, &state->m, &state->v};
    for (int i = 0; i < 3; i++)
        if (fresh[i]->buf) {
            buffer_unref(have[i]->buf);
            *have[i] = *fresh[i];
            *fresh[i] = (struct tensor){0};
        }
    if (!t->fresh_to)
        return;
    buffer_unref(now->buf);
    *now = t->to;
    t->fresh_to = NULL;
}

void step_layer_settle(struct step_layer *s, struct model *m, const struct step_report *r)
{
    struct layer *l = s->layer;
    struct site *site = &l->sites[SITE_WEIGHT];
    settle_tensor(&s->weight, &l->weight_state, &l->weight.high);
    settle_tensor(&s->bias, &l->bias_state, &l->weight.bias);
    site->calibration_amax = 0.0f; /* of the old weight */
    site->calibration_seen = false;
    weight_stepped(&l->weight, &m->recipe, site_mirror(site), m->weight_version,
                   s->q ? qtensor_ref(s->q) : NULL, &r->cast);
}
