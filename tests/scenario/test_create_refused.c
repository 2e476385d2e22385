/* Models from tensors that cannot be made: the sentence, and nothing is left behind. */
#include "tests/scenario/maker.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <string.h>

/* --- refused --- */

static void refuse(struct maker *c, unsigned code, const char *parts)
{
    uint64_t used = ledger_used(&D->ledger);
    int64_t blocks = desk_blocks();
    unsigned there = maker_models(), got = maker_create(&A, c);
    ck_assert_msg(got == code, "code %u, needed %u (%s): %s", got, code, parts, A.text);
    served_says("CreateModel", A.text, parts);
    ck_assert_uint_eq(maker_models(), there);
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
    ck_assert_int_eq(desk_blocks(), blocks);
}

static void refuse_name(const char *name, const char *parts)
{
    struct maker c = maker_plain("x");
    c.layers[0].name = name;
    refuse(&c, INVALID_ARGUMENT, parts);
}

START_TEST(create_refuses_names)
{
    /* Taken, doubled, empty, too long, not printable, or those of another layer's state. */
    char longest[1026];
    struct maker c = maker_plain("m");
    maker_made(&c);
    refuse(&c, ALREADY_EXISTS, "model m|loaded already");
    c = maker_plain("");
    refuse(&c, INVALID_ARGUMENT, "model is \"\"|1 to 128");
    c = maker_plain("a/b");
    refuse(&c, INVALID_ARGUMENT, "model is \"a/b\"");
    c = maker_plain("x");
    c.layers[1] = c.layers[2] = c.layers[0];
    c.layers[1].name = "other";
    c.count = 3;
    refuse(&c, INVALID_ARGUMENT, "layers[2].name is that of layers[0]");
    memset(longest, 'n', sizeof longest);
    longest[1025] = 0;
    refuse_name(longest, "layers.name has 1025 bytes|1 to 984");
    longest[985] = 0;
    refuse_name(longest, "layers.name has 985 bytes|1 to 984");
    refuse_name("", "layers.name has 0 bytes|1 to 984");
    refuse_name("a\nb", "layers");
    refuse_name("a\x7f", "layers");
    refuse_name("a.fp8d.cached", "layers.name is \"a.fp8d.cached\"|saved state");
    refuse_name("a.fp8d.b.fp8d.cached", "a.fp8d.b.fp8d.cached|saved state");
}
END_TEST

static void refuse_weight(struct ask_tensor w, const char *parts)
{
    struct maker c = maker_plain("x");
    c.layers[0].weight = w;
    refuse(&c, INVALID_ARGUMENT, parts);
}

START_TEST(create_refuses_shapes)
{
    /* Features that are no multiples of 16, and what is no matrix. */
    struct ask_tensor w = maker_matrix(F32, W);
    w.dims[0] = 24;
    refuse_weight(w, "layer \"l\"|weight.dims|rank 2|24 out features|multiples of 16");
    w.dims[0] = OUT;
    w.dims[1] = 40;
    refuse_weight(w, "layer \"l\"|weight.dims|40 in features|multiples of 16");
    w.dims[1] = 0;
    refuse_weight(w, "0 in features");
    w.dims[1] = IN;
    w.dims[0] = 0;
    refuse_weight(w, "0 out features");
    w.dims[0] = N;
    w.rank = 1;
    refuse_weight(w, "rank 1|[out, in]");
    w = (struct ask_tensor){.dtype = F32, .rank = 3, .dims = {2, 16, 16}, .data = W};
    refuse_weight(w, "rank 3|[out, in]");
    w = maker_matrix(E4M3, CODES);
    w.dims[0] = 8;
    refuse_weight(w, "8 out features");
    w = maker_matrix(E4M3, CODES);
    w.factor = 0.0f;
    refuse_weight(w, "layers[0].weight.scale_inv is 0");
    refuse_weight((struct ask_tensor){0}, "layers[0].weight is missing");
}
END_TEST

static void refuse_bias(struct ask_tensor b, const char *parts)
{
    struct maker c = maker_plain("x");
    c.layers[0].bias = b;
    refuse(&c, INVALID_ARGUMENT, parts);
}

START_TEST(create_refuses_biases)
{
    /* Another length or rank than [out], and FP8. */
    struct ask_tensor b = maker_bias();
    b.dims[0] = OUT - 16;
    refuse_bias(b, "layer \"l\"|bias|rank 1 with 16 elements|[32]");
    b.dims[0] = 0;
    refuse_bias(b, "rank 1 with 0 elements|[32]");
    b = (struct ask_tensor){.dtype = BF16, .rank = 2, .dims = {OUT, 1}, .data = BIAS};
    refuse_bias(b, "bias|rank 2|[32]");
    b = (struct ask_tensor){
        .dtype = E4M3, .rank = 1, .dims = {OUT}, .data = CODES, .factor = FACTOR};
    refuse_bias(b, "bias is F8_E4M3|needed F32, BF16 or F16");
    refuse_bias(maker_put(5, b), "bias is F8_E4M3|needed F32, BF16 or F16");
}
END_TEST

