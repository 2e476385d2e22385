#include "daemon/engine/optimizer.h"

#include "daemon/engine/model.h"

void optimizer_state_fini(struct optimizer_state *s)
{
    buffer_unref(s->master.buf);
    buffer_unref(s->m.buf);
    buffer_unref(s->v.buf);
    *s = (struct optimizer_state){0};
}

void optimizer_state_rebase(struct optimizer_state *s)
{
    buffer_unref(s->master.buf);
    s->master = (struct tensor){0};
}

static uint64_t charged(const struct tensor *t)
{
    return t->buf ? t->buf->charged : 0;
}

uint64_t optimizer_state_bytes(const struct optimizer_state *s)
{
    return charged(&s->master) + charged(&s->m) + charged(&s->v);
}

struct optimizer_options optimizer_of(const struct optimizer *o, const struct optimizer_own *own)
{
    struct optimizer_options r = o->options;
    if (own->rate_set)
        r.rate = own->rate;
    if (own->decay_set)
        r.weight_decay = own->weight_decay;
    return r;
}

/* What is computed with is the float32 of these: eps, which keeps a division from 0, and a rate
 * that is not 0 must not become 0, nor a beta 1. */
static int check_float32(const struct optimizer_options *o, struct fault *f)
{
    const struct {
        const char *name;
        double value;
        bool below_1;
    } rows[] = {{"rate", o->rate, false},
                {"eps", o->eps, false},
                {"beta1", o->beta1, true},
                {"beta2", o->beta2, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v = rows[i].value;
        float used = (float)v;
        if (rows[i].below_1 ? used >= 1.0f : v > 0 && used <= 0)
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "options.%s is %.17g, which is %g in float32, needed %s there",
                             rows[i].name, v, (double)used,
                             rows[i].below_1 ? "below 1" : "above 0");
    }
    return 0;
}

int optimizer_accept(const struct optimizer_options *o, struct fault *f)
{
    int rc = optimizer_check(o, f);
    return rc ? rc : check_float32(o, f);
}

int optimizer_set(struct model *m, const struct optimizer_options *options,
                  const struct optimizer_own *own, struct fault *f)
{
    struct optimizer next = {.set = true, .options = *options, .steps = m->optimizer.steps};
    bool stays = m->optimizer.set && m->optimizer.options.kind == options->kind &&
                 optimizer_moments(&m->optimizer.options) == optimizer_moments(options);
    int rc = optimizer_accept(options, f);
    for (size_t i = 0; !rc && i < m->layer_count; i++) {
        struct optimizer_options o = optimizer_of(&next, &own[i]);
        rc = optimizer_accept(&o, f);
        if (rc)
            (void)fault_wrap(f, "layer %s", m->layers[i].name);
    }
    if (rc)
        return rc;
    next.updates = stays ? m->optimizer.updates : 0;
    m->optimizer = next;
    for (size_t i = 0; i < m->layer_count; i++) {
        m->layers[i].own = own[i];
        if (stays)
            continue;
        optimizer_state_fini(&m->layers[i].weight_state);
        optimizer_state_fini(&m->layers[i].bias_state);
    }
    return 0;
}
