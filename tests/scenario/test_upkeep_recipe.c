/* Another recipe on a live model. Expected scales are worked out by hand from docs/numerics.md
 * section 3. */
#include "tests/scenario/live.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <string.h>

/* --- recipe --- */

/* Margin and algorithm: the scale stays, and the next update is the first to follow them. */
START_TEST(upkeep_recipe_margin_and_algo_at_the_next_update)
{
    static const float want[] = {4, 8, 2, 0, 0};
    live_load("m", false);
    live_train("m", 2);
    ck_assert(live_scale("m", "input") == 224.0f); /* 448 / 2 */
    live_train("m", 8);
    live_wish.margin = 3;
    live_recipe("m");
    ck_assert(live_scale("m", "input") == 56.0f); /* 448 / 8, kept */
    ck_assert(live_train("m", 4) == 56.0f);       /* cast with what was kept */
    ck_assert(live_scale("m", "input") == 7.0f);  /* 448 / 2^3 / max(4, 8, 2) */
    live_check_history("m", "input", want, 5);
    live_wish.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT;
    live_recipe("m");
    ck_assert(live_train("m", 2) == 7.0f);
    ck_assert(live_scale("m", "input") == 28.0f); /* 448 / 2^3 / 2 */
    live_wish.margin_set = true;                  /* a margin of 0 is meant */
    live_recipe("m");
    ck_assert(live_train("m", 2) == 28.0f);
    ck_assert(live_scale("m", "input") == 224.0f); /* 448 / 2 */
    live_wish.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MAX;
    live_recipe("m");
    live_train("m", 1);
    ck_assert(live_scale("m", "input") == 56.0f); /* 448 / max(1, 2, 2, 4, 8) */
}
END_TEST

static void in_force(unsigned kind, unsigned format, unsigned algo, unsigned len, unsigned margin)
{
    Fp8d__V1__SetRecipeReply *r = NULL;
    ck_assert_msg(live_ask_recipe(&A, "m", &r) == 0, "%s", A.text);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    const Fp8d__V1__Recipe *both[] = {r->recipe, q->recipe};
    for (unsigned i = 0; i < 2; i++) {
        ck_assert(both[i]->kind == kind && both[i]->fp8_format == format);
        ck_assert(both[i]->amax_algo == algo && both[i]->amax_history_len == len);
        ck_assert(both[i]->margin == margin && both[i]->margin_set);
    }
    ck_assert(r->n_notes == 1 && strstr(r->notes[0], "copies of weights were dropped"));
    ck_assert(r->head->incarnation == q->head->incarnation);
    ask_state_free(q);
    fp8d__v1__set_recipe_reply__free_unpacked(r, NULL);
    fp8d__v1__recipe__init(&live_wish);
}

/* A field that is not set keeps what the model has; the reply says what is in force. */
START_TEST(upkeep_recipe_keeps_what_is_not_set)
{
    live_load("m", true);
    live_wish.margin = 31;
    in_force(1, 1, 1, L, 31);
    in_force(1, 1, 1, L, 31); /* a recipe of nothing */
    live_wish.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    in_force(2, 1, 1, L, 31);
    live_wish.fp8_format = FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
    in_force(2, 2, 1, L, 31);
    live_wish.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT;
    in_force(2, 2, 2, L, 31);
    live_wish.amax_history_len = 65536;
    in_force(2, 2, 2, 65536, 31);
    live_wish.margin_set = true;
    in_force(2, 2, 2, 65536, 0);
    Fp8d__V1__SetRecipeRequest m = FP8D__V1__SET_RECIPE_REQUEST__INIT;
    m.model = str("m"); /* no recipe at all */
    ck_assert_uint_eq(live_call(&A, REQUEST_SET_RECIPE, &m.base, NULL), ASK_OK);
    in_force(2, 2, 2, 65536, 0);
}
END_TEST

