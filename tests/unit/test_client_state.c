/* Requests about saves, scaling, recipes and models from tensors, as a server sees them. */
#include "tests/unit/fake_keep.h"
#include "tests/unit/run.h"

#include <fcntl.h>

/* --- cases --- */

/* SetScaling: the action and the expectation. */
START_TEST(test_set_scaling)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_expect expect = {4, 5};
    static const enum fp8d_scaling_action actions[] = {FP8D_SCALING_RESET, FP8D_SCALING_FREEZE,
                                                       FP8D_SCALING_UNFREEZE};
    static const Fp8d__V1__ScalingAction want[] = {
        FP8D__V1__SCALING_ACTION__SCALING_ACTION_RESET,
        FP8D__V1__SCALING_ACTION__SCALING_ACTION_FREEZE,
        FP8D__V1__SCALING_ACTION__SCALING_ACTION_UNFREEZE};
    for (int i = 0; i < 3; i++) {
        KEPT(fp8d_set_scaling(b.c, "m", actions[i], &expect, &some_call, NULL, &err));
        Fp8d__V1__SetScalingRequest *m = SEEN(set_scaling);
        check_head(m->head);
        ck_assert_uint_eq(seen.type, 8);
        ck_assert_str_eq(m->model, "m");
        ck_assert_int_eq(m->action, want[i]);
        ck_assert(m->expect->incarnation == 4 && m->expect->weight_version == 5);
        FREE(set_scaling, m);
    }
    fake_end(b);
}
END_TEST

/* SetRecipe: what is not set stays unset, and a margin of 0 can be meant. */
START_TEST(test_set_recipe)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_recipe one = {.amax_history_len = 7};
    struct fp8d_recipe zero = {.kind = FP8D_RECIPE_CURRENT,
                               .margin_set = true,
                               .fprop_accumulation = FP8D_ACCUMULATION_FAST};
    KEPT(fp8d_set_recipe(b.c, "m", &one, NULL, &some_call, NULL, &err));
    Fp8d__V1__SetRecipeRequest *m = SEEN(set_recipe);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 9);
    ck_assert_str_eq(m->model, "m");
    ck_assert_uint_eq(m->recipe->amax_history_len, 7);
    ck_assert(!m->recipe->kind && !m->recipe->fp8_format && !m->recipe->amax_algo);
    ck_assert(!m->recipe->margin && !m->recipe->margin_set && !m->expect);
    ck_assert(!m->recipe->fprop_accumulation);
    FREE(set_recipe, m);
    KEPT(fp8d_set_recipe(b.c, "m", &zero, NULL, NULL, NULL, &err));
    m = SEEN(set_recipe);
    ck_assert_int_eq(m->recipe->kind, FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT);
    ck_assert(m->recipe->margin == 0 && m->recipe->margin_set);
    ck_assert_int_eq(m->recipe->fprop_accumulation,
                     FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_FAST);
    FREE(set_recipe, m);
    fake_end(b);
}
END_TEST

/* The options of a load that are about FP8 weights. */
START_TEST(test_load_options)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_load_options o = {.recipe = {.margin_set = true}, .dequantize = FP8D_BF16};
    struct fp8d_load_begin begin = {.load_id = 3, .model = "m", .options = &o};
    KEPT(fp8d_load_begin(b.c, &begin, NULL, NULL, &err));
    Fp8d__V1__LoadBeginRequest *m = SEEN(load_begin);
    ck_assert_int_eq(m->options->dequantize, FP8D__V1__DTYPE__DTYPE_BF16);
    ck_assert(m->options->recipe->margin_set && !m->options->primary_fp8);
    ck_assert(!m->options->allow_nan && !m->options->finish_calibration);
    FREE(load_begin, m);
    bool *flags[] = {&o.primary_fp8, &o.allow_nan, &o.finish_calibration, &o.no_optimizer};
    for (int i = 0; i < 4; i++) {
        o = (struct fp8d_load_options){0};
        *flags[i] = true;
        KEPT(fp8d_load_begin(b.c, &begin, NULL, NULL, &err));
        m = SEEN(load_begin);
        ck_assert_int_eq(m->options->primary_fp8, i == 0);
        ck_assert_int_eq(m->options->allow_nan, i == 1);
        ck_assert_int_eq(m->options->finish_calibration, i == 2);
        ck_assert_int_eq(m->options->no_optimizer, i == 3);
        ck_assert_int_eq(m->options->dequantize, FP8D__V1__DTYPE__DTYPE_UNSPECIFIED);
        FREE(load_begin, m);
    }
    fake_end(b);
}
END_TEST

