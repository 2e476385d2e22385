/* Gradient accumulation under FP8 (Transformer Engine issue 1047) through the whole engine: every
 * output is that of the float64 emulation, whatever happens between the microbatches, and the error
 * against high precision does not grow. */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SPREAD 0.023 /* of the weights: TE's initial standard deviation */
#define OUT 80
#define IN 96
#define TOKENS 20

static const struct oracle_recipe defaults = {.history_len = 1024};

/* --- fixture --- */

/* A layer of small weights, and other weights to change to. */
struct small {
    struct pair p;
    float *w, *other;
};

static void small_open_on(struct small *s, unsigned threads, const struct oracle_recipe *r)
{
    s->w = draw_normal(8, OUT * IN, SPREAD);
    s->other = draw_normal(9, OUT * IN, 2.0);
    pair_open_on(&s->p, threads, OUT, IN, r, s->w, NULL);
}

static void small_open(struct small *s, const struct oracle_recipe *r)
{
    small_open_on(s, 0, r);
}

static void small_close(struct small *s)
{
    pair_close(&s->p);
    free(s->w);
    free(s->other);
}

/* --- helpers --- */

static struct oracle_recipe recipe_of(unsigned i)
{
    static const size_t lens[] = {1, 2, 31, 1024};
    return (struct oracle_recipe){
        .margin = (int)(i & 3), .history_len = lens[i >> 2 & 3], .most_recent = i >> 4 & 1};
}

/* The largest difference of each stays within 1.5 of the first's and below `limit`; returns the
 * largest. */
static double accumulate(struct pair *p, unsigned count, enum oracle_flag first,
                         enum oracle_flag later, size_t tokens, double limit)
{
    double start = 0, most = 0;
    for (unsigned i = 0; i < count; i++) {
        double d =
            pair_step(p, ORACLE_TRAIN, i ? later : first, 100 + i, tokens).against_high;
        start = i ? start : d;
        most = fmax(most, d);
        ck_assert_msg(d <= 1.5 * start && d < limit,
                      "microbatch %u: %g against high precision, the first had %g", i, d, start);
    }
    return most;
}

static void step(struct small *s, enum oracle_mode mode, enum oracle_flag flag,
                 enum oracle_copy want)
{
    static _Thread_local uint64_t seed = 1000;
    enum oracle_copy copy = pair_step(&s->p, mode, flag, seed++, TOKENS).copy;
    ck_assert_msg(copy == want, "the copy was %d, needed %d", copy, want);
}

/* --- cases --- */

/* The requirement as written: 768 x 768 weights of N(0, 0.023), inputs [1024, 768] in [0, 1), flags
 * true, false x 4, a scope each, delayed defaults. */
START_TEST(engine_true_then_false_keeps_its_error)
{
    struct pair p;
    size_t n = pair_small() ? 160 : 768, tokens = pair_small() ? 24 : 1024;
    float *w = draw_normal(7, n * n, SPREAD);
    pair_open(&p, n, n, &defaults, w, NULL);
    double most = accumulate(&p, 5, ORACLE_TRUE, ORACLE_FALSE, tokens, 0.1);
    /* Cast once, with scale 1; the site moved on and the copy's factor did not. */
    ck_assert(oracle_copy_factor(p.oracle) == 1.0f);
    ck_assert(oracle_state(p.oracle, ORACLE_WEIGHT)->scale != 1.0f);
    (void)fprintf(stderr, "# largest difference against high precision %g\n", most);
    pair_close(&p);
    free(w);
}
END_TEST

/* Every margin, history length and algorithm, flags true, false x 4. */
START_TEST(engine_true_then_false_for_every_recipe)
{
    struct small s;
    struct oracle_recipe r = recipe_of((unsigned)_i);
    small_open(&s, &r);
    accumulate(&s.p, 5, ORACLE_TRUE, ORACLE_FALSE, TOKENS, 0.1);
    ck_assert_uint_eq(oracle_state(s.p.oracle, ORACLE_WEIGHT)->updates, 1);
    ck_assert_uint_eq(oracle_state(s.p.oracle, ORACLE_INPUT)->updates, 5);
    small_close(&s);
}
END_TEST

