/* The device's clock around a request that computes: read for those that ask, and for nobody else. */
#include "tests/scenario/ask_grad.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <time.h>

#define OUT 64
#define IN 96
#define TOKENS 12

/* --- fixture --- */

struct fix {
    struct desk *desk;
    struct ask a;
    float *w, *x;
};

static void fix_open(struct fix *f)
{
    *f = (struct fix){.desk = desk_new(NULL, 2)};
    f->a = ask_open(f->desk, 1);
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->x = draw_normal(2, TOKENS * IN, 2.0);
    struct desk_layer layer = {"l", OUT, IN, f->w, NULL};
    ck_assert(!desk_load(f->desk, 1, "m", &layer, 1, NULL, NULL));
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
    free(f->w);
    free(f->x);
}

/* --- helpers --- */

static uint64_t now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* compute_ns of the reply; *took is what it took in all. */
static uint64_t forward(struct fix *f, Fp8d__V1__Mode mode, uint64_t tokens, bool ask,
                        uint64_t *took)
{
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = mode,
                            .time_compute = ask,
                            .x = ask_f32(f->x, tokens, IN)};
    uint64_t began = now();
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    *took = now() - began;
    uint64_t ns = r.reply->compute_ns;
    ask_forward_free(&r);
    return ns;
}

static const Fp8d__V1__Mode modes[] = {FP8D__V1__MODE__MODE_EVAL, FP8D__V1__MODE__MODE_TRAIN,
                                       FP8D__V1__MODE__MODE_CALIBRATE};

/* --- cases --- */

/* In each mode: some time, and not more than the request took. */
START_TEST(clock_is_read_for_those_who_ask)
{
    struct fix f;
    uint64_t took;
    fix_open(&f);
    for (int i = 0; i < 3; i++) {
        uint64_t ns = forward(&f, modes[_i], TOKENS, true, &took);
        ck_assert_uint_gt(ns, 0);
        ck_assert_uint_le(ns, took);
    }
    fix_close(&f);
}
END_TEST

/* Nothing is said to others, nor where nothing was computed. */
START_TEST(clock_is_not_read_otherwise)
{
    struct fix f;
    uint64_t took;
    fix_open(&f);
    ck_assert_uint_eq(forward(&f, modes[_i], TOKENS, false, &took), 0);
    ck_assert_uint_eq(forward(&f, modes[_i], 0, true, &took), 0);
    fix_close(&f);
}
END_TEST

/* Asking changes neither the output nor the state. */
START_TEST(clock_changes_nothing)
{
    struct ask_forward r[2];
    Fp8d__V1__QueryScalingReply *state[2];
    for (int i = 0; i < 2; i++) {
        struct fix f;
        fix_open(&f);
        r[i] = (struct ask_forward){.model = "m",
                                    .layer = "l",
                                    .mode = modes[_i],
                                    .time_compute = i,
                                    .x = ask_f32(f.x, TOKENS, IN)};
        ck_assert_msg(!ask_forward(&f.a, &r[i]), "%s", f.a.text);
        state[i] = ask_state(&f.a, "m");
        fix_close(&f);
    }
    ck_assert_uint_eq(r[0].y_bytes, (uint64_t)TOKENS * OUT * sizeof(float));
    ck_assert_uint_eq(r[1].y_bytes, r[0].y_bytes);
    ck_assert_mem_eq(r[1].y, r[0].y, r[0].y_bytes);
    ask_states_equal(state[0], state[1], true);
    for (int i = 0; i < 2; i++) {
        ask_forward_free(&r[i]);
        ask_state_free(state[i]);
    }
}
END_TEST

/* Recompute, backward and step, which say what they took; a step that was taken before took nothing. */
START_TEST(clock_of_training)
{
    struct fix f;
    bool ask = _i;
    Fp8d__V1__OptimizerOptions adam = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    fix_open(&f);
    adam.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    ck_assert_msg(!ask_optimizer(&f.a, "m", &adam, NULL, 0), "%s", f.a.text);
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(f.x, TOKENS, IN),
                            .context_id = 1};
    struct ask_recompute again = {.context_id = 1, .time_compute = ask};
    struct ask_backward b = {
        .context_id = 1, .dy = ask_f32(f.w, TOKENS, OUT), .time_compute = ask};
    struct ask_step s = {.step = 1, .time_compute = ask};
    ck_assert_msg(!ask_forward(&f.a, &r), "%s", f.a.text);
    uint64_t began = now();
    ck_assert_msg(!ask_recompute(&f.a, &again), "%s", f.a.text);
    ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
    ck_assert_msg(!ask_step(&f.a, "m", &s), "%s", f.a.text);
    uint64_t took = now() - began;
    uint64_t ns[] = {again.reply->compute_ns, b.reply->compute_ns, s.reply->compute_ns};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(ns[i] > 0, ask);
    ck_assert_uint_le(ns[0] + ns[1] + ns[2], took);
    ask_step_free(&s);
    ck_assert_msg(!ask_step(&f.a, "m", &s), "%s", f.a.text);
    ck_assert_uint_eq(s.reply->compute_ns, 0);
    ask_step_free(&s);
    ask_backward_free(&b);
    ask_recompute_free(&again);
    ask_forward_free(&r);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("compute_clock");
    TCase *c = tcase_create("clock");
    tcase_add_loop_test(c, clock_is_read_for_those_who_ask, 0, 3);
    tcase_add_loop_test(c, clock_is_not_read_otherwise, 0, 3);
    tcase_add_loop_test(c, clock_changes_nothing, 0, 3);
    tcase_add_loop_test(c, clock_of_training, 0, 2);
    suite_add_tcase(s, c);
    return run_suite(s);
}
