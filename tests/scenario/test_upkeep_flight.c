/* Changes of a live model under way while its model, its client or memory goes. */
#include "base/mem.h"
#include "tests/scenario/live.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <string.h>

/* --- in flight --- */

/* A change whose model is replaced (0, 1) or unloaded (2, 3) before it is complete:
 * FAILED_PRECONDITION, and the model of that name now is untouched. */
START_TEST(upkeep_model_goes_while_it_is_in_flight)
{
    live_load("m", true);
    live_load("n", true);
    uint64_t used = ledger_used(&D->ledger);
    desk_hold(D);
    A.later = true;
    ck_assert_uint_eq(live_change(&A, _i & 1), ASK_LATER);
    A.later = false;
    ck_assert(desk_step(D));
    desk_set_aside(D);
    desk_release(D);
    if (_i < 2)
        live_load_by(&B, "m", true);
    else
        ck_assert_uint_eq(ask_drop_model(&B, "m", NULL), ASK_OK);
    desk_resume(D);
    ck_assert_uint_eq(ask_take(&A, A.sent), ASK_FAILED_PRECONDITION);
    served_says("in flight", A.text, "m|replaced or unloaded");
    if (_i >= 2)
        live_load_by(&B, "m", true);
    Fp8d__V1__QueryScalingReply *m = ask_state(&A, "m"), *n = ask_state(&A, "n");
    m->layers[0]->weight_version = n->layers[0]->weight_version;
    ask_states_equal(m, n, true);
    ck_assert(m->calibrating && m->recipe->amax_history_len == L);
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
    ask_state_free(m);
    ask_state_free(n);
}
END_TEST

/* Its client leaves while it is in flight: the change is whole or not there, and nothing is left.
 */
START_TEST(upkeep_client_goes_while_it_is_in_flight)
{
    live_load("m", true);
    uint64_t used = ledger_used(&D->ledger);
    desk_hold(D);
    A.later = true;
    ck_assert_uint_eq(live_change(&A, _i), ASK_LATER);
    A.later = false;
    ck_assert(desk_step(D));
    desk_set_aside(D);
    desk_release(D);
    ask_close(&A);
    desk_resume(D);
    A = ask_open(D, 1);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    const Fp8d__V1__SiteState *grad = ask_site(q, "l", "grad_output");
    ck_assert(grad->set == (grad->updates == 4) && grad->set == (grad->scale == 64.0f));
    ck_assert(q->recipe->amax_history_len == grad->n_history + 1);
    ck_assert_uint_le(ledger_used(&D->ledger), used);
    ask_state_free(q);
    live_forward(&A, "m", TRAIN, 0, X, NULL);
}
END_TEST

/* A scope that another connection opens while a reset is in flight sees the reset model. */
START_TEST(upkeep_scope_opened_behind_a_reset)
{
    unsigned counts[2];
    live_load("m", true);
    live_load("fresh", false);
    desk_hold(D);
    A.later = B.later = true;
    ck_assert_uint_eq(live_reset(&A, "m"), ASK_LATER);
    ck_assert_uint_eq(ask_scope_begin(&B, 1, "m"), ASK_LATER);
    A.later = B.later = false;
    desk_release(D);
    ck_assert_uint_eq(ask_take(&A, A.sent), ASK_OK);
    ck_assert_uint_eq(ask_take(&B, B.sent), ASK_OK);
    live_forward(&B, "m", TRAIN, 0, X, NULL);
    ck_assert_uint_eq(ask_scope_end(&B, 1, false, counts), ASK_OK);
    live_forward(&A, "fresh", TRAIN, 0, X, NULL);
    ck_assert(counts[0] == 2 && counts[1] == 0);
    Fp8d__V1__QueryScalingReply *m = ask_state(&A, "m"), *fresh = ask_state(&A, "fresh");
    ask_states_equal(m, fresh, true);
    ask_state_free(m);
    ask_state_free(fresh);
}
END_TEST

/* --- memory --- */

/* Whichever allocation fails, the state is what it was, and the change can be made again. */
START_TEST(upkeep_faults_change_nothing)
{
    int64_t failed = 0, n = 0;
    for (bool fired = true; fired; n++) {
        ck_assert_int_lt(n, 500);
        live_load("m", true);
        live_forward(&A, "m", TRAIN, 0, X, NULL);
        struct desk_frame *before = desk_scaling(D, 1, "m");
        uint64_t used = ledger_used(&D->ledger);
        mem_fault_arm(n, false);
        unsigned code = live_change(&A, _i);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        if (code && !strstr(A.text, "was executed")) {
            ck_assert_msg(code == ASK_RESOURCE_EXHAUSTED, "fault %lld: code %u, %s", (long long)n,
                          code, A.text);
            ck_assert_uint_eq(ledger_used(&D->ledger), used);
            ck_assert(live_same(before, desk_scaling(D, 1, "m")));
            ck_assert_msg(live_change(&A, _i) == ASK_OK, "%s", A.text);
            failed++;
        } else {
            ck_assert_msg(fired || !code, "no fault, but: %s", A.text);
            desk_frame_free(before);
        }
    }
    ck_assert_int_ge(failed, 8); /* the change, its items, two buffers for each of three sites */
}
END_TEST

/* Memory is back where it was after many changes to and fro. */
START_TEST(upkeep_changes_leave_no_memory)
{
    live_load("m", true);
    uint64_t used = 0;
    int64_t blocks = 0;
    for (unsigned i = 0; i < 20; i++) {
        live_wish.amax_history_len = i & 1 ? 3 : 50;
        live_recipe("m");
        ck_assert_uint_eq(live_reset(&A, "m"), ASK_OK);
        if (i == 3) {
            used = ledger_used(&D->ledger);
            blocks = desk_blocks();
        }
    }
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
    ck_assert_int_eq(desk_blocks(), blocks);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("upkeep_flight");
    TCase *c = tcase_create("upkeep_flight");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, live_start, live_stop);
    tcase_add_loop_test(c, upkeep_model_goes_while_it_is_in_flight, 0, 4);
    tcase_add_loop_test(c, upkeep_client_goes_while_it_is_in_flight, 0, 2);
    tcase_add_test(c, upkeep_scope_opened_behind_a_reset);
    tcase_add_loop_test(c, upkeep_faults_change_nothing, 0, 2);
    tcase_add_test(c, upkeep_changes_leave_no_memory);
    suite_add_tcase(s, c);
    return run_suite(s);
}
