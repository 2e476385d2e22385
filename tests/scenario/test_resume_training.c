/* A model saved while it is trained and loaded by another daemon goes on as if nothing had
 * happened: steps, gradients that wait for one, options, masters and moments, to the bit. Also when
 * its weights become of another kind. */
#include "tests/scenario/ask_grad.h"
#include "tests/scenario/gate.h"
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- fixture: training of two layers, and all that it answers --- */

#define ROWS 5

struct run {
    struct desk *desk;
    struct ask a;
    uint64_t steps; /* taken */
    uint64_t hash;  /* of all that was answered */
};

static void run_open(struct run *r)
{
    struct engine_options o = gate_options();
    *r = (struct run){.desk = desk_new(&o, 0)};
    r->a = ask_open(r->desk, 1);
}

static void run_close(struct run *r)
{
    ask_close(&r->a);
    desk_free(r->desk);
}

static void add(struct run *r, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++)
        r->hash = (r->hash ^ b[i]) * 1099511628211u;
}

static const char *name_of(unsigned layer)
{
    return layer ? "b-c" : "a";
}

/* Every eleventh gradient of an output has an infinity: FP8 cuts it off, and only a count knows. */
static void train(struct run *r, unsigned layer, uint64_t seed)
{
    size_t in = layer ? STASH_B_IN : STASH_A_IN, out = layer ? STASH_B_OUT : STASH_A_OUT;
    float *x = draw_normal(seed, ROWS * in, 1.0), *dy = draw_normal(seed + 1, ROWS * out, 0.01);
    if (seed % 11 == 0)
        dy[3] = INFINITY;
    struct ask_forward f = {.model = "m",
                            .layer = name_of(layer),
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .first = (Fp8d__V1__FirstMicrobatch)(seed % 3),
                            .x = ask_f32(x, ROWS, in),
                            .context_id = 1};
    ck_assert_msg(!ask_forward(&r->a, &f), "%s", r->a.text);
    add(r, f.y, f.y_bytes);
    ask_forward_free(&f);
    struct ask_backward b = {.context_id = 1, .dy = ask_f32(dy, ROWS, out)};
    ck_assert_msg(!ask_backward(&r->a, &b), "%s", r->a.text);
    add(r, b.dx, b.dx_bytes);
    ask_backward_free(&b);
    free(x);
    free(dy);
}

static void take_step(struct run *r, bool again)
{
    struct ask_step s = {.step = r->steps + !again, .max_norm = 0.5};
    unsigned code = again && !r->steps ? 0 : ask_step(&r->a, "m", &s);
    add(r, &code, sizeof code);
    if (code || !s.reply)
        return;
    r->steps += !again;
    add(r, &s.reply->outcome, sizeof s.reply->outcome);
    add(r, &s.reply->grad_norm, sizeof s.reply->grad_norm);
    ask_step_free(&s);
}

static void set_optimizer(struct run *r, uint64_t seed)
{
    static const int kinds[] = {1, 1, 2, 3};
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    Fp8d__V1__LayerOptions own = FP8D__V1__LAYER_OPTIONS__INIT, *layers = &own;
    char name[8];
    strcpy(name, name_of(seed / 8 % 2));
    o.kind = (Fp8d__V1__OptimizerKind)kinds[seed % 4];
    o.rate = 1.0 / (double)(3 + seed % 5);
    o.momentum = seed % 4 == 1 ? 0.9 : 0.0;
    o.nesterov = seed % 8 == 1;
    o.dampening = seed % 8 == 5 ? 0.25 : 0.0;
    o.weight_decay = seed % 7 ? 0.0 : 0.125;
    own.layer = name;
    own.frozen = seed % 16 == 5;
    own.rate = seed % 3 ? 0.0 : 0.0123;
    own.weight_decay = seed % 5 ? 0.0 : 0.03;
    own.weight_decay_set = seed % 2;
    ck_assert_msg(!ask_optimizer(&r->a, "m", &o, &layers, seed / 4 % 2), "%s", r->a.text);
}

static void edit(struct run *r, unsigned layer, uint64_t seed)
{
    uint64_t out = layer ? STASH_B_OUT : STASH_A_OUT, in = layer ? STASH_B_IN : STASH_A_IN;
    float *w = draw_normal(seed, out * in, 0.5);
    struct ask_tensor x = ask_f32(w, out, in);
    struct ask_tensor bias = {
        .dtype = FP8D__V1__DTYPE__DTYPE_F32, .rank = 1, .dims = {out}, .data = w};
    unsigned code = ask_edit(&r->a, "m", name_of(layer), &x, seed % 2 ? &bias : NULL, NULL, NULL);
    add(r, &code, sizeof code);
    free(w);
}

