/* Steps of one connection and saves of another: a file holds one version of all weights. */
#include "tests/scenario/gate.h"
#include "tests/scenario/stash.h"
#include "tests/scenario/steps.h"
#include "tests/unit/run.h"

/* Both weights of the file moved by dw in column 0 from what was loaded, and it names the version.
 */
static void holds(const struct steps *f, const struct blob *file, float dw, uint64_t version)
{
    static const char *const names[2] = {"a.weight", "b.weight"};
    const uint64_t *model = blob_tensor(file, "fp8d.model", NULL);
    ck_assert_uint_eq(model[1], version);
    for (int l = 0; l < 2; l++) {
        const float *w = blob_tensor(file, names[l], NULL);
        for (int i = 0; i < OUT * IN; i++)
            ck_assert_msg(w[i] == f->w[i] + (i % IN ? 0.0f : dw), "%s[%d] is %g", names[l], i,
                          (double)w[i]);
    }
}

static void step_sent(struct steps *f, bool between_rounds)
{
    struct ask_step s = {.step = 1};
    unsigned counts[2];
    microbatch(f, "a", 2.0f, 1.0f); /* 8 in column 0 */
    microbatch(f, "b", 2.0f, 1.0f);
    ck_assert(!ask_scope_end(&f->a, 1, true, counts));
    if (!between_rounds)
        return;
    desk_hold(f->desk);
    f->a.later = true;
    ck_assert_uint_eq(ask_step(&f->a, "m", &s), ASK_LATER);
    f->a.later = false;
    ck_assert(desk_step(f->desk));
    desk_set_aside(f->desk);
    desk_release(f->desk);
}

/* --- cases --- */

/* A save that is asked for while a step is between its rounds, or about to end, waits for it. */
START_TEST(save_waits_for_a_step)
{
    struct steps f;
    steps_open(&f);
    step_sent(&f, true);
    for (int round = 0; round < _i; round++) { /* on to the second round, which has written */
        desk_hold(f.desk);
        desk_resume(f.desk);
        ck_assert(desk_step(f.desk));
        desk_set_aside(f.desk);
        desk_release(f.desk);
    }
    struct stash_saving w = stash_save_sent(f.desk, 2, "m");
    ck_assert_ptr_null(desk_peek(f.desk, 2, w.commit));
    desk_resume(f.desk);
    ck_assert_uint_eq(ask_take(&f.a, f.a.sent), ASK_OK);
    struct blob file = stash_saved(&w);
    holds(&f, &file, -8.0f, 2);
    blob_free(&file);
    steps_close(&f);
}
END_TEST

/* A step goes on beside a save that has begun: it writes elsewhere, and the file has the weights of
 * before it. Two steps: the second may write in place again. */
START_TEST(save_keeps_what_it_began_with)
{
    struct steps f;
    struct engine_options o = gate_options();
    steps_open_with(&f, &o);
    step_sent(&f, false);
    gate_close();
    struct stash_saving w = stash_save_sent(f.desk, 2, "m");
    step(&f, 1, APPLIED);
    microbatch(&f, "a", 2.0f, 1.0f);
    microbatch(&f, "b", 2.0f, 1.0f);
    step(&f, 2, APPLIED);
    gate_open();
    struct blob file = stash_saved(&w);
    holds(&f, &file, 0.0f, 1);
    blob_free(&file);
    file = stash_save(&f.a, "m");
    holds(&f, &file, -16.0f, 3);
    blob_free(&file);
    steps_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("step_save");
    TCase *c = tcase_create("step_save");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, save_waits_for_a_step, 0, 2);
    tcase_add_test(c, save_keeps_what_it_began_with);
    suite_add_tcase(s, c);
    return run_suite(s);
}
