/* Scopes over one layer: what they collect, and every way in which they end. Expected states come
 * from the emulation. */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OUT 48
#define IN 64
#define TOKENS 8

static const struct oracle_recipe recipe = {.history_len = 5};

/* --- fixture --- */

struct fix {
    struct pair p;
    struct ask other; /* connection 2 */
    float *w;
};

static void fix_open(struct fix *f)
{
    f->w = draw_normal(1, OUT * IN, 0.023);
    pair_open(&f->p, OUT, IN, &recipe, f->w, NULL);
    f->other = ask_open(f->p.desk, 2);
}

static void fix_close(struct fix *f)
{
    ask_close(&f->other);
    pair_close(&f->p);
    free(f->w);
}

/* --- helpers --- */

/* [TOKENS, IN], all zero but for one element. */
static float *spike(float value)
{
    float *x = calloc(TOKENS * IN, sizeof *x);
    ck_assert_ptr_nonnull(x);
    x[3 * IN + 7] = value;
    return x;
}

static void train_spike(struct fix *f, enum oracle_flag flag, float value)
{
    float *x = spike(value);
    pair_forward(&f->p, &f->p.a, ORACLE_TRAIN, flag, x, TOKENS);
    free(x);
}

static float collecting(struct fix *f, const char *site)
{
    Fp8d__V1__QueryScalingReply *s = ask_state(&f->p.a, PAIR_MODEL);
    float v = ask_site(s, PAIR_LAYER, site)->collecting;
    ask_state_free(s);
    return v;
}

static unsigned forward_code(struct ask *from, Fp8d__V1__Mode mode, uint64_t context, bool *applied)
{
    float *x = spike(1);
    struct ask_forward f = {.model = PAIR_MODEL,
                            .layer = PAIR_LAYER,
                            .mode = mode,
                            .x = ask_f32(x, TOKENS, IN),
                            .context_id = context};
    unsigned code = ask_forward(from, &f);
    if (!code && applied)
        *applied = f.reply->scales_applied;
    ask_forward_free(&f);
    free(x);
    return code;
}

/* --- what is collected --- */

/* Forwards in a scope combine by max and move the history once, at its end. */
START_TEST(scope_combines_by_max)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f);
    pair_scope_begin(&f.p, 5);
    train_spike(&f, ORACLE_TRUE, 2);
    ck_assert(collecting(&f, "input") == 2);
    train_spike(&f, ORACLE_FALSE, -7);
    train_spike(&f, ORACLE_UNSET, 3);
    ck_assert(collecting(&f, "input") == 7);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->updates == 0);
    pair_scope_end(&f.p, 5);
    const struct scaler_ref *in = oracle_state(f.p.oracle, ORACLE_INPUT);
    ck_assert(in->updates == 1 && in->scale == 64 && collecting(&f, "input") == 0);
    ck_assert_uint_eq(ask_scope_end(&f.p.a, 5, false, counts), ASK_NOT_FOUND);
    fix_close(&f);
}
END_TEST

/* Without a scope each forward is its own: one update each. */
START_TEST(scope_of_its_own_for_each_forward)
{
    struct fix f;
    fix_open(&f);
    train_spike(&f, ORACLE_TRUE, 2);
    train_spike(&f, ORACLE_FALSE, 7);
    train_spike(&f, ORACLE_UNSET, 3);
    ck_assert_uint_eq(oracle_state(f.p.oracle, ORACLE_INPUT)->updates, 3);
    fix_close(&f);
}
END_TEST

/* A non-finite element anywhere in the scope skips the site's update whole, and is counted. */
START_TEST(scope_nonfinite_skips_the_site_whole)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    struct fix f;
    fix_open(&f);
    train_spike(&f, ORACLE_TRUE, 2);
    pair_scope_begin(&f.p, 5);
    train_spike(&f, ORACLE_TRUE, 50);
    train_spike(&f, ORACLE_TRUE, bad[_i]);
    pair_scope_end(&f.p, 5);
    train_spike(&f, ORACLE_TRUE, bad[_i]);
    const struct scaler_ref *in = oracle_state(f.p.oracle, ORACLE_INPUT);
    ck_assert(in->updates == 1 && in->skipped == 2 && in->nonfinite == 2 && in->last == 2);
    train_spike(&f, ORACLE_TRUE, 4); /* and the next one is as if it had not been */
    ck_assert(in->updates == 2 && in->scale == 112);
    fix_close(&f);
}
END_TEST

/* A weight with a non-finite element: its site is skipped, the input's moves. */
START_TEST(scope_nonfinite_weight)
{
    struct fix f;
    fix_open(&f);
    f.w[17] = NAN;
    pair_edit(&f.p, f.w);
    train_spike(&f, ORACLE_TRUE, 2);
    train_spike(&f, ORACLE_UNSET, 2);
    const struct scaler_ref *w = oracle_state(f.p.oracle, ORACLE_WEIGHT);
    ck_assert(w->updates == 0 && w->skipped == 2 && w->nonfinite == 2 && !w->set);
    fix_close(&f);
}
END_TEST

