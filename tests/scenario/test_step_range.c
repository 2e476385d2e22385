/* A step whose numbers leave float32: refused, with everything as it was. */
#include "tests/scenario/steps.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

/* 64 in 16 elements, a norm of 256: over 2^-121 it is 2^129, which float32 does not hold. */
START_TEST(step_beyond_float32)
{
    struct steps f;
    steps_open(&f);
    microbatch(&f, "b", 1.0f, 16.0f);
    struct ask_step s = {.step = 1, .loss_scale = 0x1p-121};
    ck_assert_uint_eq(ask_step(&f.a, "m", &s), ASK_INVALID_ARGUMENT);
    ck_assert_msg(strstr(f.a.text, "loss_scale is 3.76158e-37, which makes the gradients' norm "
                                   "6.80565e+38, needed a norm and a factor of at most 3.40282e+38") !=
                      NULL,
                  "%s", f.a.text);
    moved_by(&f, "b", 0.0f, 0.0f);
    struct ask_gradient g;
    ck_assert(!ask_gradient(&f.a, "m", "b", false, &g));
    ck_assert(g.contributions == 1 && g.data[0] == 64.0f);
    free(g.data);
    step(&f, 1, APPLIED); /* its number was not taken */
    moved_by(&f, "b", -64.0f, 0.0f);
    steps_close(&f);
}
END_TEST

/* Clipped to a norm of 16, the same is an ordinary step of 4 an element. */
START_TEST(step_that_clipping_brings_back)
{
    struct steps f;
    steps_open(&f);
    float w[OUT * IN], bias[OUT];
    microbatch(&f, "b", 1.0f, 16.0f);
    struct ask_step s = {.step = 1, .loss_scale = 0x1p-121, .max_norm = 16.0};
    ck_assert_msg(!ask_step(&f.a, "m", &s), "%s", f.a.text);
    ck_assert_int_eq(s.reply->outcome, APPLIED);
    ask_step_free(&s);
    read_layer(&f, "b", w, bias);
    for (int o = 0; o < OUT; o++) {
        float off = w[o * IN] - (f.w[o * IN] - 4.0f);
        ck_assert(off < 1e-5f && off > -1e-5f);
    }
    steps_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("step_range");
    TCase *c = tcase_create("step_range");
    tcase_add_test(c, step_beyond_float32);
    tcase_add_test(c, step_that_clipping_brings_back);
    suite_add_tcase(s, c);
    return run_suite(s);
}
