/* Models from tensors of a connection: what a load of the same tensors gives, from inline and from
 * resident ones. */
#include "base/mem.h"
#include "tests/scenario/maker.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdlib.h>
#include <string.h>

/* --- helpers --- */

static float factor_shown(const char *model, size_t layer)
{
    Fp8d__V1__DescribeModelRequest m = FP8D__V1__DESCRIBE_MODEL_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = str(model);
    ck_assert_uint_eq(desk_call(D, 1, REQUEST_DESCRIBE_MODEL, &m.base, NULL, 0, &frame, A.text),
                      ASK_OK);
    Fp8d__V1__DescribeModelReply *r =
        fp8d__v1__describe_model_reply__unpack(NULL, frame->meta_len, frame->meta);
    ck_assert_uint_lt(layer, r->n_layers);
    ck_assert_uint_eq(r->model->creator_uid, 1000);
    float v = r->layers[layer]->weight_scale_inv;
    fp8d__v1__describe_model_reply__free_unpacked(r, NULL);
    desk_frame_free(frame);
    return v;
}

/* --- equal to a load --- */

/* State, outputs and saves are those of a load of the same tensors, to the bit; layers are sorted,
 * the first version is 1. Even rounds: inline; odd ones: resident, freed before the first use. */
START_TEST(create_equals_a_load)
{
    static const struct {
        const char *layer;
        Fp8d__V1__Mode mode;
    } steps[] = {{"a", EVAL}, {"b", EVAL}, {"a", TRAIN}, {"b", TRAIN}, {"a", TRAIN}, {"a", EVAL}};
    float y[2][TOKENS * OUT];
    enum maker_kind kind = (enum maker_kind)(_i / 2);
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    r.amax_history_len = 8;
    r.margin = 1;
    r.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT;
    r.fp8_format = kind == WIDE ? NARROW : 0;
    struct maker c = maker_of_kind(kind, _i & 1, "m");
    c.recipe = &r;
    maker_made(&c);
    ck_assert(c.layers_made == 2 && c.parameters == 2 * N + OUT);
    if (_i & 1)
        maker_free_resident();
    maker_load(kind, "n", &r);
    maker_same_saves("m", "n");
    for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct desk_forward p = maker_forward(&A, "m", steps[i].layer, steps[i].mode, y[0]);
        struct desk_forward q = maker_forward(&A, "n", steps[i].layer, steps[i].mode, y[1]);
        ck_assert(p.copy == q.copy && p.weight_scale_inv == q.weight_scale_inv);
        ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
        Fp8d__V1__QueryScalingReply *m = ask_state(&A, "m"), *n = ask_state(&A, "n");
        ask_states_equal(m, n, true);
        ck_assert(m->head->weight_version == 1 &&
                  m->head->weight_version == n->head->weight_version);
        ask_state_free(m);
        ask_state_free(n);
    }
    maker_same_saves("m", "n");
}
END_TEST

/* Without a recipe it is the default one. */
START_TEST(create_without_a_recipe)
{
    struct maker c = maker_of_kind(HIGH, false, "m");
    maker_made(&c);
    maker_load(HIGH, "n", NULL);
    maker_same_saves("m", "n");
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    ck_assert(q->recipe->amax_history_len == 1024 && q->recipe->margin == 0);
    ask_state_free(q);
}
END_TEST

/* An FP8 tensor becomes the weight with its factor; high-precision ones do not. */
START_TEST(create_fp8_tensor_becomes_primary)
{
    struct maker c = maker_of_kind(_i ? WIDE : FP8, false, "m");
    maker_made(&c);
    struct desk_forward f = maker_forward(&A, "m", "a", _i ? EVAL : TRAIN, NULL);
    ck_assert(f.copy == FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_PRIMARY);
    ck_assert(f.weight_scale_inv == FACTOR);
    ck_assert(factor_shown("m", 0) == FACTOR && factor_shown("m", 1) == 0.0f);
    struct blob b = stash_save(&A, "m");
    ck_assert_mem_eq(blob_tensor(&b, "a.weight", NULL), CODES, N);
    ck_assert(*(const float *)blob_tensor(&b, "a.weight_scale", NULL) == FACTOR);
    blob_free(&b);
}
END_TEST

/* A scale from the weight's own amax, by hand; a weight of zeros gets 1 and its site stays unset.
 */
START_TEST(create_primary_fp8_scale)
{
    static float zeros[N];
    float amax = 0.0f;
    struct maker c = maker_plain("m");
    c.primary_fp8 = true;
    c.layers[1] = (struct maker_layer){"z", maker_matrix(F32, zeros), {0}};
    c.count = 2;
    for (unsigned i = 0; i < N; i++)
        amax = W[i] > amax ? W[i] : -W[i] > amax ? -W[i] : amax;
    maker_made(&c);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    const Fp8d__V1__SiteState *l = ask_site(q, "l", "weight"), *z = ask_site(q, "z", "weight");
    ck_assert(l->set && l->scale == 448.0f / amax && l->history[0] == amax && !l->updates);
    ck_assert(!z->set && z->scale == 1.0f);
    ask_state_free(q);
    ck_assert(factor_shown("m", 0) == 1.0f / (448.0f / amax) && factor_shown("m", 1) == 1.0f);
}
END_TEST