/* Two microbatches and one update of the scales, or none. */
static void scoped(struct run *r, uint64_t seed)
{
    ck_assert_uint_eq(ask_scope_begin(&r->a, 4, "m"), 0);
    train(r, 0, seed);
    train(r, 1, seed + 1);
    ck_assert_uint_eq(ask_scope_end(&r->a, 4, seed % 5 == 0, NULL), 0);
}

/* Any request about training that a client may send between two others. */
static void any_step(struct run *r, uint64_t *at)
{
    uint64_t what = draw(at, 16), seed = draw(at, 1u << 20);
    unsigned layer = (unsigned)draw(at, 2);
    if (what < 7)
        train(r, layer, seed);
    else if (what == 7)
        scoped(r, seed);
    else if (what < 12)
        take_step(r, false);
    else if (what == 12)
        take_step(r, true);
    else if (what == 13)
        add(r, &(unsigned){ask_zero_grad(&r->a, "m", NULL)}, sizeof(unsigned));
    else if (what == 14)
        set_optimizer(r, seed);
    else
        edit(r, layer, seed);
}

static struct blob go_on(struct run *r)
{
    take_step(r, true);
    take_step(r, false);
    for (unsigned i = 0; i < 6; i++) {
        train(r, i % 2, 507 + i); /* none has an infinity */
        if (i % 3 == 2)
            take_step(r, false);
    }
    return stash_save(&r->a, "m");
}

/* --- cases: any point --- */

/* Saved in the middle of random training, of each kind of weight: the save of the loaded model is
 * the same file, and both go on with the same bits and end with the same file. */
START_TEST(training_resumes_at_any_point)
{
    struct run here, there;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    uint64_t at = (uint64_t)_i * 7919 + 5;
    struct blob fresh = stash_pair();
    run_open(&here);
    run_open(&there);
    o.primary_fp8 = _i % 3 == 2;
    o.recipe = &recipe;
    recipe.amax_history_len = 3;
    recipe.fp8_format = (Fp8d__V1__Fp8Format)(_i % 3);
    recipe.kind = _i % 5 == 4 ? FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT : 0;
    ck_assert_msg(!stash_load(&here.a, "m", &fresh, &o, NULL), "%s", here.a.text);
    set_optimizer(&here, (uint64_t)_i);
    for (uint64_t n = draw(&at, 30); n; n--)
        any_step(&here, &at);
    struct blob saved = stash_save(&here.a, "m");
    ck_assert_msg(!stash_load(&there.a, "m", &saved, NULL, NULL), "%s", there.a.text);
    struct blob again = stash_save(&there.a, "m");
    blob_equal(&saved, &again);
    here.hash = 0;
    there.steps = here.steps;
    struct blob end_here = go_on(&here), end_there = go_on(&there);
    ck_assert_uint_gt(here.steps, 0);
    ck_assert_uint_eq(here.hash, there.hash);
    blob_equal(&end_here, &end_there);
    blob_free(&fresh);
    blob_free(&saved);
    blob_free(&again);
    blob_free(&end_here);
    blob_free(&end_there);
    run_close(&here);
    run_close(&there);
}
END_TEST

/* Saves under way beside every step and backward change nothing of what follows: what they hold
 * moves elsewhere with all it was. Of each kind of weight and optimizer. */
START_TEST(training_goes_on_beside_saves)
{
    struct run r[2];
    struct blob end[2], fresh = stash_pair();
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    o.primary_fp8 = _i >= 4;
    for (unsigned saves = 0; saves < 2; saves++) {
        run_open(&r[saves]);
        ck_assert_msg(!stash_load(&r[saves].a, "m", &fresh, &o, NULL), "%s", r[saves].a.text);
        set_optimizer(&r[saves], 32 + (uint64_t)_i % 4);
        for (unsigned i = 0; i < 12; i++) {
            struct stash_saving s = {0};
            if (saves) {
                gate_close();
                s = stash_save_sent(r[saves].desk, 10 + i, "m");
            }
            if (i % 4 == 3)
                take_step(&r[saves], false);
            else
                train(&r[saves], i % 2, 300 + i);
            if (saves) {
                gate_open();
                struct blob b = stash_saved(&s);
                blob_free(&b);
            }
        }
        end[saves] = stash_save(&r[saves].a, "m");
    }
    ck_assert_uint_eq(r[0].steps, 3);
    ck_assert_uint_eq(r[0].hash, r[1].hash);
    blob_equal(&end[0], &end[1]);
    for (unsigned i = 0; i < 2; i++) {
        blob_free(&end[i]);
        run_close(&r[i]);
    }
    blob_free(&fresh);
}
END_TEST