/* SaveBegin, SaveAttach with the very file, SaveCommit. */
START_TEST(test_save)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_save_begin begin = {.save_id = 3, .model = "m", .expect = {6, 0}};
    KEPT(fp8d_save_begin(b.c, &begin, &some_call, NULL, &err));
    Fp8d__V1__SaveBeginRequest *m = SEEN(save_begin);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 16);
    ck_assert_uint_eq(m->save_id, 3);
    ck_assert_str_eq(m->model, "m");
    ck_assert_int_eq(m->target, FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_DESCRIPTORS);
    ck_assert_str_eq(m->server_path, "");
    ck_assert_uint_eq(m->expect->incarnation, 6);
    ck_assert(!m->no_optimizer);
    FREE(save_begin, m);
    begin.server_path = "a/b";
    begin.no_optimizer = true;
    KEPT(fp8d_save_begin(b.c, &begin, NULL, NULL, &err));
    m = SEEN(save_begin);
    ck_assert_int_eq(m->target, FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH);
    ck_assert_str_eq(m->server_path, "a/b");
    ck_assert(m->no_optimizer);
    FREE(save_begin, m);
    char file[] = "/tmp/fp8d-save-XXXXXX";
    struct stat st;
    int fd = mkstemp(file);
    ck_assert_int_eq(fstat(fd, &st), 0);
    KEPT(fp8d_save_attach(b.c, 3, fd, "x.safetensors", &some_call, NULL, &err));
    Fp8d__V1__SaveAttachRequest *a = SEEN(save_attach);
    check_head(a->head);
    ck_assert(seen.type == 17 && seen.files == 1 && a->save_id == 3);
    ck_assert_uint_eq(seen.file.st_ino, st.st_ino);
    ck_assert(a->n_names == 1 && !strcmp(a->names[0], "x.safetensors"));
    FREE(save_attach, a);
    ck_assert_int_ge(fcntl(fd, F_GETFD), 0); /* still the caller's */
    close(fd);
    unlink(file);
    KEPT(fp8d_save_commit(b.c, 3, NULL, NULL, &some_call, NULL, &err));
    Fp8d__V1__SaveCommitRequest *k = SEEN(save_commit);
    check_head(k->head);
    ck_assert(seen.type == 18 && k->save_id == 3 && !k->progress);
    FREE(save_commit, k);
    fake_end(b);
}
END_TEST

/* CreateModel: resident tensors by number, up to four with their bytes one behind another. */
START_TEST(test_create)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_tensor one = {.dtype = FP8D_F16, .rank = 1, .dims = {2}, .data = "bias", .size = 4};
    struct fp8d_tensor resident = {.tensor_id = 9};
    struct fp8d_tensor w = {
        .dtype = FP8D_BF16, .rank = 2, .dims = {1, 3}, .data = "weight", .size = 6};
    struct fp8d_layer_spec layers[] = {
        {"a", w, &one}, {"b", resident, NULL}, {"c", w, &resident}, {"d", resident, &one}};
    struct fp8d_create_model k = {
        .model = "m", .recipe = {.margin = 2}, .layers = layers, .count = 4, .primary_fp8 = true};
    KEPT(fp8d_create_model(b.c, &k, &some_call, NULL, &err));
    Fp8d__V1__CreateModelRequest *m = SEEN(create_model);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 15);
    ck_assert(!strcmp(m->model, "m") && m->primary_fp8 && m->recipe->margin == 2);
    ck_assert_uint_eq(m->n_layers, 4);
    ck_assert_str_eq(m->layers[3]->name, "d");
    uint64_t offsets[] = {
        m->layers[0]->weight->inline_bytes->offset, m->layers[0]->bias->inline_bytes->offset,
        m->layers[2]->weight->inline_bytes->offset, m->layers[3]->bias->inline_bytes->offset};
    for (uint64_t i = 0; i < 4; i++)
        ck_assert_uint_eq(offsets[i], ((uint64_t[]){0, 6, 10, 16})[i]);
    ck_assert_uint_eq(m->layers[1]->weight->tensor_id, 9);
    ck_assert_uint_eq(m->layers[2]->bias->tensor_id, 9);
    ck_assert_ptr_null(m->layers[1]->bias);
    ck_assert_uint_eq(seen.payload_len, 20);
    ck_assert_mem_eq(seen.payload, "weightbiasweightbias", 20);
    FREE(create_model, m);
    fake_end(b);
}
END_TEST

/* Five tensors with bytes, or more layers than there may be, are refused here; nothing goes out. */
START_TEST(test_create_limits)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_layer_spec *layers = calloc(4097, sizeof *layers);
    for (int i = 0; i < 4097; i++)
        layers[i] = (struct fp8d_layer_spec){"l", {.dtype = FP8D_F32, .rank = 1}, NULL};
    struct fp8d_create_model k = {.model = "m", .layers = layers, .count = 5};
    seen = (struct seen){0};
    ck_assert_int_eq(fp8d_create_model(b.c, &k, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "more than 4 tensors"));
    k.count = 4097;
    ck_assert_int_eq(fp8d_create_model(b.c, &k, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "4097"));
    layers[0].weight.rank = 9;
    k.count = 1;
    ck_assert_int_eq(fp8d_create_model(b.c, &k, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_uint_eq(seen.type, 0);
    k.count = 0; /* the server's to refuse */
    KEPT(fp8d_create_model(b.c, &k, NULL, NULL, &err));
    free(layers);
    fake_end(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_state");
    TCase *t = tcase_create("state");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_set_scaling);
    tcase_add_test(t, test_set_recipe);
    tcase_add_test(t, test_load_options);
    tcase_add_test(t, test_save);
    tcase_add_test(t, test_create);
    tcase_add_test(t, test_create_limits);
    suite_add_tcase(s, t);
    return run_suite(s);
}
