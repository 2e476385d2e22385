/* Calibration, and sites that were never set: which scale a cast uses, and what it leaves
 * behind. */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OUT 48
#define IN 64
#define TOKENS 6

static const struct oracle_recipe recipe = {.history_len = 4, .margin = 1};

/* --- fixture --- */

struct fix {
    struct pair p;
    float *w;
};

static void fix_open(struct fix *f, const struct oracle_recipe *r)
{
    f->w = draw_normal(1, OUT * IN, 0.023);
    pair_open(&f->p, OUT, IN, r, f->w, NULL);
}

static void fix_close(struct fix *f)
{
    pair_close(&f->p);
    free(f->w);
}

/* --- helpers --- */

/* Normal numbers with the largest |x| where it is told, of the sign told. */
static float *peaked(uint64_t seed, float peak)
{
    float *x = draw_normal(seed, TOKENS * IN, fabs((double)peak) / 100);
    x[seed % (TOKENS * IN)] = peak;
    return x;
}

static void forward(struct fix *f, enum oracle_mode mode, uint64_t seed, float peak)
{
    float *x = peaked(seed, peak);
    pair_forward(&f->p, &f->p.a, mode, ORACLE_UNSET, x, TOKENS);
    free(x);
}

/* The input and weight parts of an eval's reply. */
static struct ask_forward eval(struct fix *f, const float *x)
{
    struct ask_forward r = {.model = PAIR_MODEL,
                            .layer = PAIR_LAYER,
                            .mode = FP8D__V1__MODE__MODE_EVAL,
                            .x = ask_f32(x, TOKENS, IN)};
    ck_assert_msg(!ask_forward(&f->p.a, &r), "%s", f->p.a.text);
    return r;
}

static float calibration_amax(struct fix *f, const char *site)
{
    Fp8d__V1__QueryScalingReply *s = ask_state(&f->p.a, PAIR_MODEL);
    float v = ask_site(s, PAIR_LAYER, site)->calibration_amax;
    ck_assert(s->calibrating == (v != 0));
    ask_state_free(s);
    return v;
}

/* --- calibration --- */

/* The largest |x| of several requests is kept, and finish sets scale, newest row and `set`; eval
 * then uses it, with every later input. */
START_TEST(calibration_keeps_the_maximum)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f, &recipe);
    forward(&f, ORACLE_CALIBRATE, 1, 3.0f);
    forward(&f, ORACLE_CALIBRATE, 2, -14.0f);
    forward(&f, ORACLE_CALIBRATE, 3, 5.0f);
    ck_assert(calibration_amax(&f, "input") == 14.0f);
    ck_assert(!ask_finish(&f.p.a, PAIR_MODEL, counts));
    ck_assert(counts[0] == 2 && counts[1] == 0);
    oracle_calibration_finish(f.p.oracle);
    pair_check_state(&f.p);
    const struct scaler_ref *in = oracle_state(f.p.oracle, ORACLE_INPUT);
    ck_assert(in->scale == 16.0f && in->set && in->last == 14 && in->updates == 0);
    ck_assert(calibration_amax(&f, "input") == 0);
    forward(&f, ORACLE_EVAL, 4, 100.0f); /* saturates: the scale stays */
    forward(&f, ORACLE_EVAL, 5, 0.001f);
    fix_close(&f);
}
END_TEST

/* Several clients calibrate one model together, whichever of them finishes. */
START_TEST(calibration_of_two_clients)
{
    struct fix f;
    fix_open(&f, &recipe);
    struct ask other = ask_open(f.p.a.desk, 77);
    float *x = peaked(2, -14.0f);
    forward(&f, ORACLE_CALIBRATE, 1, 3.0f);
    pair_forward(&f.p, &other, ORACLE_CALIBRATE, ORACLE_UNSET, x, TOKENS);
    ck_assert(calibration_amax(&f, "input") == 14.0f);
    ck_assert(!ask_finish(&other, PAIR_MODEL, NULL));
    oracle_calibration_finish(f.p.oracle);
    pair_check_state(&f.p);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->scale == 16.0f);
    free(x);
    ask_close(&other);
    fix_close(&f);
}
END_TEST

/* All-negative tensors (Transformer Engine issue 534): amax is max |x|. */
START_TEST(calibration_of_negative_tensors)
{
    struct fix f;
    float *x = draw_uniform(3, TOKENS * IN);
    fix_open(&f, &recipe);
    for (size_t i = 0; i < OUT * IN; i++)
        f.w[i] = -fabsf(f.w[i]) - 0.125f;
    for (size_t i = 0; i < TOKENS * IN; i++)
        x[i] = -1 - x[i];
    x[0] = -7;
    pair_load(&f.p, f.w, NULL);
    pair_forward(&f.p, &f.p.a, ORACLE_CALIBRATE, ORACLE_UNSET, x, TOKENS);
    ck_assert(calibration_amax(&f, "input") == 7);
    pair_finish(&f.p);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->scale == 32);
    pair_forward(&f.p, &f.p.a, ORACLE_EVAL, ORACLE_UNSET, x, TOKENS);
    pair_forward(&f.p, &f.p.a, ORACLE_TRAIN, ORACLE_TRUE, x, TOKENS);
    fix_close(&f);
    free(x);
}
END_TEST

