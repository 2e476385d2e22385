/* A model saved at any point between requests and loaded by another daemon goes on as if nothing
 * had happened: the next 20 requests give the same bits, and so does a save after them. */
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS 5
#define NEXT 20

/* --- fixture --- */

struct run {
    struct desk *desk;
    struct ask a;
};

static void run_open(struct run *r)
{
    r->desk = desk_new(NULL, 0);
    r->a = ask_open(r->desk, 1);
}

static void run_close(struct run *r)
{
    ask_close(&r->a);
    desk_free(r->desk);
}

static void open_fresh(struct run *r, const Fp8d__V1__Recipe *recipe)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob file = stash_pair();
    run_open(r);
    o.recipe = (Fp8d__V1__Recipe *)(uintptr_t)recipe;
    ck_assert_msg(stash_load(&r->a, "m", &file, &o, NULL) == 0, "%s", r->a.text);
    blob_free(&file);
}

/* --- helpers: what a step does, and all that it answers --- */

struct trace {
    uint64_t hash;
    unsigned failed;
};

static void add(struct trace *t, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        t->hash = (t->hash ^ b[i]) * 1099511628211u;
}

static void forward(struct run *r, unsigned layer, Fp8d__V1__Mode mode,
                    Fp8d__V1__FirstMicrobatch first, uint64_t seed, struct trace *t)
{
    size_t in = layer ? STASH_B_IN : STASH_A_IN;
    float *x = draw_normal(seed, TOKENS * in, 1.0 + (double)(seed % 7));
    struct ask_forward f = {.model = "m",
                            .layer = layer ? "b-c" : "a",
                            .mode = mode,
                            .first = first,
                            .x = ask_f32(x, TOKENS, in)};
    unsigned code = ask_forward(&r->a, &f);
    add(t, &code, sizeof code);
    t->failed += code != 0;
    if (!code) {
        add(t, f.y, f.y_bytes);
        add(t, &f.reply->weight_copy, sizeof f.reply->weight_copy);
        ask_forward_free(&f);
    }
    free(x);
}

static void edit(struct run *r, unsigned layer, uint64_t seed, struct trace *t)
{
    uint64_t out = layer ? STASH_B_OUT : STASH_A_OUT, in = layer ? STASH_B_IN : STASH_A_IN;
    float *w = draw_normal(seed, out * in, 0.5);
    struct ask_tensor x = ask_f32(w, out, in);
    unsigned code = ask_edit(&r->a, "m", layer ? "b-c" : "a", &x, NULL, NULL, NULL);
    add(t, &code, sizeof code);
    free(w);
}

static void set_scaling(struct run *r, Fp8d__V1__ScalingAction action)
{
    Fp8d__V1__SetScalingRequest m = FP8D__V1__SET_SCALING_REQUEST__INIT;
    m.model = (char *)(uintptr_t) "m";
    m.action = action;
    ck_assert_uint_eq(desk_call(r->desk, 1, REQUEST_SET_SCALING, &m.base, NULL, 0, NULL, r->a.text),
                      0);
}

/* Two microbatches in a scope of their own: saves are refused while one is open. */
static void scoped(struct run *r, uint64_t seed, struct trace *t)
{
    ck_assert_uint_eq(ask_scope_begin(&r->a, 4, "m"), 0);
    forward(r, 0, FP8D__V1__MODE__MODE_TRAIN, 1, seed, t);
    forward(r, 1, FP8D__V1__MODE__MODE_TRAIN, 1, seed + 1, t);
    forward(r, 0, FP8D__V1__MODE__MODE_TRAIN, 2, seed + 2, t);
    ck_assert_uint_eq(ask_scope_end(&r->a, 4, seed % 5 == 0, NULL), 0);
}

/* Any request that a client may send between two others. */
static void any_step(struct run *r, uint64_t *at, struct trace *t)
{
    uint64_t what = draw(at, 16), seed = draw(at, 1u << 20);
    unsigned layer = (unsigned)draw(at, 2);
    if (what < 8)
        forward(r, layer, FP8D__V1__MODE__MODE_TRAIN, (Fp8d__V1__FirstMicrobatch)draw(at, 3), seed,
                t);
    else if (what < 11)
        forward(r, layer, FP8D__V1__MODE__MODE_EVAL, 0, seed, t);
    else if (what == 11)
        forward(r, layer, FP8D__V1__MODE__MODE_CALIBRATE, 0, seed, t);
    else if (what == 12)
        edit(r, layer, seed, t);
    else if (what == 13)
        scoped(r, seed, t);
    else if (what == 14)
        add(t, &(unsigned){ask_finish(&r->a, "m", NULL)}, sizeof(unsigned));
    else
        set_scaling(r, seed % 3 ? FP8D__V1__SCALING_ACTION__SCALING_ACTION_UNFREEZE
                                : FP8D__V1__SCALING_ACTION__SCALING_ACTION_FREEZE);
}

