/* Loads into FP8 primary weights (Transformer Engine PR 771): whatever state the file has is in
 * force before anything is quantised with it. Expected codes are computed here, by search over the
 * codes. */
#include "tests/oracle/codes.h"
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define N (OUT * IN)
#define TOKENS 7
#define L 16

/* --- fixture: a bf16 layer of small weights, and its state --- */

static struct desk *D;
static struct ask A;
static uint16_t *W;

static void start(void)
{
    D = desk_new(NULL, 0);
    A = ask_open(D, 1);
    W = stash_draw(5, DTYPE_BF16, N, 1e-4);
}

static void stop(void)
{
    free(W);
    ask_close(&A);
    desk_free(D);
}

/* scale 0: no state at all. */
static struct blob file_of(float scale)
{
    struct stash s = {0};
    float history[L] = {0};
    history[L - 1] = 448.0f / scale;
    stash_put(&s, "l.weight", DTYPE_BF16, 2, OUT, IN, W);
    if (scale != 0.0f) {
        const struct stash_site fwd = {.scale = scale,
                                       .scale_inv = 1.0f / scale,
                                       .amax_last = 448.0f / scale,
                                       .counters = {1, 0, 1},
                                       .history = history};
        const struct stash_site none = {.scale = 1.0f, .scale_inv = 1.0f};
        stash_put_model(&s, 7, false, false, L);
        stash_put_site(&s, "l", "input", L, &none);
        stash_put_site(&s, "l", "weight", L, &fwd);
        stash_put_site(&s, "l", "grad_output", L, &none);
    }
    struct blob b = stash_blob(&s);
    stash_free(&s);
    return b;
}

static const Fp8d__V1__LoadOptions *primary(void)
{
    static Fp8d__V1__LoadOptions o;
    fp8d__v1__load_options__init(&o);
    o.primary_fp8 = true;
    return &o;
}

static void load(const char *model, const struct blob *b, const Fp8d__V1__LoadOptions *o)
{
    ck_assert_msg(stash_load(&A, model, b, o, NULL) == 0, "%s", A.text);
}

/* --- helpers --- */

/* E4M3 of float32(x) * scale, nearest, ties to even, saturating: by search. */
static uint8_t quantise(float x, float scale)
{
    float v = x * scale;
    double m = fabs((double)v);
    unsigned best = 0;
    for (unsigned c = 1; c < 0x7f; c++) {
        double d = fabs(fp8_value((uint8_t)c, false) - m);
        double e = fabs(fp8_value((uint8_t)best, false) - m);
        if (d < e || (d == e && !(c & 1)))
            best = c;
    }
    return (uint8_t)(best | (signbit(v) ? 0x80 : 0));
}

static float weight(size_t i)
{
    return (float)half_value(W[i], true);
}

static float largest(void)
{
    float most = 0.0f;
    for (size_t i = 0; i < N; i++)
        most = fmaxf(most, fabsf(weight(i)));
    return most;
}

/* A save of the model holds exactly these codes and this factor. */
static void check_codes(const char *model, float scale)
{
    struct blob s = stash_save(&A, model);
    struct safetensors_tensor t;
    const uint8_t *codes = blob_tensor(&s, "l.weight", &t);
    float factor = *(const float *)blob_tensor(&s, "l.weight_scale", NULL);
    ck_assert(t.dtype == DTYPE_F8_E4M3);
    ck_assert_msg(factor == 1.0f / scale, "factor %a, needed %a", (double)factor,
                  (double)(1.0f / scale));
    for (size_t i = 0; i < N; i++)
        ck_assert_msg(codes[i] == quantise(weight(i), scale), "code %zu of %g is %02x, needed %02x",
                      i, (double)weight(i), codes[i], quantise(weight(i), scale));
    blob_free(&s);
}

static void forward(const char *model, Fp8d__V1__Mode mode, Fp8d__V1__FirstMicrobatch first,
                    float *y)
{
    float *x = draw_normal(77, TOKENS * IN, 1.0);
    struct desk_forward f = {.model = model,
                             .layer = "l",
                             .mode = mode,
                             .first = first,
                             .x = x,
                             .tokens = TOKENS,
                             .in = IN,
                             .out = OUT,
                             .y = y};
    ck_assert_msg(desk_forward(D, 1, &f, A.text) == 0, "%s", A.text);
    free(x);
}

static void same_eval(const char *a, const char *b)
{
    float x[TOKENS * OUT], y[TOKENS * OUT];
    forward(a, FP8D__V1__MODE__MODE_EVAL, 0, x);
    forward(b, FP8D__V1__MODE__MODE_EVAL, 0, y);
    ck_assert_mem_eq(x, y, sizeof x);
    bool any = false;
    for (size_t i = 0; i < TOKENS * OUT; i++)
        any = any || x[i] != 0.0f;
    ck_assert(any);
}

/* --- cases --- */

/* One load equals two loads equals quantising by hand with the loaded scale, to the bit. */
START_TEST(primary_load_uses_the_loaded_scale)
{
    static const float scales[] = {4e5f, 1e-2f, 3.0f, 0x1p40f};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        struct blob b = file_of(scales[i]);
        char once[16], twice[16];
        (void)snprintf(once, sizeof once, "once%zu", i);
        (void)snprintf(twice, sizeof twice, "twice%zu", i);
        load(once, &b, primary());
        load(twice, &b, primary());
        struct blob x = stash_save(&A, once);
        load(twice, &b, primary());
        check_codes(once, scales[i]);
        check_codes(twice, scales[i]);
        struct blob y = stash_save(&A, twice);
        ck_assert_mem_eq(blob_tensor(&x, "l.weight", NULL), blob_tensor(&y, "l.weight", NULL), N);
        if (scales[i] == 4e5f)
            same_eval(once, twice);
        blob_free(&b);
        blob_free(&x);
        blob_free(&y);
    }
}
END_TEST