/* Histories keep their newest rows, shrinking and growing; scale and counters are not touched. */
START_TEST(upkeep_recipe_resizes_histories)
{
    static const struct {
        uint32_t len;
        float rows[7];
    } steps[] = {{3, {4, 3}}, {5, {4, 3, 0, 0}}, {8, {4, 3, 0, 0, 0, 0, 0}},
                 {2, {4}},    {1, {0}},          {4, {0, 0, 0}}};
    live_load("m", false);
    for (float amax = 1; amax <= 4; amax++)
        live_train("m", amax);
    for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        Fp8d__V1__QueryScalingReply *a = ask_state(&A, "m");
        live_wish.amax_history_len = steps[i].len;
        live_recipe("m");
        Fp8d__V1__QueryScalingReply *b = ask_state(&A, "m");
        live_check_history("m", "input", steps[i].rows, steps[i].len - 1);
        for (unsigned k = 0; k < 3; k++) {
            const Fp8d__V1__SiteState *x = ask_site(a, "l", live_sites[k]),
                                      *y = ask_site(b, "l", live_sites[k]);
            ck_assert(x->scale == y->scale && x->set == y->set && x->updates == y->updates);
            ck_assert(x->amax_last == y->amax_last && x->skipped_updates == y->skipped_updates);
        }
        ask_state_free(a);
        ask_state_free(b);
    }
}
END_TEST

/* Updates after a resize go on from the rows that were kept. */
START_TEST(upkeep_recipe_trains_on_after_a_resize)
{
    static const float shrunk[] = {1, 4}, grown[] = {2, 1, 4, 0};
    live_load("m", false);
    live_train("m", 64);
    live_train("m", 3);
    live_train("m", 4);
    live_wish.amax_history_len = 3; /* 64 is gone */
    live_recipe("m");
    ck_assert(live_scale("m", "input") == 7.0f); /* 448 / 64, kept */
    live_train("m", 1);
    live_check_history("m", "input", shrunk, 2);
    ck_assert(live_scale("m", "input") == 112.0f); /* 448 / max(1, 3, 4) */
    live_wish.amax_history_len = 5;
    live_recipe("m");
    live_train("m", 2);
    live_check_history("m", "input", grown, 4);
    ck_assert(live_scale("m", "input") == 112.0f); /* 448 / max(2, 1, 4) */
    live_wish.amax_history_len = 1;
    live_recipe("m");
    live_train("m", 16);
    ck_assert(live_scale("m", "input") == 28.0f); /* 448 / 16: nothing but the newest */
}
END_TEST

/* Another format: grad_output, whose format it is, is reset; the rest stays, the calibration too.
 */
START_TEST(upkeep_recipe_resets_what_changes_its_format)
{
    static const Fp8d__V1__DType want[] = {FP8D__V1__DTYPE__DTYPE_F8_E4M3,
                                           FP8D__V1__DTYPE__DTYPE_F8_E5M2};
    live_load("m", true);
    Fp8d__V1__QueryScalingReply *before = ask_state(&A, "m");
    for (unsigned i = 0; i < 2; i++) {
        live_wish.fp8_format =
            i ? FP8D__V1__FP8_FORMAT__FP8_FORMAT_HYBRID : FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
        live_recipe("m");
        Fp8d__V1__QueryScalingReply *now = ask_state(&A, "m");
        Fp8d__V1__SiteState *grad =
            (Fp8d__V1__SiteState *)(uintptr_t)ask_site(now, "l", "grad_output");
        ck_assert(grad->calibration_amax == 9.0f && grad->fp8_dtype == want[i]);
        grad->calibration_amax = 0.0f;
        live_check_virgin(grad, L - 1);
        for (unsigned k = 0; k < 2; k++) {
            const Fp8d__V1__SiteState *a = ask_site(before, "l", live_sites[k]);
            const Fp8d__V1__SiteState *b = ask_site(now, "l", live_sites[k]);
            ck_assert(a->scale == b->scale && b->set && b->updates == 4 && b->saturated == 5);
            ck_assert(b->calibration_amax == 9.0f && b->fp8_dtype == want[0]);
            ck_assert_mem_eq(a->history, b->history, (L - 1) * sizeof *a->history);
        }
        ck_assert(now->calibrating);
        ask_state_free(now);
    }
    ask_state_free(before);
    ck_assert_uint_eq(ask_finish(&A, "m", NULL), ASK_OK);
    ck_assert(live_scale("m", "input") == 448.0f / 9.0f);
}
END_TEST

/* Copies are dropped, by a change of nothing too: "no first microbatch" casts anew. Outputs of eval
 * are as before, as the scales are. */
