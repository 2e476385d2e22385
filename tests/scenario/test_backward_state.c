/* What backward does to scaling state and to memory. */
#include "tests/scenario/wholes.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- cases: scaling state --- */

/* Without a scope backward updates its site at once; in one, at its end; the input's and weight's
 * sites see nothing of it. 57344 / 2^-margin over the amax: E5M2 under hybrid. */
START_TEST(backward_updates_the_grad_output_site)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f, 16, 32, false);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    forward_wholes(&f, 1, 7, 5);
    forward_wholes(&f, 1, 7, 6);
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.a, "m");
    float dy[7 * 16] = {[3] = -14.0f, [9] = 0.5f};
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, 7, 16)};
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert(b.reply->scales_applied && b.reply->grad_output->amax == 14.0f);
    ck_assert(b.reply->grad_output->scale == 1.0f);
    ck_assert_int_eq(b.reply->grad_output->fp8_dtype, FP8D__V1__DTYPE__DTYPE_F8_E5M2);
    ask_backward_free(&b);
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.a, "m");
    const Fp8d__V1__SiteState *s = ask_site(after, "l", "grad_output");
    ck_assert(s->set && s->scale == 57344.0f / 14.0f && s->updates == 1);
    ck_assert(ask_site(after, "l", "input")->updates == ask_site(before, "l", "input")->updates);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert(!ask_scope_begin(&f.a, 2, "m"));
    b.context_id = 6;
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert(!b.reply->scales_applied && b.reply->grad_output->scale == 57344.0f / 14.0f);
    ask_backward_free(&b);
    ck_assert(!ask_scope_end(&f.a, 2, false, counts));
    ck_assert(counts[0] == 1 && counts[1] == 0);
    fix_close(&f);
}
END_TEST

/* Non-finite elements are counted with the gradient, and the site's update is left out whole. */
START_TEST(backward_counts_what_is_not_finite)
{
    struct fix f;
    struct ask_gradient g;
    fix_open(&f, 16, 16, false);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    forward_wholes(&f, 1, 2, 5);
    float dy[32] = {1.0f, INFINITY, NAN};
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, 2, 16)};
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert_uint_eq(b.reply->grad_output->nonfinite, 2);
    ask_backward_free(&b);
    ck_assert(!ask_gradient(&f.a, "m", "l", false, &g));
    ck_assert_uint_eq(g.nonfinite, 2);
    free(g.data);
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.a, "m");
    ck_assert(!ask_site(s, "l", "grad_output")->set);
    ck_assert_uint_eq(ask_site(s, "l", "grad_output")->skipped_updates, 1);
    ask_state_free(s);
    fix_close(&f);
}
END_TEST

/* A scope of another connection keeps backward out, by name. */
START_TEST(backward_respects_anothers_scope)
{
    struct fix f;
    fix_open(&f, 16, 16, false);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    forward_wholes(&f, 1, 2, 5);
    struct ask other = ask_open(f.desk, 2);
    ck_assert(!ask_scope_begin(&other, 8, "m"));
    float dy[32] = {0};
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, 2, 16)};
    ck_assert_uint_eq(ask_backward(&f.a, &b), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "held by connection 2"));
    ask_close(&other);
    ck_assert(!ask_backward(&f.a, &b));
    ask_backward_free(&b);
    fix_close(&f);
}
END_TEST

/* --- cases: memory --- */

/* Every allocation refused in turn: no gradient changes, no site, and the context is still there. */
START_TEST(backward_is_whole_for_every_allocation)
{
    struct fix f;
    unsigned refused = 0;
    bool fired = true;
    fix_open(&f, 16, 32, true);
    forward_wholes(&f, 1, 7, 1);
    run_backward(&f, 1, 7, 1);
    for (int64_t n = 0; fired; n++) {
        float *dy = wholes(DY + 2, 5 * 16);
        struct ask_backward b = {.context_id = 2, .dy = ask_f32(dy, 5, 16)};
        forward_wholes(&f, 2, 5, 2);
        mem_fault_arm(n, false);
        unsigned code = ask_backward(&f.a, &b);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        bool executed = !code || strstr(f.a.text, "was executed");
        if (!executed) {
            refused++;
            ck_assert_uint_eq(code, ASK_RESOURCE_EXHAUSTED);
            holds_wholes(&f, &(struct part){1, 7}, 1);
            ck_assert(!ask_drop_context(&f.a, 2));
        } else if (fired) { /* the reply alone: start over */
            ck_assert(!ask_zero_grad(&f.a, "m", NULL));
            forward_wholes(&f, 1, 7, 1);
            run_backward(&f, 1, 7, 1);
        }
        ask_backward_free(&b);
        free(dy);
    }
    ck_assert_uint_gt(refused, 0);
    holds_wholes(&f, (struct part[]){{1, 7}, {2, 5}}, 2);
    fix_close(&f);
}
END_TEST

/* A thousand steps' worth of forward, backward and ZeroGrad leave memory as it was. */
START_TEST(backward_memory_stays_flat)
{
    struct fix f;
    uint64_t used = 0;
    int64_t blocks = 0;
    fix_open(&f, 16, 32, true);
    for (int i = 0; i < (rig_small() ? 50 : 1000); i++) {
        forward_wholes(&f, 1, 7, 1);
        run_backward(&f, 1, 7, 1);
        ck_assert(!ask_zero_grad(&f.a, "m", NULL));
        if (i == 1) {
            used = ledger_used(&f.desk->ledger);
            blocks = desk_blocks();
        }
    }
    ck_assert_uint_eq(ledger_used(&f.desk->ledger), used);
    ck_assert_int_eq(desk_blocks(), blocks);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("backward_state");
    TCase *c = tcase_create("backward_state");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, backward_updates_the_grad_output_site);
    tcase_add_test(c, backward_counts_what_is_not_finite);
    tcase_add_test(c, backward_respects_anothers_scope);
    tcase_add_test(c, backward_is_whole_for_every_allocation);
    tcase_add_test(c, backward_memory_stays_flat);
    suite_add_tcase(s, c);
    return run_suite(s);
}