/* Over a served model with other scales: the old ones are not used for the new weights. */
START_TEST(primary_load_over_another_model)
{
    struct blob old = file_of(0x1p-20f), b = file_of(4e5f);
    load("m", &old, primary());
    forward("m", FP8D__V1__MODE__MODE_TRAIN, 0, NULL);
    load("m", &b, primary());
    check_codes("m", 4e5f);
    blob_free(&old);
    blob_free(&b);
}
END_TEST

/* Saved after one `true` forward: cached bytes at scale 1, saved scale about 4e5. The weight is
 * quantised from the high precision of the file, not taken from the cached bytes. */
START_TEST(primary_load_does_not_take_cached_bytes)
{
    struct blob b = file_of(0.0f);
    load("m", &b, NULL);
    forward("m", FP8D__V1__MODE__MODE_TRAIN, 1, NULL);
    struct blob saved = stash_save(&A, "m");
    float scale = *(const float *)blob_tensor(&saved, "l.fp8d.weight.scaling", NULL);
    ck_assert(scale == 448.0f / largest() && scale > 5e5f);
    ck_assert(*(const float *)blob_tensor(&saved, "l.fp8d.cached.weight_scale", NULL) == 1.0f);
    load("p", &saved, primary());
    check_codes("p", scale);
    same_eval("m", "p");
    blob_free(&b);
    blob_free(&saved);
}
END_TEST

/* Eval of a model equals eval of the primary model loaded from its save, whatever flags ran. */
START_TEST(primary_eval_equals_eval_of_the_model)
{
    struct blob b = file_of(_i % 2 ? 0.0f : 1000.0f);
    uint64_t at = (uint64_t)_i * 101;
    load("m", &b, NULL);
    for (uint64_t n = draw(&at, 6); n; n--) {
        uint64_t mode = draw(&at, 4);
        forward("m",
                mode < 2    ? FP8D__V1__MODE__MODE_TRAIN
                : mode == 2 ? FP8D__V1__MODE__MODE_EVAL
                            : FP8D__V1__MODE__MODE_CALIBRATE,
                mode < 2 ? (Fp8d__V1__FirstMicrobatch)draw(&at, 3) : 0, NULL);
    }
    struct blob saved = stash_save(&A, "m");
    load("p", &saved, primary());
    same_eval("m", "p");
    /* and of a save of that one, whose bytes are taken as they are */
    struct blob again = stash_save(&A, "p");
    load("q", &again, NULL);
    same_eval("m", "q");
    struct blob third = stash_save(&A, "q");
    blob_equal(&again, &third);
    blob_free(&b);
    blob_free(&saved);
    blob_free(&again);
    blob_free(&third);
}
END_TEST

/* No scale in the file: one from the weight's own amax, which enters as the newest row; the report
 * names the layer. */
START_TEST(primary_load_of_an_unset_site)
{
    struct blob b = file_of(0.0f);
    Fp8d__V1__LoadCommitReply *r;
    ck_assert_msg(stash_load(&A, "m", &b, primary(), &r) == 0, "%s", A.text);
    ck_assert(stash_converted(r, "l (from BF16 to F8_E4M3, with a scale from its own amax)"));
    stash_report_free(r);
    check_codes("m", 448.0f / largest());
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    const Fp8d__V1__SiteState *s = ask_site(q, "l", "weight");
    ck_assert(s->set && s->scale == 448.0f / largest() && s->amax_last == largest());
    ck_assert(s->history[0] == largest() && s->history[1] == 0.0f && s->updates == 0);
    ck_assert(!ask_site(q, "l", "input")->set);
    ask_state_free(q);
    blob_free(&b);
}
END_TEST

/* A weight of zeros has no amax: scale 1, and the site stays unset. */
START_TEST(primary_load_of_zeros)
{
    memset(W, 0, N * sizeof *W);
    struct blob b = file_of(0.0f);
    load("m", &b, primary());
    check_codes("m", 1.0f);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    ck_assert(!ask_site(q, "l", "weight")->set && ask_site(q, "l", "weight")->scale == 1.0f);
    ask_state_free(q);
    blob_free(&b);
}
END_TEST

/* A calibration that was not finished: with finish_calibration its maximum makes the scale, before
 * the weight is quantised. */
START_TEST(primary_load_finishes_a_calibration_first)
{
    struct blob b = file_of(0.0f);
    Fp8d__V1__LoadOptions o = *primary();
    load("m", &b, NULL);
    forward("m", FP8D__V1__MODE__MODE_CALIBRATE, 0, NULL);
    struct blob saved = stash_save(&A, "m");
    struct stash s = {0};
    stash_from(&s, &saved);
    ((float *)(void *)stash_find(&s, "l.fp8d.weight.scaling")->data)[3] = 1.75f; /* the maximum */
    struct blob changed = stash_blob(&s);
    o.finish_calibration = true;
    load("p", &changed, &o);
    check_codes("p", 256.0f);
    stash_free(&s);
    blob_free(&b);
    blob_free(&saved);
    blob_free(&changed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("primary");
    TCase *c = tcase_create("primary");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, primary_load_uses_the_loaded_scale);
    tcase_add_test(c, primary_load_over_another_model);
    tcase_add_test(c, primary_load_does_not_take_cached_bytes);
    tcase_add_loop_test(c, primary_eval_equals_eval_of_the_model, 0, 24);
    tcase_add_test(c, primary_load_of_an_unset_site);
    tcase_add_test(c, primary_load_of_zeros);
    tcase_add_test(c, primary_load_finishes_a_calibration_first);
    suite_add_tcase(s, c);
    return run_suite(s);
}
