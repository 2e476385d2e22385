/* Backwards and steps under way while their model, or their client, goes. */
#include "tests/scenario/steps.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

/* --- fixture: model m with a gradient in both layers, no scope, and a second client --- */

struct flight {
    struct steps f;
    struct ask other;
};

static void flight_open(struct flight *t)
{
    steps_open(&t->f);
    t->other = ask_open(t->f.desk, 2);
    microbatch(&t->f, "a", 2.0f, 1.0f); /* 8 in column 0, 4 in the bias */
    microbatch(&t->f, "b", 2.0f, 1.0f);
    ck_assert(!ask_scope_end(&t->f.a, 1, true, NULL));
}

static void flight_close(struct flight *t)
{
    ask_close(&t->other);
    steps_close(&t->f);
}

/* A request was sent while the desk was held: it starts, and is stopped behind `rounds` further
 * rounds of compute. */
static void stop_in_flight(struct flight *t, int rounds)
{
    ck_assert(desk_step(t->f.desk));
    desk_set_aside(t->f.desk);
    for (; rounds; rounds--) {
        desk_resume(t->f.desk);
        ck_assert(desk_step(t->f.desk));
        desk_set_aside(t->f.desk);
    }
    desk_release(t->f.desk);
}

static void step_in_flight(struct flight *t, int rounds)
{
    struct ask_step s = {.step = 1};
    desk_hold(t->f.desk);
    t->f.a.later = true;
    ck_assert_uint_eq(ask_step(&t->f.a, "m", &s), ASK_LATER);
    t->f.a.later = false;
    stop_in_flight(t, rounds);
}

/* Of a forward on layer b with context 7. */
static void backward_in_flight(struct flight *t)
{
    static float x[TOKENS * IN], dy[TOKENS * OUT];
    struct ask_forward r = {.model = "m",
                            .layer = "b",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, IN),
                            .context_id = 7};
    for (int i = 0; i < TOKENS * OUT; i++)
        dy[i] = 1.0f;
    for (int i = 0; i < TOKENS; i++)
        x[i * IN] = 2.0f;
    ck_assert_msg(!ask_forward(&t->f.a, &r), "%s", t->f.a.text);
    ask_forward_free(&r);
    struct ask_backward b = {.context_id = 7, .dy = ask_f32(dy, TOKENS, OUT)};
    desk_hold(t->f.desk);
    t->f.a.later = true;
    ck_assert_uint_eq(ask_backward(&t->f.a, &b), ASK_LATER);
    t->f.a.later = false;
    stop_in_flight(t, 0);
}

static void reload(struct flight *t, bool drop)
{
    struct desk_layer layers[2] = {{"a", OUT, IN, t->f.w, t->f.bias}, {"b", OUT, IN, t->f.w, NULL}};
    if (drop)
        ck_assert_uint_eq(ask_drop_model(&t->other, "m", NULL), ASK_OK);
    else
        ck_assert(!desk_load(t->f.desk, 2, "m", layers, 2, NULL, NULL));
}

static void nothing_is_left(struct flight *t)
{
    Fp8d__V1__StatusReply *s = ask_status(&t->other);
    ck_assert(s->models == 0 && s->contexts == 0 && s->running == 0);
    ck_assert_uint_eq(s->memory_used, 0);
    fp8d__v1__status_reply__free_unpacked(s, NULL);
}

/* --- steps --- */

/* Whether it is between its rounds or has written: the step was not taken, and says so; a model that
 * came in its place is as it was loaded. */
START_TEST(step_whose_model_goes)
{
    struct flight t;
    bool drop = _i < 2;
    flight_open(&t);
    step_in_flight(&t, _i % 2);
    reload(&t, drop);
    desk_resume(t.f.desk);
    ck_assert_uint_eq(ask_take(&t.f.a, t.f.a.sent), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(t.f.a.text, "model m was replaced or unloaded meanwhile"));
    if (drop) {
        nothing_is_left(&t);
    } else {
        moved_by(&t.f, "a", 0.0f, 0.0f);
        moved_by(&t.f, "b", 0.0f, 0.0f);
    }
    flight_close(&t);
}
END_TEST

/* It is taken as a whole, and another connection that sends it again hears so. */
START_TEST(step_whose_client_goes)
{
    struct flight t;
    flight_open(&t);
    step_in_flight(&t, _i);
    ask_close(&t.f.a);
    desk_resume(t.f.desk);
    t.f.a = ask_open(t.f.desk, 3);
    step(&t.f, 1, REPEATED);
    moved_by(&t.f, "a", -8.0f, -4.0f);
    moved_by(&t.f, "b", -8.0f, 0.0f);
    flight_close(&t);
}
END_TEST

/* --- backwards --- */

/* Tensors and factors are the context's: the gradient of the input comes all the same. */
START_TEST(backward_whose_model_goes)
{
    struct flight t;
    flight_open(&t);
    backward_in_flight(&t);
    reload(&t, _i == 0);
    desk_resume(t.f.desk);
    ck_assert_msg(!ask_take(&t.f.a, t.f.a.sent), "%s", t.f.a.text);
    if (_i == 0) {
        nothing_is_left(&t);
    } else {
        struct ask_gradient g;
        ck_assert_uint_eq(ask_gradient(&t.f.a, "m", "b", false, &g), ASK_FAILED_PRECONDITION);
    }
    flight_close(&t);
}
END_TEST

/* The layer's gradient has it or not, as a whole: here it was running, and so it has. */
START_TEST(backward_whose_client_goes)
{
    struct flight t;
    struct ask_gradient g;
    flight_open(&t);
    backward_in_flight(&t);
    ask_close(&t.f.a);
    desk_resume(t.f.desk);
    ck_assert_msg(!ask_gradient(&t.other, "m", "b", false, &g), "%s", t.other.text);
    ck_assert_uint_eq(g.contributions, 2);
    for (int i = 0; i < OUT * IN; i++)
        ck_assert(g.data[i] == (i % IN ? 0.0f : 16.0f));
    free(g.data);
    t.f.a = ask_open(t.f.desk, 3);
    flight_close(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("step_flight");
    TCase *c = tcase_create("flight");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, step_whose_model_goes, 0, 4);
    tcase_add_loop_test(c, step_whose_client_goes, 0, 2);
    tcase_add_loop_test(c, backward_whose_model_goes, 0, 2);
    tcase_add_test(c, backward_whose_client_goes);
    suite_add_tcase(s, c);
    return run_suite(s);
}
