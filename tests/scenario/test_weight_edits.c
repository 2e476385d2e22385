/* Weight edits, loads and the versions that they make. */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 5

static const struct oracle_recipe recipe = {.history_len = 4};

/* --- fixture --- */

struct fix {
    struct pair p;
    float *w, *w2, *bias, *bias2, *x;
};

static void fix_open(struct fix *f, bool biased)
{
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->w2 = draw_normal(2, OUT * IN, 5.0);
    f->bias = draw_normal(3, OUT, 1.0);
    f->bias2 = draw_normal(4, OUT, 20.0);
    f->x = draw_uniform(5, TOKENS * IN);
    pair_open(&f->p, OUT, IN, &recipe, f->w, biased ? f->bias : NULL);
}

static void fix_close(struct fix *f)
{
    pair_close(&f->p);
    free(f->w);
    free(f->w2);
    free(f->bias);
    free(f->bias2);
    free(f->x);
}

/* --- helpers --- */

struct versions {
    uint64_t incarnation, model, layer;
};

static struct versions versions_of(struct fix *f)
{
    Fp8d__V1__QueryScalingReply *s = ask_state(&f->p.a, PAIR_MODEL);
    struct versions v = {s->head->incarnation, s->head->weight_version,
                         s->layers[0]->weight_version};
    ask_state_free(s);
    return v;
}

/* All three kinds of forward agree with the emulation. */
static void agree(struct fix *f)
{
    pair_forward(&f->p, &f->p.a, ORACLE_EVAL, ORACLE_UNSET, f->x, TOKENS);
    pair_forward(&f->p, &f->p.a, ORACLE_TRAIN, ORACLE_FALSE, f->x, TOKENS);
    pair_forward(&f->p, &f->p.a, ORACLE_CALIBRATE, ORACLE_UNSET, f->x, TOKENS);
    pair_forward(&f->p, &f->p.a, ORACLE_TRAIN, ORACLE_UNSET, f->x, TOKENS);
}

static unsigned edit(struct fix *f, const float *w, const float *bias, const uint64_t expect[2])
{
    struct ask_tensor tw = ask_f32(w, OUT, IN);
    struct ask_tensor tb = {.dtype = FP8D__V1__DTYPE__DTYPE_F32, .rank = 1, .dims = {OUT},
                            .data = bias};
    unsigned code =
        ask_edit(&f->p.a, PAIR_MODEL, PAIR_LAYER, &tw, bias ? &tb : NULL, expect, NULL);
    if (!code) {
        oracle_set_weight(f->p.oracle, w);
        f->p.no_copy = true;
        if (bias)
            oracle_set_bias(f->p.oracle, bias);
    }
    return code;
}

/* --- cases --- */

/* Each edit raises the layer's and the model's version by itself; the scaling state stays. */
START_TEST(edit_raises_the_version)
{
    struct fix f;
    fix_open(&f, true);
    struct versions v = versions_of(&f);
    for (unsigned i = 1; i <= 4; i++) {
        agree(&f);
        Fp8d__V1__QueryScalingReply *before = ask_state(&f.p.a, PAIR_MODEL);
        ck_assert(!edit(&f, i & 1 ? f.w2 : f.w, NULL, NULL));
        struct versions now = versions_of(&f);
        ck_assert(now.model == v.model + i && now.layer == now.model);
        ck_assert(now.incarnation == v.incarnation);
        Fp8d__V1__QueryScalingReply *after = ask_state(&f.p.a, PAIR_MODEL);
        ck_assert_uint_eq(after->layers[0]->cached_version, 0);
        after->layers[0]->weight_version = before->layers[0]->weight_version;
        ask_states_equal(before, after, false);
        ask_state_free(before);
        ask_state_free(after);
    }
    fix_close(&f);
}
END_TEST

/* The bias stays when none comes, is replaced when one comes, and can come where there was none. */
START_TEST(edit_keeps_or_replaces_the_bias)
{
    struct fix f;
    fix_open(&f, _i);
    agree(&f);
    ck_assert(!edit(&f, f.w2, NULL, NULL));
    agree(&f);
    ck_assert(!edit(&f, f.w, f.bias2, NULL));
    agree(&f);
    ck_assert(!edit(&f, f.w2, NULL, NULL));
    agree(&f);
    fix_close(&f);
}
END_TEST

/* An edit from resident tensors; freeing those afterwards changes nothing. */
START_TEST(edit_from_resident_tensors)
{
    struct fix f;
    fix_open(&f, true);
    struct ask_tensor w = ask_f32(f.w2, OUT, IN), from = {.id = 7}, bias = {.id = 8};
    struct ask_tensor b = {.dtype = FP8D__V1__DTYPE__DTYPE_F32, .rank = 1, .dims = {OUT},
                           .data = f.bias2};
    ck_assert(!ask_put(&f.p.a, 7, &w) && !ask_put(&f.p.a, 8, &b));
    ck_assert_msg(!ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &from, &bias, NULL, NULL), "%s",
                  f.p.a.text);
    oracle_set_weight(f.p.oracle, f.w2);
    oracle_set_bias(f.p.oracle, f.bias2);
    agree(&f);
    ck_assert(!ask_free(&f.p.a, 7) && !ask_free(&f.p.a, 8));
    float *junk = draw_normal(9, OUT * IN, 1e3);
    struct ask_tensor j = ask_f32(junk, OUT, IN);
    ck_assert(!ask_put(&f.p.a, 7, &j));
    agree(&f);
    fix_close(&f);
    free(junk);
}
END_TEST