START_TEST(create_refuses_lists)
{
    /* No layer, more than 4096, more than four inline tensors, tensors that are not there, and a
     * recipe that is none. */
    static Fp8d__V1__LayerSpec spec, *list[4097];
    static Fp8d__V1__TensorRef ref;
    Fp8d__V1__CreateModelRequest m = FP8D__V1__CREATE_MODEL_REQUEST__INIT;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    struct maker c = maker_plain("x");
    c.count = 0;
    refuse(&c, INVALID_ARGUMENT, "layers has 0 entries|1 to 4096");
    fp8d__v1__layer_spec__init(&spec);
    fp8d__v1__tensor_ref__init(&ref);
    spec.name = str("layers.0");
    spec.weight = &ref;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    ref.tensor_id = 5;
    for (unsigned i = 0; i < 4097; i++)
        list[i] = &spec;
    m.model = str("x");
    m.layers = list;
    m.n_layers = 4097;
    ck_assert_uint_eq(desk_call(D, 1, REQUEST_CREATE_MODEL, &m.base, NULL, 0, NULL, A.text),
                      INVALID_ARGUMENT);
    served_says("CreateModel", A.text, "layers has more than 4096");
    m.n_layers = 4096;
    ck_assert_uint_eq(desk_call(D, 1, REQUEST_CREATE_MODEL, &m.base, NULL, 0, NULL, A.text),
                      NOT_FOUND);
    served_says("CreateModel", A.text, "layers[0].weight.tensor_id|5");
    c = maker_plain("x");
    c.layers[0].bias = (struct ask_tensor){.id = 6};
    refuse(&c, NOT_FOUND, "layers[0].bias.tensor_id|6");
    c = maker_plain("x");
    c.layers[1] = (struct maker_layer){"k", maker_matrix(F32, W), maker_bias()};
    c.layers[2] = (struct maker_layer){"j", maker_matrix(BF16, V), maker_bias()};
    c.count = 3;
    refuse(&c, INVALID_ARGUMENT, "more than 4 inline tensors");
    c = maker_plain("x");
    c.recipe = &r;
    r.margin = 32;
    refuse(&c, INVALID_ARGUMENT, "recipe.margin is 32");
    r.margin = 0;
    r.fp8_format = 3;
    refuse(&c, INVALID_ARGUMENT, "recipe.fp8_format is 3");
}
END_TEST

/* A model of 4096 layers of one tensor is taken. */
START_TEST(create_of_4096_layers)
{
    static Fp8d__V1__LayerSpec specs[4096], *list[4096];
    static Fp8d__V1__TensorRef ref;
    static char names[4096][16];
    Fp8d__V1__CreateModelRequest m = FP8D__V1__CREATE_MODEL_REQUEST__INIT;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    struct ask_tensor w = {.dtype = F32, .rank = 2, .dims = {16, 16}, .data = W};
    uint64_t used = ledger_used(&D->ledger);
    ck_assert_uint_eq(ask_put(&A, 5, &w), ASK_OK);
    fp8d__v1__tensor_ref__init(&ref);
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    ref.tensor_id = 5;
    for (unsigned i = 0; i < 4096; i++) {
        fp8d__v1__layer_spec__init(&specs[i]);
        (void)snprintf(names[i], sizeof names[i], "layers.%u", i);
        specs[i].name = names[i];
        specs[i].weight = &ref;
        list[i] = &specs[i];
    }
    m.model = str("x");
    m.recipe = &r;
    r.amax_history_len = 1;
    m.layers = list;
    m.n_layers = 4096;
    ck_assert_msg(desk_call(D, 1, REQUEST_CREATE_MODEL, &m.base, NULL, 0, NULL, A.text) == OK, "%s",
                  A.text);
    maker_drop("x");
    ck_assert_uint_eq(ask_free(&A, 5), ASK_OK);
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
}
END_TEST

/* Where the ledger has no room the sentence says so, and nothing is left. */
START_TEST(create_over_the_memory_limit)
{
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    struct maker c = maker_plain("x");
    c.recipe = &r;
    c.primary_fp8 = _i;
    r.amax_history_len = 65536;
    D->ledger.cap = ledger_used(&D->ledger) + N * 4 + 200000;
    refuse(&c, RESOURCE_EXHAUSTED, "bytes");
    r.amax_history_len = 16;
    maker_made(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("create_refused");
    TCase *c = tcase_create("create_refused");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, maker_start, maker_stop);
    tcase_add_test(c, create_refuses_names);
    tcase_add_test(c, create_refuses_shapes);
    tcase_add_test(c, create_refuses_biases);
    tcase_add_test(c, create_refuses_lists);
    tcase_add_test(c, create_of_4096_layers);
    tcase_add_loop_test(c, create_over_the_memory_limit, 0, 2);
    suite_add_tcase(s, c);
    return run_suite(s);
}