/* Abort drops the maxima and changes no site; a calibration after it starts from nothing. */
START_TEST(calibration_abort_drops_it)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f, &recipe);
    forward(&f, ORACLE_CALIBRATE, 1, 1000.0f);
    ck_assert(!ask_abort(&f.p.a, PAIR_MODEL, counts) && counts[0] == 2 && counts[1] == 0);
    oracle_calibration_abort(f.p.oracle);
    pair_check_state(&f.p);
    ck_assert(calibration_amax(&f, "input") == 0 && calibration_amax(&f, "weight") == 0);
    ck_assert_uint_eq(ask_finish(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    forward(&f, ORACLE_CALIBRATE, 2, 2.0f);
    pair_finish(&f.p);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->last == 2);
    fix_close(&f);
}
END_TEST

/* Finish and abort without a calibrate request, under recipe current, or with a scope open, are
 * refused and change nothing. */
START_TEST(calibration_finish_is_refused)
{
    struct fix f;
    fix_open(&f, &recipe);
    ck_assert_uint_eq(ask_finish(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(ask_abort(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    forward(&f, ORACLE_CALIBRATE, 1, 2.0f);
    pair_scope_begin(&f.p, 1);
    ck_assert_uint_eq(ask_finish(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    pair_scope_drop(&f.p, 1);
    ck_assert(calibration_amax(&f, "input") == 2);
    pair_finish(&f.p);
    ck_assert_uint_eq(ask_finish(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(ask_finish(&f.p.a, "absent", NULL), ASK_NOT_FOUND);
    fix_close(&f);
    fix_open(&f, &(struct oracle_recipe){.current = true, .history_len = 1024});
    forward(&f, ORACLE_CALIBRATE, 1, 2.0f);
    ck_assert_uint_eq(ask_finish(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    ck_assert_msg(strstr(f.p.a.text, "current"), "%s", f.p.a.text);
    ck_assert(!ask_abort(&f.p.a, PAIR_MODEL, NULL));
    fix_close(&f);
}
END_TEST

/* Training between calibrate requests neither disturbs them nor is disturbed. */
START_TEST(calibration_beside_training)
{
    struct fix f;
    fix_open(&f, &recipe);
    forward(&f, ORACLE_TRAIN, 1, 3.0f);
    forward(&f, ORACLE_CALIBRATE, 2, 14.0f);
    forward(&f, ORACLE_TRAIN, 3, 900.0f);
    forward(&f, ORACLE_EVAL, 4, 9000.0f);
    ck_assert(calibration_amax(&f, "input") == 14);
    forward(&f, ORACLE_CALIBRATE, 5, 7.0f);
    pair_finish(&f.p); /* the newest row: 14 above 900 and 3 */
    const struct scaler_ref *in = oracle_state(f.p.oracle, ORACLE_INPUT);
    ck_assert(in->seen_count == 3 && in->seen[0] == 14 && in->seen[1] == 900);
    ck_assert(in->scale == 16); /* from 14 alone, whatever the history holds */
    forward(&f, ORACLE_TRAIN, 6, 3.0f);
    ck_assert(in->scale == (float)(224.0 / 900.0));
    fix_close(&f);
}
END_TEST

/* Zeros set no scale: the sites stay unset, and the reply counts them so. */
START_TEST(calibration_of_zeros)
{
    struct fix f;
    unsigned counts[2];
    float *x = calloc(TOKENS * IN, sizeof *x);
    ck_assert_ptr_nonnull(x);
    fix_open(&f, &recipe);
    pair_forward(&f.p, &f.p.a, ORACLE_CALIBRATE, ORACLE_UNSET, x, TOKENS);
    ck_assert(!ask_finish(&f.p.a, PAIR_MODEL, counts) && counts[0] == 1 && counts[1] == 1);
    oracle_calibration_finish(f.p.oracle);
    pair_check_state(&f.p);
    ck_assert(!oracle_state(f.p.oracle, ORACLE_INPUT)->set);
    fix_close(&f);
    free(x);
}
END_TEST

/* Non-finite elements are left out of the maximum. */
START_TEST(calibration_of_nonfinite_elements)
{
    struct fix f;
    float *x = peaked(1, 2.0f);
    x[3] = INFINITY;
    x[70] = NAN;
    fix_open(&f, &recipe);
    pair_forward(&f.p, &f.p.a, ORACLE_CALIBRATE, ORACLE_UNSET, x, TOKENS);
    ck_assert(calibration_amax(&f, "input") == 2);
    pair_finish(&f.p);
    fix_close(&f);
    free(x);
}
END_TEST

/* A load drops the calibration of the model it replaces. */
START_TEST(calibration_ends_with_its_model)
{
    struct fix f;
    fix_open(&f, &recipe);
    forward(&f, ORACLE_CALIBRATE, 1, 2.0f);
    pair_load(&f.p, f.w, NULL);
    ck_assert(calibration_amax(&f, "input") == 0);
    ck_assert_uint_eq(ask_finish(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    fix_close(&f);
}
END_TEST

/* --- unset sites --- */

/* Eval of an unset site takes each tensor's own scale, says uncalibrated, and stores nothing. */
START_TEST(unset_site_in_eval_takes_the_tensors_scale)
{
    struct fix f;
    fix_open(&f, &recipe);
    for (int i = 0; i < 3; i++) {
        float peak = i == 2 ? 0.0f : 7.0f * (float)(1 << 4 * i), *x = peaked(1, peak);
        struct ask_forward r = eval(&f, x);
        ck_assert(r.reply->input->scale == (i == 2 ? 1.0f : 224.0f / peak));
        ck_assert(r.reply->input->uncalibrated && r.reply->weight->uncalibrated);
        ck_assert(r.reply->input->amax == peak);
        ask_forward_free(&r);
        pair_forward(&f.p, &f.p.a, ORACLE_EVAL, ORACLE_UNSET, x, TOKENS);
        free(x);
    }
    ck_assert(!oracle_state(f.p.oracle, ORACLE_INPUT)->set);
    fix_close(&f);
}
END_TEST

/* Train casts with 1 while unset, as Transformer Engine, and the update sets the site. */
START_TEST(unset_site_in_train_casts_with_one)
{
    struct fix f;
    float *x = peaked(1, 7.0f);
    struct ask_forward r = {.model = PAIR_MODEL, .layer = PAIR_LAYER,
                            .mode = FP8D__V1__MODE__MODE_TRAIN, .x = ask_f32(x, TOKENS, IN)};
    fix_open(&f, &recipe);
    ck_assert(!ask_forward(&f.p.a, &r));
    ck_assert(r.reply->input->scale == 1 && r.reply->weight->scale == 1);
    ck_assert(!r.reply->input->uncalibrated && !r.reply->weight->uncalibrated);
    ask_forward_free(&r);
    r = eval(&f, x);
    ck_assert(r.reply->input->scale == 32 && !r.reply->input->uncalibrated);
    ask_forward_free(&r);
    fix_close(&f);
    free(x);
}
END_TEST

/* The scaling report counts the uncalibrated casts of input and weight; under recipe current, where
 * no site is to be calibrated, it counts none. */
START_TEST(unset_site_is_told_by_scaling)
{
    for (int current = 0; current < 2; current++) {
        struct fix f;
        struct oracle_recipe r = {.current = current, .history_len = 4};
        float *x = peaked(1, 7.0f);
        struct ask_tensor input = ask_f32(x, TOKENS, IN);
        fix_open(&f, &r);
        forward(&f, ORACLE_EVAL, 1, 7.0f);
        forward(&f, ORACLE_EVAL, 2, 7.0f);
        ck_assert(!ask_check(&f.p.a, PAIR_MODEL, PAIR_LAYER, &input, NULL));
        Fp8d__V1__QueryScalingReply *s = ask_state(&f.p.a, PAIR_MODEL);
        ck_assert_uint_eq(ask_site(s, PAIR_LAYER, "input")->uncalibrated_casts, current ? 0 : 3);
        ck_assert((ask_site(s, PAIR_LAYER, "weight")->uncalibrated_casts > 0) == !current);
        ask_state_free(s);
        fix_close(&f);
        free(x);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("calibration");
    TCase *c = tcase_create("calibration");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, calibration_keeps_the_maximum);
    tcase_add_test(c, calibration_of_two_clients);
    tcase_add_test(c, calibration_of_negative_tensors);
    tcase_add_test(c, calibration_abort_drops_it);
    tcase_add_test(c, calibration_finish_is_refused);
    tcase_add_test(c, calibration_beside_training);
    tcase_add_test(c, calibration_of_zeros);
    tcase_add_test(c, calibration_of_nonfinite_elements);
    tcase_add_test(c, calibration_ends_with_its_model);
    tcase_add_test(c, unset_site_in_eval_takes_the_tensors_scale);
    tcase_add_test(c, unset_site_in_train_casts_with_one);
    tcase_add_test(c, unset_site_is_told_by_scaling);
    suite_add_tcase(s, c);
    return run_suite(s);
}
