#include "daemon/engine/weight.h"

#include <string.h>

static bool key_equal(const struct copy_key *a, const struct copy_key *b)
{
    return a->version == b->version && a->fmt == b->fmt && a->granularity == b->granularity &&
           a->from_tensor == b->from_tensor && a->margin == b->margin &&
           fp8_float_bits(a->scale) == fp8_float_bits(b->scale) &&
           fp8_float_bits(a->scale_inv) == fp8_float_bits(b->scale_inv);
}

static bool matches(const struct weight_copy *c, const struct copy_key *want)
{
    return c->q && key_equal(&c->key, want);
}

/* Version, format and granularity: what `first_microbatch = no` asks for, whatever the scale. */
static bool same_weight(const struct weight_copy *c, const struct copy_key *want)
{
#ifdef FP8D_MUTANT_CACHE_VERSION
    return c->q && c->key.fmt == want->fmt && c->key.granularity == want->granularity;
#endif
    return c->q && c->key.version == want->version && c->key.fmt == want->fmt &&
           c->key.granularity == want->granularity;
}

static struct copy_key wanted_key(const struct weight *w, const struct recipe *r,
                                  const struct scaler *site, bool train)
{
    struct copy_key k = {
        .version = w->version,
        .fmt = recipe_dtype(r, SITE_WEIGHT),
        .granularity = GRANULARITY_TENSOR,
    };
    k.from_tensor = r->kind == RECIPE_CURRENT || (!train && !site->set);
    if (k.from_tensor) {
        k.margin = r->margin;
    } else {
        k.scale = site->scale;
        k.scale_inv = site->scale_inv;
    }
    return k;
}

static struct copy_choice choose_train(struct weight *w, struct copy_key key,
                                       enum first_microbatch first)
{
    struct copy_choice c = {.action = COPY_CAST, .key = key, .feed = true};
    if (first == FIRST_NO && same_weight(&w->train, &key)) {
        c.action = COPY_REUSED;
        c.found = &w->train;
        c.feed = false;
    } else if (first == FIRST_NO) {
        c.action = COPY_RECAST;
    } else if (first == FIRST_UNSET && matches(&w->train, &key)) {
        c.action = COPY_REUSED;
        c.found = &w->train;
    }
    return c;
}

struct copy_choice weight_choose(struct weight *w, const struct recipe *r,
                                 const struct scaler *site, enum forward_mode mode,
                                 enum first_microbatch first)
{
    bool train = mode == MODE_TRAIN;
    if (w->primary.q)
        return (struct copy_choice){
            .action = COPY_PRIMARY, .found = &w->primary, .key = w->primary.key};
    struct copy_key key = wanted_key(w, r, site, train);
    if (train)
        return choose_train(w, key, first);
    struct copy_choice c = {.action = COPY_EVALUATION, .key = key};
    if (matches(&w->train, &key)) {
        c.action = COPY_REUSED;
        c.found = &w->train;
    } else if (matches(&w->eval, &key)) {
        c.found = &w->eval;
    }
#ifdef FP8D_MUTANT_EVAL_REPLACES
    if (!c.found)
        c.action = COPY_CAST;
#endif
    return c;
}

static void copy_drop(struct weight_copy *c)
{
    qtensor_unref(c->q);
    *c = (struct weight_copy){0};
}

void weight_file(struct weight *w, const struct copy_choice *c, struct qtensor *q,
                 const struct cast_report *report)
{
    struct weight_copy *place = c->action == COPY_EVALUATION ? &w->eval : &w->train;
    copy_drop(place);
    *place = (struct weight_copy){.q = q, .key = c->key, .report = *report};
    /* The same bytes twice are of no use. */
    if (place == &w->train && matches(&w->eval, &c->key))
        copy_drop(&w->eval);
}

void weight_drop_copies(struct weight *w)
{
    copy_drop(&w->train);
    copy_drop(&w->eval);
}

void weight_replace(struct weight *w, struct tensor high, struct tensor bias, uint64_t version)
{
#ifndef FP8D_MUTANT_CACHE_VERSION
    weight_drop_copies(w);
#endif
    copy_drop(&w->primary);
    w->origin = DTYPE_NONE;
    buffer_unref(w->high.buf);
    buffer_unref(w->bias.buf);
    w->high = high;
    w->bias = bias;
    w->version = version;
}

void weight_make_primary(struct weight *w, struct qtensor *q, const struct cast_report *report,
                         enum dtype origin)
{
    struct qtensor_info info = qtensor_info(q);
    weight_drop_copies(w);
    copy_drop(&w->primary);
    buffer_unref(w->high.buf);
    w->high = (struct tensor){0};
    w->origin = origin;
    w->primary = (struct weight_copy){
        .q = q,
        .key = {.version = w->version,
                .fmt = info.fmt,
                .granularity = info.granularity,
                .scale = report->scale},
        .report = *report,
    };
}

void weight_stepped(struct weight *w, const struct recipe *r, const struct scaler *site,
                    uint64_t version, struct qtensor *q, const struct cast_report *report)
{
#ifdef FP8D_MUTANT_STEP_COPY
    struct qtensor *stale = w->train.q ? qtensor_ref(w->train.q) : qtensor_ref(q);
#endif
    weight_drop_copies(w);
    w->version = version;
    if (!q)
        return;
    if (w->primary.q) {
        enum dtype origin = w->origin;
        weight_make_primary(w, q, report, origin);
        return;
    }
#ifdef FP8D_MUTANT_STEP_COPY
    qtensor_unref(q);
    q = stale;
#endif
    w->train = (struct weight_copy){
        .q = q, .key = wanted_key(w, r, site, true), .report = *report};
}

void weight_renumber(struct weight *w, uint64_t version)
{
    w->version = version;
    w->primary.key.version = version;
    w->train.key.version = version;
    w->eval.key.version = version;
}

enum dtype weight_dtype(const struct weight *w)
{
    return w->primary.q ? w->primary.key.fmt : w->high.dtype;
}

bool weight_eval_only(const struct weight *w, const struct recipe *r)
{
    return weight_dtype(w) == DTYPE_F8_E5M2 && recipe_dtype(r, SITE_GRAD_OUTPUT) == DTYPE_F8_E5M2;
}

void weight_fini(struct weight *w)
{
    weight_drop_copies(w);
    copy_drop(&w->primary);
    buffer_unref(w->high.buf);
    buffer_unref(w->bias.buf);
    memset(w, 0, sizeof *w);
}

uint64_t weight_bytes(const struct weight *w)
{
    uint64_t n = w->high.buf ? w->high.buf->charged : 0;
    n += w->bias.buf && w->bias.buf != w->high.buf ? w->bias.buf->charged : 0;
    n += w->primary.q ? qtensor_info(w->primary.q).bytes : 0;
    n += w->train.q ? qtensor_info(w->train.q).bytes : 0;
    n += w->eval.q ? qtensor_info(w->eval.q).bytes : 0;
    return n;
}