START_TEST(upkeep_recipe_drops_copies)
{
    float y[2][TOKENS * OUT];
    live_load("m", true);
    live_forward(&A, "m", TRAIN, 0, X, NULL);
    ck_assert(live_forward(&A, "m", TRAIN, AGAIN, X, NULL).copy == REUSED);
    live_forward(&A, "m", EVAL, 0, X, y[0]);
    live_wish.margin = (unsigned)_i * 2;
    live_recipe("m");
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    ck_assert(q->layers[0]->cached_version == 0 && q->layers[0]->weight_version == 1);
    ck_assert(ask_site(q, "l", "weight")->scale_inv_in_use == 0.0f);
    ask_state_free(q);
    live_forward(&A, "m", EVAL, 0, X, y[1]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    ck_assert(live_forward(&A, "m", TRAIN, AGAIN, X, NULL).copy == RECAST);
}
END_TEST

/* Another accumulation, to and fro: state, copies and a calibration stay to the bit, and every
 * answer says what is in force. On the CPU no output moves, for every sum is precise there already;
 * on a GPU it comes back with what it was. */
START_TEST(upkeep_recipe_accumulation_alone)
{
    float y[3][TOKENS * OUT];
    live_load("m", true);
    live_forward(&A, "m", TRAIN, 0, X, NULL);
    live_forward(&A, "m", EVAL, 0, X, y[0]);
    struct blob before = stash_save(&A, "m");
    for (unsigned i = 1; i <= 2; i++) {
        Fp8d__V1__SetRecipeReply *r = NULL;
        live_wish.fprop_accumulation = 3 - i; /* precise, then fast again */
        ck_assert_msg(live_ask_recipe(&A, "m", &r) == 0, "%s", A.text);
        ck_assert(r->recipe->fprop_accumulation == 3 - i && r->recipe->amax_history_len == L);
        ck_assert(r->n_notes == 1 && strstr(r->notes[0], "copies of weights were kept"));
        ck_assert(strstr(r->notes[0], i == 1 ? "fast accumulation" : "precise accumulation"));
        fp8d__v1__set_recipe_reply__free_unpacked(r, NULL);
        Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
        ck_assert(q->recipe->fprop_accumulation == 3 - i && q->calibrating);
        ck_assert(q->layers[0]->cached_version == 1);
        ask_state_free(q);
        live_forward(&A, "m", EVAL, 0, X, y[i]);
        if (i == 2 || !rig_cuda())
            ck_assert_mem_eq(y[0], y[i], sizeof y[0]);
    }
    struct blob after = stash_save(&A, "m");
    blob_equal(&before, &after);
    ck_assert(live_forward(&A, "m", TRAIN, AGAIN, X, NULL).copy == REUSED);
    blob_free(&before);
    blob_free(&after);
}
END_TEST

/* Delayed, current and back: the state is what it was. Meanwhile casts take their own amax. */
START_TEST(upkeep_recipe_delayed_current_delayed)
{
    float x[TOKENS * IN] = {[7] = 2.0f};
    live_load("m", true);
    struct desk_frame *before = desk_scaling(D, 1, "m");
    live_wish.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    live_recipe("m");
    ck_assert(live_forward(&A, "m", EVAL, 0, x, NULL).input_scale == 224.0f); /* 448 / 2 */
    live_wish.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_DELAYED;
    live_recipe("m");
    ck_assert(live_same(before, desk_scaling(D, 1, "m")));
    ck_assert(live_forward(&A, "m", EVAL, 0, x, NULL).input_scale == 64.0f); /* as loaded */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("upkeep_recipe");
    TCase *c = tcase_create("upkeep_recipe");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, live_start, live_stop);
    tcase_add_test(c, upkeep_recipe_margin_and_algo_at_the_next_update);
    tcase_add_test(c, upkeep_recipe_keeps_what_is_not_set);
    tcase_add_test(c, upkeep_recipe_resizes_histories);
    tcase_add_test(c, upkeep_recipe_trains_on_after_a_resize);
    tcase_add_test(c, upkeep_recipe_resets_what_changes_its_format);
    tcase_add_loop_test(c, upkeep_recipe_drops_copies, 0, 2);
    tcase_add_test(c, upkeep_recipe_accumulation_alone);
    tcase_add_test(c, upkeep_recipe_delayed_current_delayed);
    suite_add_tcase(s, c);
    return run_suite(s);
}
