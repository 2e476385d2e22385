/* Evaluation, checks and unfinished calibration between train requests: the exported state and
 * every later output are those of the run without them. (Transformer Engine feeds evaluation
 * amaxes into the next update; fp8d does not.) */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OUT 48
#define IN 64
#define MOST_TOKENS 9

/* --- fixture --- */

/* Two daemons given the same training; only `noisy` gets other traffic, from two connections. */
struct twins {
    struct pair quiet, noisy;
    struct ask other; /* a second connection to the noisy one */
    float *w, *w2, *bias;
    bool open;        /* scope 1 of connection 1 */
};

static void twins_open(struct twins *t, const struct oracle_recipe *r)
{
    t->w = draw_normal(1, OUT * IN, 0.023);
    t->w2 = draw_normal(2, OUT * IN, 3.0);
    t->bias = draw_normal(3, OUT, 1.0);
    t->open = false;
    pair_open(&t->quiet, OUT, IN, r, t->w, t->bias);
    pair_open(&t->noisy, OUT, IN, r, t->w, t->bias);
    t->other = ask_open(t->noisy.desk, 2);
}

static void twins_close(struct twins *t)
{
    ask_close(&t->other);
    pair_close(&t->quiet);
    pair_close(&t->noisy);
    free(t->w);
    free(t->w2);
    free(t->bias);
}

/* --- helpers --- */

static void forward(struct pair *p, struct ask_forward *f, const float *x, uint64_t tokens)
{
    f->model = PAIR_MODEL;
    f->layer = PAIR_LAYER;
    f->x = ask_f32(x, tokens, IN);
    ck_assert_msg(!ask_forward(&p->a, f), "%s", p->a.text);
}

/* The same forward on both: bit for bit the same output, and the same words about it. */
static void forward_both(struct twins *t, Fp8d__V1__Mode mode, Fp8d__V1__FirstMicrobatch first,
                         const float *x, uint64_t tokens)
{
    struct ask_forward q = {.mode = mode, .first = first}, n = {.mode = mode, .first = first};
    forward(&t->quiet, &q, x, tokens);
    forward(&t->noisy, &n, x, tokens);
    ck_assert_uint_eq(q.y_bytes, n.y_bytes);
    ck_assert_msg(!memcmp(q.y, n.y, q.y_bytes), "outputs differ");
    ck_assert_int_eq(q.reply->weight_copy, n.reply->weight_copy);
    ck_assert(q.reply->input->scale == n.reply->input->scale);
    ck_assert(q.reply->weight->scale_inv == n.reply->weight->scale_inv);
    ask_forward_free(&q);
    ask_forward_free(&n);
}

static void compare_states(struct twins *t)
{
    Fp8d__V1__QueryScalingReply *q = ask_state(&t->quiet.a, PAIR_MODEL);
    Fp8d__V1__QueryScalingReply *n = ask_state(&t->noisy.a, PAIR_MODEL);
    ask_states_equal(q, n, true);
    ask_state_free(q);
    ask_state_free(n);
}

/* Magnitudes from 1e-6 to 1e6, now and then a non-finite element: nothing of it may stay. */
static float *wild(uint64_t *at, uint64_t tokens)
{
    static const double spread[] = {1e-6, 1.0, 30.0, 1e6};
    float *x = draw_normal(draw(at, 1u << 30), tokens * IN, spread[draw(at, 4)]);
    if (tokens && draw(at, 4) == 0)
        x[draw(at, tokens * IN)] = draw(at, 2) ? (float)INFINITY : (float)NAN;
    return x;
}

/* One request that must leave no trace. */
static void noise(struct twins *t, uint64_t *at)
{
    uint64_t tokens = draw(at, MOST_TOKENS);
    struct ask *from = draw(at, 2) ? &t->other : &t->noisy.a;
    float *x = wild(at, tokens);
    struct ask_tensor input = ask_f32(x, tokens, IN);
    uint64_t what = draw(at, 4);
    if (what == 3) {
        ck_assert_msg(!ask_check(from, PAIR_MODEL, PAIR_LAYER, &input, NULL), "%s", from->text);
    } else {
        struct ask_forward f = {
            .model = PAIR_MODEL, .layer = PAIR_LAYER, .x = input,
            .mode = what == 2 ? FP8D__V1__MODE__MODE_CALIBRATE : FP8D__V1__MODE__MODE_EVAL};
        ck_assert_msg(!ask_forward(from, &f), "%s", from->text);
        ask_forward_free(&f);
    }
    free(x);
}

static void edit_both(struct twins *t, const float *w)
{
    struct ask_tensor tensor = ask_f32(w, OUT, IN);
    ck_assert(!ask_edit(&t->quiet.a, PAIR_MODEL, PAIR_LAYER, &tensor, NULL, NULL, NULL));
    ck_assert(!ask_edit(&t->noisy.a, PAIR_MODEL, PAIR_LAYER, &tensor, NULL, NULL, NULL));
}