/* The weight may be freed, its id given to something else: the model has its own. */
START_TEST(create_does_not_need_its_tensors_any_more)
{
    float y[2][TOKENS * OUT];
    float *junk = draw_normal(9, N, 1e3);
    struct ask_tensor j = maker_matrix(F32, junk);
    struct maker c = maker_of_kind((enum maker_kind)_i, true, "m");
    maker_made(&c);
    maker_forward(&A, "m", "b", EVAL, y[0]);
    struct blob before = stash_save(&A, "m");
    maker_free_resident();
    for (uint64_t id = 11; id <= 13; id++)
        ck_assert_uint_eq(ask_put(&A, id, &j), ASK_OK);
    ask_close(&A);
    A = ask_open(D, 1);
    maker_forward(&A, "m", "b", EVAL, y[1]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    struct blob after = stash_save(&A, "m");
    blob_equal(&before, &after);
    blob_free(&before);
    blob_free(&after);
    free(junk);
}
END_TEST

/* An edit of the model leaves the tensors it came from alone, and two models from one tensor are
 * two. */
START_TEST(create_shares_nothing_that_moves)
{
    float y[2][TOKENS * OUT];
    struct desk_frame *frame = NULL;
    struct ask_tensor junk = maker_matrix(BF16, V);
    struct maker c = maker_plain("m"), d = maker_plain("n");
    c.layers[0].weight = maker_put(5, c.layers[0].weight);
    d.layers[0].weight = c.layers[0].weight;
    maker_made(&c);
    maker_made(&d);
    maker_forward(&A, "n", "l", EVAL, y[0]);
    maker_forward(&A, "m", "l", TRAIN, NULL);
    ck_assert_uint_eq(ask_edit(&A, "m", "l", &junk, NULL, NULL, NULL), ASK_OK);
    maker_drop("m");
    maker_forward(&A, "n", "l", EVAL, y[1]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    ck_assert_uint_eq(ask_get(&A, 5, &frame, NULL), ASK_OK);
    ck_assert_mem_eq(frame->payload, W, N * 4);
    desk_frame_free(frame);
}
END_TEST

/* Names that come near those of a save's keys are names: the save loads back as the same model. */
START_TEST(create_names_survive_a_save)
{
    static char longest[985];
    static const char *const names[] = {"a",
                                        "a.weight",
                                        "a.bias",
                                        "a.weight_scale",
                                        "a.input_scale",
                                        "fp8d",
                                        "fp8d.model",
                                        "a.fp8d",
                                        "a.fp8d.input",
                                        "a.fp8d.input.scaling",
                                        ".fp8d.cached",
                                        "weight",
                                        "bias",
                                        "a b/c",
                                        "\xc3\xa9",
                                        "__metadata__",
                                        "a.fp8d.cached.weight",
                                        "_extra_state",
                                        "embed_tokens",
                                        longest};
    memset(longest, 'n', 984);
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct maker c = maker_plain("m");
        c.layers[0].name = names[i];
        c.layers[0].bias = maker_bias();
        c.layers[1] = (struct maker_layer){"a", maker_matrix(BF16, V), {0}};
        c.count = i ? 2 : 1;
        maker_made(&c);
        struct blob b = stash_save(&A, "m");
        ck_assert_msg(stash_load(&A, "n", &b, NULL, NULL) == 0, "\"%s\": %s", names[i], A.text);
        struct blob again = stash_save(&A, "n");
        ck_assert_msg(b.size == again.size && !memcmp(b.bytes, again.bytes, b.size),
                      "\"%s\": the save of its load is another", names[i]);
        blob_free(&b);
        blob_free(&again);
        maker_drop("m");
        maker_drop("n");
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("create");
    TCase *c = tcase_create("create");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, maker_start, maker_stop);
    tcase_add_loop_test(c, create_equals_a_load, 0, 2 * KINDS);
    tcase_add_test(c, create_without_a_recipe);
    tcase_add_loop_test(c, create_fp8_tensor_becomes_primary, 0, 2);
    tcase_add_test(c, create_primary_fp8_scale);
    tcase_add_loop_test(c, create_does_not_need_its_tensors_any_more, 0, KINDS);
    tcase_add_test(c, create_shares_nothing_that_moves);
    tcase_add_test(c, create_names_survive_a_save);
    suite_add_tcase(s, c);
    return run_suite(s);
}