/* Zero tokens: the output is [0, out], nothing is fed, and the layer did not run. */
START_TEST(scope_zero_tokens_update_nothing)
{
    struct fix f;
    unsigned counts[2] = {9, 9};
    float none = 0;
    fix_open(&f);
    train_spike(&f, ORACLE_TRUE, 2);
    for (int scoped = 0; scoped < 2; scoped++) {
        struct ask_forward r = {.model = PAIR_MODEL, .layer = PAIR_LAYER,
                                .mode = FP8D__V1__MODE__MODE_TRAIN, .x = ask_f32(&none, 0, IN)};
        if (scoped)
            ck_assert(!ask_scope_begin(&f.p.a, 5, PAIR_MODEL));
        ck_assert_msg(!ask_forward(&f.p.a, &r), "%s", f.p.a.text);
        ck_assert(r.y_bytes == 0 && r.reply->output->n_dims == 2);
        ck_assert(r.reply->output->dims[0] == 0 && r.reply->output->dims[1] == OUT);
        ck_assert(!r.reply->scales_applied);
        ask_forward_free(&r);
        if (scoped)
            ck_assert(!ask_scope_end(&f.p.a, 5, false, counts));
        pair_check_state(&f.p);
    }
    ck_assert(counts[0] == 0 && counts[1] == 0);
    fix_close(&f);
}
END_TEST

/* --- how they end --- */

/* A forward refused within a scope leaves no trace in it. */
START_TEST(scope_forgets_a_refused_forward)
{
    struct fix f;
    unsigned counts[2] = {9, 9};
    fix_open(&f);
    ck_assert(!forward_code(&f.p.a, FP8D__V1__MODE__MODE_TRAIN, 11, NULL));
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.p.a, PAIR_MODEL);
    ck_assert(!ask_scope_begin(&f.p.a, 5, PAIR_MODEL));
    ck_assert_uint_eq(forward_code(&f.p.a, FP8D__V1__MODE__MODE_TRAIN, 11, NULL),
                      ASK_ALREADY_EXISTS);
    ck_assert(!ask_scope_end(&f.p.a, 5, false, counts));
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.p.a, PAIR_MODEL);
    ask_states_equal(before, after, true);
    ck_assert(counts[0] == 0 && counts[1] == 0);
    ask_state_free(before);
    ask_state_free(after);
    fix_close(&f);
}
END_TEST

/* Discard drops what was collected. */
START_TEST(scope_discard_drops_what_it_saw)
{
    struct fix f;
    fix_open(&f);
    train_spike(&f, ORACLE_TRUE, 2);
    pair_scope_begin(&f.p, 5);
    train_spike(&f, ORACLE_TRUE, 900);
    train_spike(&f, ORACLE_TRUE, NAN);
    pair_scope_drop(&f.p, 5);
    train_spike(&f, ORACLE_TRUE, 3);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->updates == 2);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->nonfinite == 0);
    fix_close(&f);
}
END_TEST

/* Its owner's death drops the scope, also with a forward of it still running; others may train. */
START_TEST(scope_dies_with_its_connection)
{
    struct fix f;
    float *x = spike(900);
    fix_open(&f);
    train_spike(&f, ORACLE_TRUE, 2);
    ck_assert(!ask_scope_begin(&f.other, 5, PAIR_MODEL));
    oracle_scope_begin(f.p.oracle);
    pair_forward(&f.p, &f.other, ORACLE_TRAIN, ORACLE_TRUE, x, TOKENS);
    if (_i) {
        desk_hold(f.p.desk);
        f.other.later = true;
        ck_assert_uint_eq(forward_code(&f.other, FP8D__V1__MODE__MODE_TRAIN, 0, NULL), ASK_LATER);
    }
    ask_close(&f.other);
    desk_release(f.p.desk);
    oracle_scope_drop(f.p.oracle);
    pair_check_state(&f.p);
    train_spike(&f, ORACLE_TRUE, 3);
    ck_assert(oracle_state(f.p.oracle, ORACLE_INPUT)->updates == 2);
    f.other = ask_open(f.p.desk, 3);
    fix_close(&f);
    free(x);
}
END_TEST

