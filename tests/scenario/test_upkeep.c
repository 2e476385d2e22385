/* Reset and freeze of a live model: what each changes, what it leaves alone, and when it is
 * refused. */
#include "tests/scenario/live.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <string.h>

/* --- reset --- */

/* Everything that was ever learned is gone; versions and weights are not. */
START_TEST(upkeep_reset_forgets_everything)
{
    unsigned count = 0;
    live_load("m", true);
    live_forward(&A, "m", TRAIN, 0, X, NULL);
    live_forward(&A, "m", CALIBRATE, 0, X, NULL);
    Fp8d__V1__QueryScalingReply *old = ask_state(&A, "m");
    ck_assert(old->calibrating && old->layers[0]->cached_version == 1);
    ck_assert(ask_site(old, "l", "grad_output")->set);
    ck_assert_uint_eq(live_act(&A, "m", FP8D__V1__SCALING_ACTION__SCALING_ACTION_RESET, &count),
                      ASK_OK);
    ck_assert_uint_eq(count, 3);
    Fp8d__V1__QueryScalingReply *now = ask_state(&A, "m");
    for (unsigned i = 0; i < 3; i++)
        live_check_virgin(ask_site(now, "l", live_sites[i]), L - 1);
    ck_assert(!now->calibrating && now->layers[0]->cached_version == 0);
    ck_assert(now->layers[0]->weight_version == 1);
    ck_assert(now->head->incarnation == old->head->incarnation);
    ck_assert(now->head->weight_version == old->head->weight_version);
    ck_assert_uint_eq(ask_finish(&A, "m", NULL), ASK_FAILED_PRECONDITION);
    ask_state_free(old);
    ask_state_free(now);
}
END_TEST

/* What follows a reset is what follows a load of the bare weights, to the bit; so is a save. */
START_TEST(upkeep_reset_goes_on_as_a_fresh_load)
{
    static const Fp8d__V1__Mode modes[] = {EVAL, TRAIN, TRAIN, EVAL, TRAIN};
    float y[2][TOKENS * OUT];
    live_load("m", true);
    live_forward(&A, "m", TRAIN, 0, X, NULL);
    ck_assert_uint_eq(live_reset(&A, "m"), ASK_OK);
    live_load("fresh", false);
    for (unsigned i = 0; i < 5; i++) {
        struct desk_forward a = live_forward(&A, "m", modes[i], i == 1 ? AGAIN : 0, X, y[0]);
        struct desk_forward b = live_forward(&A, "fresh", modes[i], i == 1 ? AGAIN : 0, X, y[1]);
        ck_assert(i != 1 || a.copy == RECAST);
        ck_assert(a.copy == b.copy && a.input_scale == b.input_scale);
        ck_assert(a.weight_scale_inv == b.weight_scale_inv && a.uncalibrated == b.uncalibrated);
        ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    }
    struct blob a = stash_save(&A, "m"), b = stash_save(&A, "fresh");
    blob_equal(&a, &b);
    blob_free(&a);
    blob_free(&b);
}
END_TEST

/* A primary weight keeps its codes and its factor; only its site is reset. */
START_TEST(upkeep_reset_keeps_a_primary_weight)
{
    float y[2][TOKENS * OUT];
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob b = live_file(false);
    o.primary_fp8 = true;
    ck_assert_uint_eq(stash_load(&A, "m", &b, &o, NULL), ASK_OK);
    struct desk_forward before = live_forward(&A, "m", EVAL, 0, X, y[0]);
    ck_assert(live_scale("m", "weight") != 1.0f);
    ck_assert_uint_eq(live_reset(&A, "m"), ASK_OK);
    ck_assert(live_scale("m", "weight") == 1.0f);
    struct desk_forward after = live_forward(&A, "m", EVAL, 0, X, y[1]);
    ck_assert(after.copy == FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_PRIMARY);
    ck_assert(after.weight_scale_inv == before.weight_scale_inv);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    blob_free(&b);
}
END_TEST

static void refused(int i, const char *parts)
{
    struct desk_frame *before = desk_scaling(D, 1, "m");
    ck_assert_uint_eq(live_change(&A, i), ASK_FAILED_PRECONDITION);
    served_says("refused", A.text, parts);
    ck_assert(live_same(before, desk_scaling(D, 1, "m")));
}

/* Reset and recipe are refused while contexts or a scope are open, whoever holds them, and then
 * change nothing; afterwards they are taken. */
START_TEST(upkeep_refused_while_open)
{
    live_load("m", true);
    live_open_context(5);
    live_open_context(6);
    refused(_i, "model m has 2 open contexts|needed none");
    ck_assert_uint_eq(ask_drop_context(&A, 5), ASK_OK);
    refused(_i, "model m has 1 open contexts");
    ck_assert_uint_eq(ask_drop_context(&A, 6), ASK_OK);
    ck_assert_uint_eq(ask_scope_begin(&B, 7, "m"), ASK_OK);
    refused(_i, "model m has an open scope 7 of connection 2");
    live_forward(&B, "m", TRAIN, 0, X, NULL);
    refused(_i, "scope 7 of connection 2");
    ask_close(&B); /* its scope dies */
    B = ask_open(D, 2);
    ck_assert_uint_eq(ask_scope_begin(&A, 7, "m"), ASK_OK);
    refused(_i, "scope 7 of connection 1");
    ck_assert_uint_eq(ask_scope_end(&A, 7, true, NULL), ASK_OK);
    ck_assert_msg(live_change(&A, _i) == ASK_OK, "%s", A.text);
}
END_TEST