/* The next NEXT requests of both flags and layers, then a save. */
static struct blob go_on(struct run *r, struct trace *t)
{
    for (unsigned i = 0; i < NEXT; i++)
        forward(r, i % 2, FP8D__V1__MODE__MODE_TRAIN,
                i % 5 == 2 ? FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_YES
                : i % 3    ? FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO
                           : FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_UNSPECIFIED,
                500 + i, t);
    return stash_save(&r->a, "m");
}

/* Save now, go on here and in another daemon, and compare: bits of everything. */
static void check_resume(struct run *r)
{
    struct blob saved = stash_save(&r->a, "m");
    struct run other;
    struct trace here = {0}, there = {0};
    run_open(&other);
    ck_assert_msg(stash_load(&other.a, "m", &saved, NULL, NULL) == 0, "%s", other.a.text);
    struct blob again = stash_save(&other.a, "m");
    blob_equal(&saved, &again);
    struct blob end_here = go_on(r, &here);
    struct blob end_there = go_on(&other, &there);
    ck_assert_uint_eq(here.failed, 0);
    ck_assert_uint_eq(here.hash, there.hash);
    blob_equal(&end_here, &end_there);
    blob_free(&saved);
    blob_free(&again);
    blob_free(&end_here);
    blob_free(&end_there);
    run_close(&other);
}

/* --- cases: points that are special --- */

/* Before any forward: every site is unset, and stays so through a save. */
START_TEST(resume_before_any_forward)
{
    struct run r;
    open_fresh(&r, NULL);
    check_resume(&r);
    run_close(&r);
}
END_TEST

/* In the middle of a microbatch window: the cached bytes of `true` were cast with scale 1, the site
 * has moved on, and `false` goes on with them. */
START_TEST(resume_in_a_microbatch_window)
{
    struct run r;
    struct trace t = {0};
    open_fresh(&r, NULL);
    forward(&r, 0, FP8D__V1__MODE__MODE_TRAIN, 1, 10, &t);
    struct blob s = stash_save(&r.a, "m");
    ck_assert(*(const float *)blob_tensor(&s, "a.fp8d.cached.weight_scale", NULL) == 1.0f);
    ck_assert(*(const float *)blob_tensor(&s, "a.fp8d.weight.scaling", NULL) > 1.0f);
    ck_assert(!blob_has(&s, "b-c.fp8d.cached.weight"));
    blob_free(&s);
    check_resume(&r);
    run_close(&r);
}
END_TEST

/* With a calibration unfinished: its maxima go on, and finish sets the same scales. */
START_TEST(resume_with_a_calibration_unfinished)
{
    struct run r, other;
    struct trace t = {0}, u = {0};
    Fp8d__V1__LoadCommitReply *report;
    open_fresh(&r, NULL);
    forward(&r, 0, FP8D__V1__MODE__MODE_CALIBRATE, 0, 10, &t);
    struct blob saved = stash_save(&r.a, "m");
    run_open(&other);
    ck_assert_msg(stash_load(&other.a, "m", &saved, NULL, &report) == 0, "%s", other.a.text);
    ck_assert(stash_noted(report, "calibration unfinished"));
    stash_report_free(report);
    forward(&r, 1, FP8D__V1__MODE__MODE_CALIBRATE, 0, 11, &t);
    forward(&other, 1, FP8D__V1__MODE__MODE_CALIBRATE, 0, 11, &u);
    ck_assert_uint_eq(ask_finish(&r.a, "m", NULL), 0);
    ck_assert_uint_eq(ask_finish(&other.a, "m", NULL), 0);
    struct blob x = stash_save(&r.a, "m"), y = stash_save(&other.a, "m");
    blob_equal(&x, &y);
    blob_free(&saved);
    blob_free(&x);
    blob_free(&y);
    run_close(&other);
    run_close(&r);
}
END_TEST