static void scope_both(struct twins *t, bool discard)
{
    if (t->open) {
        ck_assert(!ask_scope_end(&t->quiet.a, 1, discard, NULL));
        ck_assert(!ask_scope_end(&t->noisy.a, 1, discard, NULL));
    } else {
        ck_assert(!ask_scope_begin(&t->quiet.a, 1, PAIR_MODEL));
        ck_assert(!ask_scope_begin(&t->noisy.a, 1, PAIR_MODEL));
    }
    t->open = !t->open;
}

/* One step of training, the same on both. */
static void training(struct twins *t, uint64_t *at)
{
    uint64_t what = draw(at, 10);
    if (what == 0) {
        edit_both(t, draw(at, 2) ? t->w : t->w2);
    } else if (what <= 2) {
        scope_both(t, draw(at, 4) == 0);
    } else {
        uint64_t tokens = draw(at, MOST_TOKENS);
        float *x = draw_normal(draw(at, 1u << 30), tokens * IN, 1.0);
        if (tokens)
            forward_both(t, FP8D__V1__MODE__MODE_TRAIN,
                         (Fp8d__V1__FirstMicrobatch)draw(at, 3), x, tokens);
        free(x);
    }
}

static struct oracle_recipe recipe_of(unsigned i)
{
    static const size_t lens[] = {1024, 1, 2, 5};
    return (struct oracle_recipe){.margin = (int)(i % 3),
                                  .history_len = lens[i & 3],
                                  .most_recent = i >> 2 & 1,
                                  .current = i % 8 == 7};
}

/* --- cases --- */

/* Random training with random traffic between, against the same training alone. */
START_TEST(isolation_of_random_interleavings)
{
    struct twins t;
    uint64_t at = 77 + (uint64_t)_i * 1000033;
    struct oracle_recipe r = recipe_of((unsigned)_i);
    twins_open(&t, &r);
    for (unsigned i = 0; i < (pair_small() ? 20 : 80); i++) {
        for (uint64_t n = draw(&at, 4); n; n--)
            noise(&t, &at);
        compare_states(&t);
        training(&t, &at);
        compare_states(&t);
    }
    float *x = draw_uniform(5, 4 * IN);
    forward_both(&t, FP8D__V1__MODE__MODE_EVAL, 0, x, 4);
    free(x);
    twins_close(&t);
}
END_TEST

/* An eval of huge inputs before the next train forward does not move its scale: the history holds
 * what training saw, and nothing else. */
START_TEST(isolation_eval_amax_does_not_leak)
{
    struct pair p;
    float *w = draw_normal(1, OUT * IN, 0.023), *x = draw_uniform(2, 8 * IN);
    float *huge = draw_normal(3, 8 * IN, 1e4);
    pair_open(&p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, w, NULL);
    for (int i = 0; i < 4; i++) {
        pair_forward(&p, &p.a, ORACLE_TRAIN, ORACLE_TRUE, x, 8);
        pair_forward(&p, &p.a, ORACLE_EVAL, ORACLE_UNSET, huge, 8);
        pair_forward(&p, &p.a, ORACLE_CALIBRATE, ORACLE_UNSET, huge, 8);
    }
    ck_assert(oracle_state(p.oracle, ORACLE_INPUT)->last < 1.0);
    pair_close(&p);
    free(w);
    free(x);
    free(huge);
}
END_TEST

/* Eval with moved scales casts beside the training copy: false reuses the bytes and factor of
 * true. */
START_TEST(isolation_eval_keeps_the_training_copy)
{
    struct pair p;
    float *w = draw_normal(1, OUT * IN, 0.023), *x = draw_uniform(2, 8 * IN);
    pair_open(&p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, w, NULL);
    pair_forward(&p, &p.a, ORACLE_TRAIN, ORACLE_TRUE, x, 8);
    float *y[2];
    for (int i = 0; i < 2; i++) {
        struct ask_forward f = {.mode = FP8D__V1__MODE__MODE_EVAL};
        forward(&p, &f, x, 8);
        ck_assert_int_eq(f.reply->weight_copy, FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_EVALUATION);
        y[i] = f.y;
        f.y = NULL;
        ask_forward_free(&f);
        pair_check_state(&p);
        ck_assert_int_eq(pair_forward(&p, &p.a, ORACLE_TRAIN, ORACLE_FALSE, x, 8).copy,
                         ORACLE_COPY_REUSED);
    }
    ck_assert_msg(!memcmp(y[0], y[1], 8 * OUT * sizeof(float)), "two evals differ");
    ck_assert(oracle_copy_factor(p.oracle) == 1.0f);
    pair_close(&p);
    free(y[0]);
    free(y[1]);
    free(w);
    free(x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("eval_isolation");
    TCase *random = tcase_create("random"), *c = tcase_create("eval_isolation");
    tcase_set_timeout(random, 300);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(random, isolation_of_random_interleavings, 0, 16);
    suite_add_tcase(s, random);
    tcase_add_test(c, isolation_eval_amax_does_not_leak);
    tcase_add_test(c, isolation_eval_keeps_the_training_copy);
    suite_add_tcase(s, c);
    return run_suite(s);
}
