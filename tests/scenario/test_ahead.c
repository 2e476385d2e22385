/* Requests that begin before the one before them has ended change when things happen and nothing
 * else: every sequence of requests gets the same replies, to the bit, whether they are sent one by
 * one or all at once. */
#include "tests/scenario/sides.h"
#include "tests/unit/run.h"

/* --- what begins ahead, and what waits --- */

/* A backward behind its forward, a step behind its backward; a forward waits for the step. */
START_TEST(ahead_in_a_loop_of_one_layer)
{
    ck_assert_uint_eq(sides_compare(side_loop, 1), 8);
}
END_TEST

static void two_layers(struct side *s, uint64_t seed)
{
    side_forward(s, false, seed, 0, 1, 0);
    side_forward(s, true, seed + 1, 0, 2, 0);   /* another layer */
    side_forward(s, true, seed + 2, 0, 3, 0);   /* the same: waits */
    side_backward(s, true, 2, seed + 3, 0, 0);  /* ahead */
    side_backward(s, false, 1, seed + 4, 0, 0); /* another layer */
    side_forward(s, false, seed + 5, 0, 4, 0);  /* ahead, also of the same layer */
    side_backward(s, true, 3, seed + 6, 0, 0);  /* ahead */
    side_backward(s, true, 3, seed + 7, 0, 0);  /* its context is used up: waits, and fails */
    side_step(s, 1);
    side_gradient(s, true);
    side_eval(s, true);
}

START_TEST(ahead_over_two_layers)
{
    ck_assert_uint_eq(sides_compare(two_layers, 7), 5);
}
END_TEST

static void chained(struct side *s, uint64_t seed)
{
    side_forward(s, false, seed, 0, 1, 10); /* y is tensor 10 */
    side_forward(s, true, 0, 10, 2, 11);    /* which is to be there */
    side_backward(s, true, 2, seed + 1, 0, 12);
    side_backward(s, false, 1, 0, 12, 13);      /* dx of one is dy of the other */
    side_forward(s, false, seed + 2, 0, 3, 10); /* replaces 10 */
    side_forward(s, true, 0, 10, 4, 11);        /* reads the new one */
    side_backward(s, true, 4, seed + 3, 0, 12);
    side_backward(s, false, 3, 0, 12, 13);
    side_gradient(s, false);
    side_gradient(s, true);
}

/* A tensor that the request before files is waited for, also where it replaces another. */
START_TEST(ahead_never_reads_the_tensor_before)
{
    ck_assert_uint_eq(sides_compare(chained, 3), 3);
}
END_TEST

static void in_a_scope(struct side *s, uint64_t seed)
{
    (void)seed;
    ck_assert_uint_eq(ask_scope_begin(&s->a, 1, "n"), ASK_LATER);
    side_sent(s);
    for (unsigned i = 0; i < MANY; i++) {
        side_forward_many(s, i, 100 + i);
        if (i == 8 ||
            i == 16) /* one more than there was room for, and nothing behind it that makes more */
            side_gradient(s, false);
    }
    for (unsigned i = MANY; i-- > MANY - 16;)
        side_backward(s, false, 100 + i, i, 0, 0);
    ck_assert_uint_eq(ask_scope_end(&s->a, 1, false, NULL), ASK_LATER);
    side_sent(s);
}

/* A scope has room for what both of them collect, however many layers take part. */
START_TEST(ahead_in_a_scope_of_many_layers)
{
    ck_assert_uint_eq(sides_compare(in_a_scope, 1), MANY - 3 + 16);
}
END_TEST

/* --- anything --- */

/* Mostly what may succeed: contexts that are new, or were made lately. */
static void train_somehow(struct side *s, uint64_t *state, uint64_t what)
{
    uint64_t seed = draw(state, 1000);
    bool b = draw(state, 2);
    uint64_t from = draw(state, 4) ? 0 : 10 + draw(state, 3);
    uint64_t to = draw(state, 2) ? 0 : 10 + draw(state, 3);
    uint64_t late = 2 * (s->contexts - draw(state, 3)) + b;
    if (what < 8) {
        s->contexts += draw(state, 6) > 0;
        side_forward(s, b, seed, from, 2 * s->contexts + b, to);
    } else if (what < 15) {
        side_backward(s, b, late, seed, from, to);
    } else {
        s->steps += draw(state, 5) > 0;
        side_step(s, s->steps);
    }
}

static void other_somehow(struct side *s, uint64_t *state)
{
    struct ask_recompute r = {.context_id = 2 * s->contexts};
    switch (draw(state, 6)) {
    case 0:
        side_gradient(s, draw(state, 2));
        return;
    case 1:
        side_eval(s, draw(state, 2));
        return;
    case 2:
        ck_assert_uint_eq(ask_zero_grad(&s->a, "m", NULL), ASK_LATER);
        break;
    case 3:
        ck_assert_uint_eq(ask_recompute(&s->a, &r), ASK_LATER);
        break;
    case 4:
        ck_assert_uint_eq(ask_scope_begin(&s->a, 1, "m"), ASK_LATER);
        break;
    default:
        ck_assert_uint_eq(ask_scope_end(&s->a, 1, false, NULL), ASK_LATER);
        break;
    }
    side_sent(s);
}

static void anything(struct side *s, uint64_t seed)
{
    uint64_t state = seed * 7919 + 1;
    s->contexts = 5;
    while (s->sent < SENT) {
        uint64_t what = draw(&state, 20);
        if (what < 18)
            train_somehow(s, &state, what);
        else
            other_somehow(s, &state);
    }
}

/* Contexts and tensors that are not there, shapes that do not fit, steps out of turn: refusals are
 * part of it. */
START_TEST(ahead_of_random_sequences)
{
    uint64_t ahead = 0;
    for (uint64_t seed = 1; seed <= 60; seed++)
        ahead += sides_compare(anything, (uint64_t)_i * 1000 + seed);
    ck_assert_uint_gt(ahead, 100);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ahead");
    TCase *c = tcase_create("order");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, ahead_in_a_loop_of_one_layer);
    tcase_add_test(c, ahead_over_two_layers);
    tcase_add_test(c, ahead_never_reads_the_tensor_before);
    tcase_add_test(c, ahead_in_a_scope_of_many_layers);
    tcase_add_loop_test(c, ahead_of_random_sequences, 0, 4);
    suite_add_tcase(s, c);
    return run_suite(s);
}