/* The same with the flag unset: cast anew whenever the scale has moved, fed every time. */
START_TEST(engine_unset_flag_for_every_recipe)
{
    struct small s;
    struct oracle_recipe r = recipe_of((unsigned)_i);
    small_open(&s, &r);
    accumulate(&s.p, 5, ORACLE_UNSET, ORACLE_UNSET, TOKENS, 0.1);
    ck_assert_uint_eq(oracle_state(s.p.oracle, ORACLE_WEIGHT)->updates, 5);
    small_close(&s);
}
END_TEST

/* E4M3 throughout differs in gradients only: the forward is the same. */
START_TEST(engine_format_e4m3_is_the_same_forward)
{
    struct small s;
    Fp8d__V1__Recipe r = pair_recipe(&defaults);
    struct desk_layer layer = {PAIR_LAYER, OUT, IN, NULL, NULL};
    small_open(&s, &defaults);
    layer.weight = s.w;
    r.fp8_format = FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
    ck_assert_uint_eq(desk_load(s.p.desk, 1, PAIR_MODEL, &layer, 1, &r, NULL), 0);
    accumulate(&s.p, 5, ORACLE_TRUE, ORACLE_FALSE, TOKENS, 0.1);
    Fp8d__V1__QueryScalingReply *q = ask_state(&s.p.a, PAIR_MODEL);
    ck_assert(q->recipe->fp8_format == FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3);
    ck_assert(ask_site(q, PAIR_LAYER, "grad_output")->fp8_dtype ==
              FP8D__V1__DTYPE__DTYPE_F8_E4M3);
    ask_state_free(q);
    small_close(&s);
}
END_TEST

/* Scaling by the tensor at hand has no site to go wrong, and the flag still reuses. */
START_TEST(engine_current_scaling_accumulates)
{
    struct small s;
    struct oracle_recipe r = {.current = true, .history_len = 1024, .margin = _i};
    small_open(&s, &r);
    accumulate(&s.p, 3, ORACLE_TRUE, ORACLE_FALSE, TOKENS, 0.1);
    accumulate(&s.p, 3, ORACLE_UNSET, ORACLE_UNSET, TOKENS, 0.1);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_REUSED);
    small_close(&s);
}
END_TEST

/* An eval between true and false casts beside the training copy, and false still reuses that. */
START_TEST(engine_eval_between_true_and_false)
{
    struct small s;
    small_open(&s, &defaults);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL); /* unset sites: their own scales */
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    step(&s, ORACLE_CALIBRATE, ORACLE_UNSET, ORACLE_COPY_NONE);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    ck_assert(oracle_copy_factor(s.p.oracle) == 1.0f);
    step(&s, ORACLE_TRAIN, ORACLE_UNSET, ORACLE_COPY_CAST);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_REUSED);
    small_close(&s);
}
END_TEST

/* A weight edit between true and false: false casts the new weight and says so. */
START_TEST(engine_edit_between_true_and_false)
{
    struct small s;
    small_open(&s, &defaults);
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL);
    pair_edit(&s.p, s.other);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REMADE);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    pair_edit(&s.p, s.w);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL);
    step(&s, ORACLE_TRAIN, ORACLE_UNSET, ORACLE_COPY_CAST);
    pair_edit(&s.p, s.w); /* the same numbers are another version too */
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REMADE);
    small_close(&s);
}
END_TEST

/* False before any true casts, keeps the copy, feeds the amax, and says so. */
START_TEST(engine_false_before_any_true)
{
    struct small s;
    small_open(&s, &defaults);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REMADE);
    ck_assert_uint_eq(oracle_state(s.p.oracle, ORACLE_WEIGHT)->updates, 1);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    small_close(&s);
}
END_TEST

