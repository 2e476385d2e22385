/* Scopes over several layers and several models: which sites move, and what EndScope counts. With
 * amaxes that are powers of two the expected scales are plain: 448 / amax. */
#include "tests/scenario/ask.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdio.h>

#define N 32
#define TOKENS 4

/* --- fixture --- */

/* Models m and n of layers a and b each; all weights are 1/2, so that their scale becomes 896. */
struct fix {
    struct desk *desk;
    struct ask a, other;
};

static void load(struct fix *f, const char *model, const Fp8d__V1__Recipe *r)
{
    float w[N * N];
    for (size_t i = 0; i < N * N; i++)
        w[i] = 0.5f;
    struct desk_layer layers[] = {{"a", N, N, w, NULL}, {"b", N, N, w, NULL}};
    ck_assert_msg(!desk_load(f->desk, 1, model, layers, 2, r, f->a.text), "%s", f->a.text);
}

static void fix_open(struct fix *f)
{
    f->desk = desk_new(NULL, 0);
    f->a = ask_open(f->desk, 1);
    f->other = ask_open(f->desk, 2);
    load(f, "m", NULL);
    load(f, "n", NULL);
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    ask_close(&f->other);
    desk_free(f->desk);
}

/* --- helpers --- */

/* A train forward whose input has this amax; the google.rpc code. */
static unsigned train(struct ask *from, const char *model, const char *layer, float amax)
{
    float x[TOKENS * N] = {[5] = amax, [9] = amax / 4};
    struct ask_forward f = {.model = model,
                            .layer = layer,
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, N)};
    unsigned code = ask_forward(from, &f);
    ask_forward_free(&f);
    return code;
}

static void check_site(struct fix *f, const char *model, const char *layer, const char *site,
                       float scale, unsigned updates, unsigned skipped)
{
    Fp8d__V1__QueryScalingReply *s = ask_state(&f->a, model);
    const Fp8d__V1__SiteState *at = ask_site(s, layer, site);
    ck_assert_msg(at->scale == scale && at->updates == updates && at->skipped_updates == skipped,
                  "%s.%s.%s: scale %g, %u updates, %u skipped", model, layer, site,
                  (double)at->scale, (unsigned)at->updates, (unsigned)at->skipped_updates);
    ck_assert(at->set == (updates > 0) && at->collecting == 0);
    ask_state_free(s);
}

/* --- cases --- */

/* The end counts the sites of layers that ran; the one that did not is not rolled. */
START_TEST(scope_end_counts_and_leaves_idle_layers)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    ck_assert(!train(&f.a, "m", "a", 4) && !train(&f.a, "m", "a", 2));
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    ck_assert(counts[0] == 2 && counts[1] == 0);
    check_site(&f, "m", "a", "input", 112, 1, 0);
    check_site(&f, "m", "a", "weight", 896, 1, 0);
    check_site(&f, "m", "b", "input", 1, 0, 0);
    check_site(&f, "m", "b", "weight", 1, 0, 0);
    check_site(&f, "m", "a", "grad_output", 1, 0, 0);
    fix_close(&f);
}
END_TEST

/* Updated and skipped sites are told apart: a non-finite input skips its own site alone. */
START_TEST(scope_end_counts_skipped_sites)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    ck_assert(!train(&f.a, "m", "b", NAN) && !train(&f.a, "m", "a", 8));
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    ck_assert(counts[0] == 3 && counts[1] == 1);
    check_site(&f, "m", "a", "input", 56, 1, 0);
    check_site(&f, "m", "b", "input", 1, 0, 1);
    check_site(&f, "m", "b", "weight", 896, 1, 0);
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    ck_assert(!train(&f.a, "m", "b", 0)); /* zeros: nothing collected */
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    ck_assert(counts[0] == 1 && counts[1] == 1);
    check_site(&f, "m", "b", "input", 1, 0, 2);
    fix_close(&f);
}
END_TEST