/* finish_calibration does at load what FinishCalibration does to the live model. */
START_TEST(resume_finishes_a_calibration_at_load)
{
    struct run r, other;
    struct trace t = {0};
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__LoadCommitReply *report;
    open_fresh(&r, NULL);
    forward(&r, 0, FP8D__V1__MODE__MODE_CALIBRATE, 0, 10, &t);
    struct blob saved = stash_save(&r.a, "m");
    o.finish_calibration = true;
    run_open(&other);
    ck_assert_msg(stash_load(&other.a, "m", &saved, &o, &report) == 0, "%s", other.a.text);
    ck_assert(stash_noted(report, "2 sites got a scale"));
    stash_report_free(report);
    ck_assert_uint_eq(ask_finish(&r.a, "m", NULL), 0);
    struct blob x = stash_save(&r.a, "m"), y = stash_save(&other.a, "m");
    blob_equal(&x, &y);
    ck_assert_uint_eq(stash_load(&other.a, "m", &x, &o, &report), 0);
    ck_assert(stash_noted(report, "no unfinished calibration"));
    stash_report_free(report);
    blob_free(&saved);
    blob_free(&x);
    blob_free(&y);
    run_close(&other);
    run_close(&r);
}
END_TEST

/* A frozen model stays frozen. */
START_TEST(resume_frozen)
{
    struct run r;
    struct trace t = {0};
    open_fresh(&r, NULL);
    forward(&r, 0, FP8D__V1__MODE__MODE_TRAIN, 1, 10, &t);
    set_scaling(&r, FP8D__V1__SCALING_ACTION__SCALING_ACTION_FREEZE);
    check_resume(&r);
    run_close(&r);
}
END_TEST

/* FP8 primary weights, made at load, with scaling state beside them. */
START_TEST(resume_primary_weights)
{
    struct run r;
    struct trace t = {0};
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob file = stash_pair();
    o.primary_fp8 = true;
    run_open(&r);
    ck_assert_msg(stash_load(&r.a, "m", &file, &o, NULL) == 0, "%s", r.a.text);
    forward(&r, 0, FP8D__V1__MODE__MODE_TRAIN, 1, 10, &t);
    check_resume(&r);
    blob_free(&file);
    run_close(&r);
}
END_TEST

/* --- cases: any point --- */

/* Random sequences of everything, under several recipes, saved in the middle. */
START_TEST(resume_at_any_point)
{
    struct run r;
    struct trace t = {0};
    uint64_t at = (uint64_t)_i * 7919;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    static const uint32_t lens[] = {1, 2, 31, 1024};
    recipe.kind = _i % 5 == 4 ? FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT : 0;
    recipe.amax_history_len = lens[_i % 4];
    recipe.amax_algo = (Fp8d__V1__AmaxAlgo)(_i / 2 % 3);
    recipe.margin_set = true;
    recipe.margin = (uint32_t)_i % 3;
    recipe.fp8_format = (Fp8d__V1__Fp8Format)(_i % 3);
    open_fresh(&r, &recipe);
    for (uint64_t n = draw(&at, 40); n; n--)
        any_step(&r, &at, &t);
    check_resume(&r);
    run_close(&r);
}
END_TEST

/* --- cases: size --- */

/* A save after one step is as large as one after 200. */
START_TEST(resume_size_is_independent_of_steps)
{
    struct run r;
    struct trace t = {0};
    open_fresh(&r, NULL);
    forward(&r, 0, FP8D__V1__MODE__MODE_TRAIN, 0, 1, &t);
    struct blob first = stash_save(&r.a, "m");
    for (unsigned i = 0; i < 200; i++)
        forward(&r, 0, FP8D__V1__MODE__MODE_TRAIN, 0, i, &t);
    struct blob last = stash_save(&r.a, "m");
    ck_assert_uint_eq(first.size, last.size);
    blob_free(&first);
    blob_free(&last);
    run_close(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("resume");
    TCase *c = tcase_create("resume");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, resume_before_any_forward);
    tcase_add_test(c, resume_in_a_microbatch_window);
    tcase_add_test(c, resume_with_a_calibration_unfinished);
    tcase_add_test(c, resume_finishes_a_calibration_at_load);
    tcase_add_test(c, resume_frozen);
    tcase_add_test(c, resume_primary_weights);
    tcase_add_loop_test(c, resume_at_any_point, 0, 24);
    tcase_add_test(c, resume_size_is_independent_of_steps);
    suite_add_tcase(s, c);
    return run_suite(s);
}
