#include "tests/scenario/pair.h"

#include "tests/unit/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- words of both sides --- */

static const Fp8d__V1__Mode modes[] = {
    [ORACLE_TRAIN] = FP8D__V1__MODE__MODE_TRAIN,
    [ORACLE_EVAL] = FP8D__V1__MODE__MODE_EVAL,
    [ORACLE_CALIBRATE] = FP8D__V1__MODE__MODE_CALIBRATE,
};

static const Fp8d__V1__FirstMicrobatch flags[] = {
    [ORACLE_UNSET] = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_UNSPECIFIED,
    [ORACLE_TRUE] = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_YES,
    [ORACLE_FALSE] = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO,
};

static const Fp8d__V1__WeightCopy copies[] = {
    [ORACLE_COPY_CAST] = FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_CAST,
    [ORACLE_COPY_REUSED] = FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_REUSED,
    [ORACLE_COPY_REMADE] = FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_RECAST,
    [ORACLE_COPY_EVAL] = FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_EVALUATION,
    [ORACLE_COPY_NONE] = FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_NONE,
};

bool pair_small(void)
{
    return getenv("FP8D_TEST_SMALL") != NULL;
}

Fp8d__V1__Recipe pair_recipe(const struct oracle_recipe *r)
{
    Fp8d__V1__Recipe w = FP8D__V1__RECIPE__INIT;
    w.kind = r->current ? FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT
                        : FP8D__V1__RECIPE_KIND__RECIPE_KIND_DELAYED;
    w.amax_algo = r->most_recent ? FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT
                                 : FP8D__V1__AMAX_ALGO__AMAX_ALGO_MAX;
    w.amax_history_len = (uint32_t)r->history_len;
    w.margin = (uint32_t)r->margin;
    return w;
}

/* --- life --- */

static void load(struct pair *p, const float *w, const float *bias)
{
    struct desk_layer layer = {PAIR_LAYER, p->out, p->in, w, bias};
    Fp8d__V1__Recipe recipe = pair_recipe(&p->recipe);
    unsigned code = desk_load(p->desk, p->a.conn, PAIR_MODEL, &layer, 1, &recipe, p->a.text);
    ck_assert_msg(code == 0, "load: %s", p->a.text);
    oracle_load(p->oracle, w, 0, 0);
    oracle_set_bias(p->oracle, bias);
}

void pair_open(struct pair *p, size_t out, size_t in, const struct oracle_recipe *r, const float *w,
               const float *bias)
{
    pair_open_on(p, 0, out, in, r, w, bias);
}

void pair_open_on(struct pair *p, unsigned threads, size_t out, size_t in,
                  const struct oracle_recipe *r, const float *w, const float *bias)
{
    *p = (struct pair){.recipe = *r, .out = out, .in = in};
    p->desk = desk_new(NULL, threads);
    p->a = ask_open(p->desk, 1);
    p->oracle = oracle_layer_new(out, in, r);
    load(p, w, bias);
}

void pair_close(struct pair *p)
{
    oracle_layer_free(p->oracle);
    ask_close(&p->a);
    desk_free(p->desk);
}

void pair_load(struct pair *p, const float *w, const float *bias)
{
    oracle_layer_free(p->oracle);
    p->oracle = oracle_layer_new(p->out, p->in, &p->recipe);
    p->no_copy = false;
    load(p, w, bias);
}

void pair_edit(struct pair *p, const float *w)
{
    struct ask_tensor t = ask_f32(w, p->out, p->in);
    unsigned code = ask_edit(&p->a, PAIR_MODEL, PAIR_LAYER, &t, NULL, NULL, NULL);
    ck_assert_msg(code == 0, "edit: %s", p->a.text);
    oracle_set_weight(p->oracle, w);
    p->no_copy = true;
}

void pair_scope_begin(struct pair *p, uint64_t id)
{
    ck_assert_msg(!ask_scope_begin(&p->a, id, PAIR_MODEL), "begin: %s", p->a.text);
    oracle_scope_begin(p->oracle);
    p->ran = false;
}