/* A context of the model that was there before counts for that one, not for the new one. */
START_TEST(upkeep_contexts_of_a_replaced_model_do_not_count)
{
    live_load("m", true);
    live_open_context(5);
    live_load("m", true);
    ck_assert_msg(live_change(&A, _i) == ASK_OK, "%s", A.text);
    ck_assert_uint_eq(ask_drop_context(&A, 5), ASK_OK);
    ck_assert_msg(live_change(&A, _i) == ASK_OK, "%s", A.text);
}
END_TEST

/* --- freeze --- */

/* Frozen: each update is skipped whole and counted; outputs are those of the same model not frozen.
 */
START_TEST(upkeep_freeze_skips_and_counts)
{
    float y[2][TOKENS * OUT];
    live_load("m", false);
    live_load("twin", false);
    live_train("m", 2);
    live_train("twin", 2);
    live_forward(&A, "m", EVAL, 0, X, y[0]);
    Fp8d__V1__QueryScalingReply *before = ask_state(&A, "m");
    live_freeze("m", true);
    live_freeze("m", true); /* again: nothing */
    live_forward(&A, "m", EVAL, 0, X, y[1]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    live_forward(&A, "twin", TRAIN, 0, X, y[0]);
    for (unsigned i = 1; i <= 3; i++) {
        live_forward(&A, "m", TRAIN, 0, X, y[1]);
        ck_assert_mem_eq(y[0], y[1], sizeof y[0]); /* each time as the first: the scale is kept */
        Fp8d__V1__QueryScalingReply *now = ask_state(&A, "m");
        ck_assert(now->frozen && now->head->weight_version == before->head->weight_version);
        for (unsigned k = 0; k < 2; k++) {
            const Fp8d__V1__SiteState *a = ask_site(before, "l", live_sites[k]);
            const Fp8d__V1__SiteState *b = ask_site(now, "l", live_sites[k]);
            ck_assert(b->scale == a->scale && b->scale_inv == a->scale_inv);
            ck_assert(b->updates == a->updates && b->skipped_updates == a->skipped_updates + i);
            ck_assert(b->amax_last == a->amax_last && b->collecting == 0.0f && b->set);
            ck_assert_mem_eq(a->history, b->history, a->n_history * sizeof *a->history);
        }
        ask_state_free(now);
    }
    ask_state_free(before);
}
END_TEST

/* A scope's end under freeze: nothing updated, all skipped; what it collected is lost, and does not
 * come back with unfreeze. */
START_TEST(upkeep_freeze_within_a_scope)
{
    unsigned counts[2] = {9, 9};
    static const float first[] = {2, 0, 0, 0, 0}, second[] = {4, 2, 0, 0, 0};
    live_load("m", false);
    live_train("m", 2);
    ck_assert_uint_eq(ask_scope_begin(&A, 1, "m"), ASK_OK);
    live_train("m", 900);
    live_freeze("m", true); /* not refused: it takes effect at the end of the scope */
    ck_assert_uint_eq(ask_scope_end(&A, 1, false, counts), ASK_OK);
    ck_assert(counts[0] == 0 && counts[1] == 2);
    live_check_history("m", "input", first, 5);
    live_freeze("m", false);
    live_check_history("m", "input", first, 5);
    live_train("m", 4);
    live_check_history("m", "input", second, 5);
    ck_assert(live_scale("m", "input") == 112.0f); /* 448 / 4 */
}
END_TEST

/* Frozen goes with a save; reset and recipe leave it as it is. */
START_TEST(upkeep_freeze_lasts)
{
    live_load("m", true);
    live_freeze("m", true);
    ck_assert_uint_eq(live_change(&A, 0), ASK_OK);
    ck_assert_uint_eq(live_change(&A, 1), ASK_OK);
    struct blob b = stash_save(&A, "m");
    ck_assert_uint_eq(stash_load(&A, "n", &b, NULL, NULL), ASK_OK);
    Fp8d__V1__QueryScalingReply *m = ask_state(&A, "m"), *n = ask_state(&A, "n");
    ck_assert(m->frozen && n->frozen);
    ask_state_free(m);
    ask_state_free(n);
    blob_free(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("upkeep");
    TCase *c = tcase_create("upkeep");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, live_start, live_stop);
    tcase_add_test(c, upkeep_reset_forgets_everything);
    tcase_add_test(c, upkeep_reset_goes_on_as_a_fresh_load);
    tcase_add_test(c, upkeep_reset_keeps_a_primary_weight);
    tcase_add_loop_test(c, upkeep_refused_while_open, 0, 3);
    tcase_add_loop_test(c, upkeep_contexts_of_a_replaced_model_do_not_count, 0, 2);
    tcase_add_test(c, upkeep_freeze_skips_and_counts);
    tcase_add_test(c, upkeep_freeze_within_a_scope);
    tcase_add_test(c, upkeep_freeze_lasts);
    suite_add_tcase(s, c);
    return run_suite(s);
}