/* A load that replaces the model between true and false: nothing of the old one is left. */
START_TEST(engine_load_between_true_and_false)
{
    struct small s;
    small_open(&s, &defaults);
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL);
    pair_load(&s.p, s.other, NULL);
    pair_check_state(&s.p);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REMADE);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    pair_load(&s.p, s.other, NULL);
    step(&s, ORACLE_EVAL, ORACLE_UNSET, ORACLE_COPY_EVAL);
    step(&s, ORACLE_TRAIN, ORACLE_UNSET, ORACLE_COPY_CAST);
    small_close(&s);
}
END_TEST

/* The scale moves by orders of magnitude between the cast and the product that uses it: inputs of
 * growing size, calibration, scope ends. The factor is the copy's. */
START_TEST(engine_scales_move_between_cast_and_product)
{
    struct small s;
    float *x = draw_normal(3, TOKENS * IN, 1.0);
    small_open(&s, &(struct oracle_recipe){.history_len = 3});
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    for (int i = 0; i < 8; i++) {
        for (size_t k = 0; k < TOKENS * IN; k++)
            x[k] *= i < 4 ? 100.0f : 1e-3f;
        pair_forward(&s.p, &s.p.a, ORACLE_TRAIN, ORACLE_FALSE, x, TOKENS);
        pair_forward(&s.p, &s.p.a, ORACLE_EVAL, ORACLE_UNSET, x, TOKENS);
    }
    pair_forward(&s.p, &s.p.a, ORACLE_CALIBRATE, ORACLE_UNSET, x, TOKENS);
    pair_finish(&s.p);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    pair_scope_begin(&s.p, 5);
    step(&s, ORACLE_TRAIN, ORACLE_TRUE, ORACLE_COPY_CAST);
    step(&s, ORACLE_TRAIN, ORACLE_UNSET, ORACLE_COPY_REUSED);
    pair_scope_end(&s.p, 5);
    step(&s, ORACLE_TRAIN, ORACLE_FALSE, ORACLE_COPY_REUSED);
    small_close(&s);
    free(x);
}
END_TEST

/* Random sequences of everything above, against the emulation at every step, on an inline queue and
 * on threads. */
START_TEST(engine_random_sequences)
{
    struct small s;
    uint64_t at = (uint64_t)_i * 1000003;
    struct oracle_recipe r = recipe_of((unsigned)draw(&at, 32));
    bool open = false;
    small_open_on(&s, (unsigned)_i % 3, &r);
    for (unsigned i = 0; i < (pair_small() ? 30 : 100); i++) {
        uint64_t what = draw(&at, 12), seed = draw(&at, 1u << 20);
        if (what < 6)
            pair_step(&s.p, ORACLE_TRAIN, (enum oracle_flag)draw(&at, 3), seed, 1 + draw(&at, 9));
        else if (what < 9)
            pair_step(&s.p, what == 8 ? ORACLE_CALIBRATE : ORACLE_EVAL, ORACLE_UNSET, seed, 3);
        else if (what == 9)
            pair_edit(&s.p, draw(&at, 2) ? s.w : s.other);
        else if (open)
            pair_scope_end(&s.p, 1), open = false;
        else
            pair_scope_begin(&s.p, 1), open = true;
    }
    small_close(&s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("microbatch_engine");
    TCase *c = tcase_create("microbatch_engine"), *between = tcase_create("between");
    tcase_set_timeout(c, 300);
    tcase_set_timeout(between, 60);
    tcase_add_test(c, engine_true_then_false_keeps_its_error);
    tcase_add_loop_test(c, engine_true_then_false_for_every_recipe, 0, 32);
    tcase_add_loop_test(c, engine_unset_flag_for_every_recipe, 0, 32);
    tcase_add_test(c, engine_format_e4m3_is_the_same_forward);
    tcase_add_loop_test(c, engine_current_scaling_accumulates, 0, 4);
    tcase_add_test(between, engine_eval_between_true_and_false);
    tcase_add_test(between, engine_edit_between_true_and_false);
    tcase_add_test(between, engine_false_before_any_true);
    tcase_add_test(between, engine_load_between_true_and_false);
    tcase_add_test(between, engine_scales_move_between_cast_and_product);
    tcase_add_loop_test(c, engine_random_sequences, 0, 16);
    suite_add_tcase(s, c);
    suite_add_tcase(s, between);
    return run_suite(s);
}