void pair_scope_end(struct pair *p, uint64_t id)
{
    ck_assert_msg(!ask_scope_end(&p->a, id, false, NULL), "end: %s", p->a.text);
    if (p->ran)
        oracle_scope_end(p->oracle);
    else
        oracle_scope_drop(p->oracle);
    pair_check_state(p);
}

void pair_scope_drop(struct pair *p, uint64_t id)
{
    ck_assert_msg(!ask_scope_end(&p->a, id, true, NULL), "discard: %s", p->a.text);
    oracle_scope_drop(p->oracle);
    pair_check_state(p);
}

void pair_finish(struct pair *p)
{
    ck_assert_msg(!ask_finish(&p->a, PAIR_MODEL, NULL), "finish: %s", p->a.text);
    oracle_calibration_finish(p->oracle);
    pair_check_state(p);
}

/* --- state --- */

static void check_site(const Fp8d__V1__SiteState *s, const struct scaler_ref *r, bool open)
{
    ck_assert_msg(s->set == r->set, "%s: set %d", s->name, s->set);
    ck_assert_msg(s->scale == r->scale && s->scale_inv == r->scale_inv,
                  "%s: scale %a, %a for %a, %a", s->name, (double)s->scale, (double)s->scale_inv,
                  (double)r->scale, (double)r->scale_inv);
    ck_assert_msg((double)s->amax_last == r->last, "%s: last %g for %g", s->name,
                  (double)s->amax_last, r->last);
    ck_assert_msg(open || (double)s->collecting == r->collected, "%s: collecting %g for %g",
                  s->name, (double)s->collecting, r->collected);
    ck_assert_uint_eq(s->n_history, r->len - 1);
    for (size_t age = 0; age < s->n_history; age++)
        ck_assert_msg((double)s->history[age] == scaler_ref_row(r, r->len - 1 - age),
                      "%s: row of age %zu", s->name, age);
    ck_assert_msg(s->updates == r->updates && s->skipped_updates == r->skipped,
                  "%s: %llu updates, %llu skipped for %llu, %llu", s->name,
                  (unsigned long long)s->updates, (unsigned long long)s->skipped_updates,
                  (unsigned long long)r->updates, (unsigned long long)r->skipped);
}

static void check_counts(const Fp8d__V1__SiteState *s, const struct scaler_ref *r)
{
    ck_assert_msg(s->nonfinite == r->nonfinite && s->saturated == r->saturated &&
                      s->flushed == r->flushed,
                  "%s: nonfinite %llu, saturated %llu, flushed %llu for %llu, %llu, %llu", s->name,
                  (unsigned long long)s->nonfinite, (unsigned long long)s->saturated,
                  (unsigned long long)s->flushed, (unsigned long long)r->nonfinite,
                  (unsigned long long)r->saturated, (unsigned long long)r->flushed);
}

/* What an open scope collects is not in the oracle's state. */
void pair_check_state(struct pair *p)
{
    static const char *const names[] = {[ORACLE_INPUT] = "input", [ORACLE_WEIGHT] = "weight"};
    Fp8d__V1__QueryScalingReply *s = ask_state(&p->a, PAIR_MODEL);
    for (int k = 0; k < 2; k++) {
        const Fp8d__V1__SiteState *site = ask_site(s, PAIR_LAYER, names[k]);
        check_site(site, oracle_state(p->oracle, (enum oracle_site)k), s->scope_open);
        check_counts(site, oracle_state(p->oracle, (enum oracle_site)k));
    }
    ck_assert(ask_site(s, PAIR_LAYER, "weight")->scale_inv_in_use ==
              (p->no_copy ? 0.0f : oracle_copy_factor(p->oracle)));
    ask_state_free(s);
}

/* --- forward --- */