/* --- cases: another kind of weight than the file's --- */

static void same_bytes(const struct blob *a, const struct blob *b, const char *name)
{
    struct safetensors_tensor x, y;
    const void *p = blob_tensor(a, name, &x), *q = blob_tensor(b, name, &y);
    ck_assert_uint_eq(x.bytes, y.bytes);
    ck_assert_msg(!memcmp(p, q, x.bytes), "%s differs", name);
}

/* A save of model m, trained with Adam for two steps. */
static struct blob adam_file(struct run *r, bool primary)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob fresh = stash_pair();
    run_open(r);
    o.primary_fp8 = primary;
    ck_assert_msg(!stash_load(&r->a, "m", &fresh, &o, NULL), "%s", r->a.text);
    set_optimizer(r, 2);
    for (unsigned i = 0; i < 2; i++) {
        train(r, 0, 10 + i);
        train(r, 1, 20 + i);
        take_step(r, false);
    }
    blob_free(&fresh);
    return stash_save(&r->a, "m");
}

/* FP8 weights that become F32 are their own masters: the file's are dropped, moments go on. As BF16
 * they keep both. */
START_TEST(training_goes_on_when_fp8_is_widened)
{
    struct run r;
    Fp8d__V1__LoadCommitReply *report;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob file = adam_file(&r, true);
    bool bf16 = _i;
    o.dequantize = bf16 ? FP8D__V1__DTYPE__DTYPE_BF16 : FP8D__V1__DTYPE__DTYPE_F32;
    ck_assert_uint_eq(*(const uint64_t *)blob_tensor(&file, "b-c.fp8d.origin", NULL), DTYPE_BF16);
    ck_assert_uint_eq(*(const uint64_t *)blob_tensor(&file, "a.fp8d.origin", NULL), DTYPE_F32);
    ck_assert_msg(!stash_load(&r.a, "m", &file, &o, &report), "%s", r.a.text);
    ck_assert_int_eq(stash_noted(report, "masters of 2 weights were dropped"), !bf16);
    stash_report_free(report);
    struct blob now = stash_save(&r.a, "m");
    ck_assert_int_eq(blob_has(&now, "b-c.fp8d.optimizer.weight_master"), bf16);
    if (bf16)
        same_bytes(&file, &now, "b-c.fp8d.optimizer.weight_master");
    ck_assert(!blob_has(&now, "b-c.fp8d.origin"));
    same_bytes(&file, &now, "b-c.fp8d.optimizer.weight_m");
    same_bytes(&file, &now, "a.fp8d.optimizer.weight_v");
    same_bytes(&file, &now, "a.fp8d.optimizer.bias_master");
    train(&r, 1, 30);
    take_step(&r, false);
    ck_assert_uint_eq(r.steps, 3);
    blob_free(&file);
    blob_free(&now);
    run_close(&r);
}
END_TEST

/* High precision that becomes FP8: a BF16 weight's master goes on, an F32 weight was its own. */
START_TEST(training_goes_on_when_weights_become_fp8)
{
    struct run r;
    Fp8d__V1__LoadCommitReply *report;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob file = adam_file(&r, false);
    o.primary_fp8 = true;
    ck_assert_msg(!stash_load(&r.a, "m", &file, &o, &report), "%s", r.a.text);
    ck_assert(stash_noted(report, "masters of 1 weights begin anew from their FP8 codes"));
    stash_report_free(report);
    struct blob now = stash_save(&r.a, "m");
    ck_assert(!blob_has(&now, "a.fp8d.optimizer.weight_master"));
    same_bytes(&file, &now, "b-c.fp8d.optimizer.weight_master");
    same_bytes(&file, &now, "a.fp8d.optimizer.weight_m");
    ck_assert_uint_eq(*(const uint64_t *)blob_tensor(&now, "b-c.fp8d.origin", NULL), DTYPE_BF16);
    train(&r, 0, 30);
    take_step(&r, false);
    ck_assert_uint_eq(r.steps, 3);
    blob_free(&file);
    blob_free(&now);
    run_close(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("resume_training");
    TCase *c = tcase_create("resume_training");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, training_resumes_at_any_point, 0, 48);
    tcase_add_loop_test(c, training_goes_on_beside_saves, 0, 8);
    tcase_add_loop_test(c, training_goes_on_when_fp8_is_widened, 0, 2);
    tcase_add_test(c, training_goes_on_when_weights_become_fp8);
    suite_add_tcase(s, c);
    return run_suite(s);
}