/* The expected pair is checked; a refused edit changes neither version nor weight. */
START_TEST(edit_checks_what_is_expected)
{
    struct fix f;
    fix_open(&f, true);
    struct versions v = versions_of(&f);
    uint64_t good[2] = {v.incarnation, v.model}, old[2] = {0, v.model}, other[2] = {1, 0};
    ck_assert(!edit(&f, f.w2, NULL, good));
    ck_assert_uint_eq(edit(&f, f.w, f.bias2, old), ASK_FAILED_PRECONDITION);
    ck_assert_msg(strstr(f.p.a.text, "weight_version"), "%s", f.p.a.text);
    ck_assert_uint_eq(edit(&f, f.w, f.bias2, good), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(edit(&f, f.w, f.bias2, other), ASK_FAILED_PRECONDITION);
    ck_assert_msg(strstr(f.p.a.text, "incarnation"), "%s", f.p.a.text);
    ck_assert_uint_eq(ask_drop_model(&f.p.a, PAIR_MODEL, other), ASK_FAILED_PRECONDITION);
    ck_assert(versions_of(&f).model == v.model + 1);
    agree(&f);
    fix_close(&f);
}
END_TEST

/* Wrong shapes and dtypes are refused, and change nothing. */
START_TEST(edit_of_wrong_shape_changes_nothing)
{
    struct fix f;
    fix_open(&f, true);
    struct versions v = versions_of(&f);
    struct ask_tensor turned = ask_f32(f.w2, IN, OUT), good = ask_f32(f.w2, OUT, IN);
    struct ask_tensor flat = {.dtype = FP8D__V1__DTYPE__DTYPE_F32, .rank = 1,
                              .dims = {OUT * IN}, .data = f.w2};
    struct ask_tensor fp8 = {.dtype = FP8D__V1__DTYPE__DTYPE_F8_E4M3, .rank = 2,
                             .dims = {OUT, IN}, .data = f.w2, .factor = 1};
    struct ask_tensor square = ask_f32(f.bias2, 1, OUT);
    ck_assert_uint_eq(ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &turned, NULL, NULL, NULL),
                      ASK_INVALID_ARGUMENT);
    ck_assert_uint_eq(ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &flat, NULL, NULL, NULL),
                      ASK_INVALID_ARGUMENT);
    ck_assert(ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &fp8, NULL, NULL, NULL));
    ck_assert_uint_eq(ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &good, &square, NULL, NULL),
                      ASK_INVALID_ARGUMENT);
    ck_assert_uint_eq(ask_edit(&f.p.a, PAIR_MODEL, "absent", &good, NULL, NULL, NULL),
                      ASK_NOT_FOUND);
    ck_assert(versions_of(&f).model == v.model);
    agree(&f);
    fix_close(&f);
}
END_TEST

/* A model that replaces another goes on from its version, under a new incarnation. */
START_TEST(edit_version_goes_on_in_a_replaced_model)
{
    struct fix f;
    fix_open(&f, true);
    ck_assert(!edit(&f, f.w2, NULL, NULL) && !edit(&f, f.w, NULL, NULL));
    struct versions before = versions_of(&f);
    pair_load(&f.p, f.w2, NULL);
    struct versions after = versions_of(&f);
    ck_assert(after.model == before.model + 1 && after.layer == after.model);
    ck_assert(after.incarnation > before.incarnation);
    agree(&f);
    ck_assert(!ask_drop_model(&f.p.a, PAIR_MODEL, NULL));
    pair_load(&f.p, f.w, NULL);
    ck_assert(versions_of(&f).incarnation > after.incarnation);
    fix_close(&f);
}
END_TEST

/* Only the edited layer loses its copy; the model's version is the highest of its layers. */
START_TEST(edit_leaves_other_layers_alone)
{
    struct fix f;
    fix_open(&f, false);
    struct desk_layer layers[] = {{"a", OUT, IN, f.w, NULL}, {"b", OUT, IN, f.w2, NULL}};
    struct ask_tensor w = ask_f32(f.w2, OUT, IN);
    ck_assert(!desk_load(f.p.desk, 1, "two", layers, 2, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        struct ask_forward r = {.model = "two", .layer = layers[i].name,
                                .mode = FP8D__V1__MODE__MODE_TRAIN,
                                .x = ask_f32(f.x, TOKENS, IN)};
        ck_assert(!ask_forward(&f.p.a, &r));
        ask_forward_free(&r);
    }
    ck_assert(!ask_edit(&f.p.a, "two", "b", &w, NULL, NULL, NULL));
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.p.a, "two");
    ck_assert(s->head->weight_version == 2 && s->layers[0]->weight_version == 1);
    ck_assert(s->layers[1]->weight_version == 2);
    ck_assert(s->layers[0]->cached_version == 1 && s->layers[1]->cached_version == 0);
    ask_state_free(s);
    struct ask_forward r = {.model = "two", .layer = "a", .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .first = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO,
                            .x = ask_f32(f.x, TOKENS, IN)};
    ck_assert(!ask_forward(&f.p.a, &r));
    ck_assert_int_eq(r.reply->weight_copy, FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_REUSED);
    ask_forward_free(&r);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("weight_edits");
    TCase *c = tcase_create("weight_edits");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, edit_raises_the_version);
    tcase_add_loop_test(c, edit_keeps_or_replaces_the_bias, 0, 2);
    tcase_add_test(c, edit_from_resident_tensors);
    tcase_add_test(c, edit_checks_what_is_expected);
    tcase_add_test(c, edit_of_wrong_shape_changes_nothing);
    tcase_add_test(c, edit_version_goes_on_in_a_replaced_model);
    tcase_add_test(c, edit_leaves_other_layers_alone);
    suite_add_tcase(s, c);
    return run_suite(s);
}