/* Two runs, one with a scope that died: afterwards outputs are the same to the bit. */
START_TEST(scope_that_died_changes_no_later_output)
{
    struct fix f[2];
    float *x = draw_normal(9, TOKENS * IN, 1), *y[2];
    for (int k = 0; k < 2; k++) {
        fix_open(&f[k]);
        train_spike(&f[k], ORACLE_TRUE, 2);
        if (k) {
            ck_assert(!ask_scope_begin(&f[k].other, 5, PAIR_MODEL));
            ck_assert(!forward_code(&f[k].other, FP8D__V1__MODE__MODE_TRAIN, 0, NULL));
            ask_close(&f[k].other);
            f[k].other = ask_open(f[k].p.desk, 3);
        }
        for (int i = 0; i < 3; i++) {
            struct ask_forward r = {
                .model = PAIR_MODEL, .layer = PAIR_LAYER, .x = ask_f32(x, TOKENS, IN),
                .mode = i == 2 ? FP8D__V1__MODE__MODE_EVAL : FP8D__V1__MODE__MODE_TRAIN};
            ck_assert(!ask_forward(&f[k].p.a, &r));
            y[k] = i == 2 ? r.y : NULL;
            r.y = i == 2 ? NULL : r.y;
            ask_forward_free(&r);
        }
    }
    ck_assert(!memcmp(y[0], y[1], TOKENS * OUT * sizeof(float)));
    for (int k = 0; k < 2; k++) {
        fix_close(&f[k]);
        free(y[k]);
    }
    free(x);
}
END_TEST

/* --- whose it is --- */

/* Another connection's train request and scope are refused with the holder's name; its evaluation
 * is not. */
START_TEST(scope_keeps_others_from_training)
{
    struct fix f;
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.p.a, 5, PAIR_MODEL));
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.p.a, PAIR_MODEL);
    ck_assert_uint_eq(forward_code(&f.other, FP8D__V1__MODE__MODE_TRAIN, 0, NULL),
                      ASK_FAILED_PRECONDITION);
    ck_assert_msg(strstr(f.other.text, "scope 5") && strstr(f.other.text, "connection 1") &&
                      strstr(f.other.text, "pid 101"),
                  "%s", f.other.text);
    ck_assert_uint_eq(ask_scope_begin(&f.other, 6, PAIR_MODEL), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(ask_scope_end(&f.other, 5, false, NULL), ASK_NOT_FOUND);
    ck_assert_uint_eq(ask_scope_begin(&f.p.a, 5, PAIR_MODEL), ASK_ALREADY_EXISTS);
    ck_assert_uint_eq(ask_scope_begin(&f.p.a, 6, PAIR_MODEL), ASK_FAILED_PRECONDITION);
    ck_assert(!forward_code(&f.other, FP8D__V1__MODE__MODE_EVAL, 0, NULL));
    ck_assert(!forward_code(&f.other, FP8D__V1__MODE__MODE_CALIBRATE, 0, NULL));
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.p.a, PAIR_MODEL);
    ask_states_equal(before, after, true);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert(!ask_scope_end(&f.p.a, 5, false, NULL));
    ck_assert(!forward_code(&f.other, FP8D__V1__MODE__MODE_TRAIN, 0, NULL));
    fix_close(&f);
}
END_TEST

/* A load or an unload takes the model from under the scope: it ends without an update, and the
 * model of that name now is not touched by it. */
START_TEST(scope_is_orphaned_by_a_replaced_model)
{
    struct fix f;
    bool applied = false;
    fix_open(&f);
    pair_scope_begin(&f.p, 5);
    train_spike(&f, ORACLE_TRUE, 900);
    if (_i)
        ck_assert(!ask_drop_model(&f.other, PAIR_MODEL, NULL));
    pair_load(&f.p, f.w, NULL);
    pair_check_state(&f.p);
    ck_assert(!forward_code(&f.other, FP8D__V1__MODE__MODE_TRAIN, 0, &applied) && applied);
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.p.a, PAIR_MODEL);
    ck_assert_uint_eq(ask_scope_end(&f.p.a, 5, false, NULL), ASK_FAILED_PRECONDITION);
    ck_assert_msg(strstr(f.p.a.text, "without an update"), "%s", f.p.a.text);
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.p.a, PAIR_MODEL);
    ask_states_equal(before, after, true);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert(!ask_scope_begin(&f.p.a, 5, PAIR_MODEL)); /* the id is free again */
    ck_assert(!ask_scope_end(&f.p.a, 5, true, NULL));
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scopes");
    TCase *c = tcase_create("scopes");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, scope_combines_by_max);
    tcase_add_test(c, scope_of_its_own_for_each_forward);
    tcase_add_loop_test(c, scope_nonfinite_skips_the_site_whole, 0, 3);
    tcase_add_test(c, scope_nonfinite_weight);
    tcase_add_test(c, scope_zero_tokens_update_nothing);
    tcase_add_test(c, scope_forgets_a_refused_forward);
    tcase_add_test(c, scope_discard_drops_what_it_saw);
    tcase_add_loop_test(c, scope_dies_with_its_connection, 0, 2);
    tcase_add_test(c, scope_that_died_changes_no_later_output);
    tcase_add_test(c, scope_keeps_others_from_training);
    tcase_add_loop_test(c, scope_is_orphaned_by_a_replaced_model, 0, 2);
    suite_add_tcase(s, c);
    return run_suite(s);
}