struct bound pair_emulate(struct pair *p, enum oracle_mode mode, enum oracle_flag flag,
                          const float *x, size_t tokens, enum oracle_copy *copy)
{
    struct bound b = bound_new(p->in, tokens * p->out);
    b.high = mode == ORACLE_CALIBRATE;
    oracle_cuts(p->oracle, rig_cuda() ? b.cut : NULL);
    *copy = oracle_forward(p->oracle, mode, flag, x, tokens, b.want);
    oracle_cuts(p->oracle, NULL);
    return b;
}

/* What the input is cast with where that is known beforehand; 0: the tensor's own scale. */
static float input_scale(const struct pair *p, enum oracle_mode mode)
{
    const struct scaler_ref *s = oracle_state(p->oracle, ORACLE_INPUT);
    bool of_site = !p->recipe.current && (mode == ORACLE_TRAIN || s->set);
    return of_site && mode != ORACLE_CALIBRATE ? s->scale : 0.0f;
}

static void check_reply(struct pair *p, const struct ask_forward *f, enum oracle_mode mode,
                        enum oracle_copy copy, bool in_scope, float scale)
{
    const Fp8d__V1__ForwardReply *r = f->reply;
    ck_assert_msg(r->weight_copy == copies[copy], "copy is %d, the oracle's action %d",
                  r->weight_copy, copy);
    ck_assert(r->scales_applied == (mode == ORACLE_TRAIN && !p->recipe.current && !in_scope));
    ck_assert((r->input == NULL) == (mode == ORACLE_CALIBRATE));
    ck_assert((r->weight == NULL) == (mode == ORACLE_CALIBRATE));
    if (mode == ORACLE_TRAIN)
        ck_assert(r->weight->scale_inv == oracle_copy_factor(p->oracle));
    if (scale != 0)
        ck_assert(r->input->scale == scale && !r->input->uncalibrated);
    else if (mode == ORACLE_EVAL)
        ck_assert(r->input->uncalibrated == !p->recipe.current);
}

struct pair_result pair_forward(struct pair *p, struct ask *from, enum oracle_mode mode,
                                enum oracle_flag flag, const float *x, size_t tokens)
{
    struct pair_result r = {0};
    struct ask_forward f = {.model = PAIR_MODEL,
                            .layer = PAIR_LAYER,
                            .mode = modes[mode],
                            .first = flags[flag],
                            .x = ask_f32(x, tokens, p->in)};
    double *high = malloc(tokens * p->out * sizeof *high + 1);
    ck_assert_ptr_nonnull(high);
    Fp8d__V1__QueryScalingReply *before = ask_state(from, PAIR_MODEL);
    unsigned code = ask_forward(from, &f);
    ck_assert_msg(code == 0, "forward: %s", from->text);
    oracle_high(p->oracle, x, tokens, high);
    float scale = input_scale(p, mode);
    struct bound want = pair_emulate(p, mode, flag, x, tokens, &r.copy);
    if (mode == ORACLE_TRAIN) {
        p->ran = true;
        p->no_copy = false;
    }
    ck_assert_uint_eq(f.y_bytes, tokens * p->out * sizeof(float));
    bound_check(&want, f.y);
    for (size_t i = 0; i < tokens * p->out; i++) /* fmax leaves a NaN out */
        r.against_high = fmax(r.against_high, fabs((double)((const float *)f.y)[i] - high[i]));
    check_reply(p, &f, mode, r.copy, before->scope_open, scale);
    pair_check_state(p);
    ask_state_free(before);
    ask_forward_free(&f);
    bound_free(&want);
    free(high);
    return r;
}

struct pair_result pair_step(struct pair *p, enum oracle_mode mode, enum oracle_flag flag,
                             uint64_t seed, size_t tokens)
{
    float *x = draw_uniform(seed, tokens * p->in);
    struct pair_result r = pair_forward(p, &p->a, mode, flag, x, tokens);
    free(x);
    return r;
}