/* A scope on one model brackets that model alone, for its owner and for others. */
START_TEST(scope_is_of_one_model)
{
    struct fix f;
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    ck_assert(!train(&f.a, "n", "a", 16)); /* its own scope */
    check_site(&f, "n", "a", "input", 28, 1, 0);
    ck_assert(!ask_scope_begin(&f.other, 1, "n"));
    ck_assert(!train(&f.a, "m", "a", 4) && !train(&f.other, "n", "a", 64));
    ck_assert_uint_eq(train(&f.other, "m", "a", 4), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(train(&f.a, "n", "a", 4), ASK_FAILED_PRECONDITION);
    ck_assert(!ask_scope_end(&f.a, 1, false, NULL));
    check_site(&f, "m", "a", "input", 112, 1, 0);
    ck_assert(!ask_scope_end(&f.other, 1, false, NULL));
    check_site(&f, "n", "a", "input", 7, 2, 0);
    fix_close(&f);
}
END_TEST

/* One connection with scopes on two models at once; the ids are the connection's own. */
START_TEST(scope_of_two_models_at_once)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    ck_assert_uint_eq(ask_scope_begin(&f.a, 1, "n"), ASK_ALREADY_EXISTS);
    ck_assert_uint_eq(ask_scope_begin(&f.a, 0, "n"), ASK_INVALID_ARGUMENT);
    ck_assert(!ask_scope_begin(&f.a, 2, "n"));
    ck_assert(!train(&f.a, "m", "a", 4) && !train(&f.a, "n", "b", 8));
    ck_assert(!ask_scope_end(&f.a, 2, false, counts));
    ck_assert(counts[0] == 2 && counts[1] == 0);
    check_site(&f, "n", "b", "input", 56, 1, 0);
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    check_site(&f, "m", "a", "input", 112, 1, 0);
    fix_close(&f);
}
END_TEST

/* Under recipe current a scope opens and ends, and no site moves. */
START_TEST(scope_under_current_moves_nothing)
{
    struct fix f;
    unsigned counts[2] = {9, 9};
    Fp8d__V1__Recipe current = FP8D__V1__RECIPE__INIT;
    current.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    fix_open(&f);
    load(&f, "m", &current);
    ck_assert(!train(&f.a, "m", "a", 4));
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    ck_assert(!train(&f.a, "m", "a", 4));
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    ck_assert(counts[0] == 0 && counts[1] == 0);
    check_site(&f, "m", "a", "input", 1, 0, 0);
    fix_close(&f);
}
END_TEST

/* More layers in a scope than it first has room for. */
START_TEST(scope_of_many_layers)
{
    struct fix f;
    char names[40][8];
    struct desk_layer layers[40];
    float w[N * N] = {[3] = 0.5f};
    unsigned counts[2];
    fix_open(&f);
    for (int i = 0; i < 40; i++) {
        (void)snprintf(names[i], sizeof names[i], "l%02d", i);
        layers[i] = (struct desk_layer){names[i], N, N, w, NULL};
    }
    ck_assert_msg(!desk_load(f.desk, 1, "m", layers, 40, NULL, f.a.text), "%s", f.a.text);
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    for (int i = 39; i >= 0; i -= 2)
        ck_assert(!train(&f.a, "m", names[i], (float)(1 << i % 8)));
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    ck_assert(counts[0] == 40 && counts[1] == 0);
    for (unsigned i = 0; i < 40; i++)
        check_site(&f, "m", names[i], "input", i % 2 ? 448.0f / (float)(1 << i % 8) : 1, i % 2,
                   0);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scope_models");
    TCase *c = tcase_create("scope_models");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, scope_end_counts_and_leaves_idle_layers);
    tcase_add_test(c, scope_end_counts_skipped_sites);
    tcase_add_test(c, scope_is_of_one_model);
    tcase_add_test(c, scope_of_two_models_at_once);
    tcase_add_test(c, scope_under_current_moves_nothing);
    tcase_add_test(c, scope_of_many_layers);
    suite_add_tcase(s, c);
    return run_suite(s);
}
