/* Gradients: requests as a server sees them. */
#include "client/convert.h"

#include "tests/unit/fake_keep.h"
#include "tests/unit/run.h"

/* --- cases: requests --- */

/* Backward: the context, grad_output with its bytes, the dtype, the head; no flag by itself. */
START_TEST(test_grad_backward_request)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_backward q = {
        .context_id = UINT64_MAX,
        .grad_output = {.dtype = FP8D_BF16, .rank = 2, .dims = {1, 3}, .data = "dy-dy-", .size = 6},
        .grad_input_dtype = FP8D_F32};
    KEPT(fp8d_backward(b.c, &q, &some_call, NULL, &err));
    Fp8d__V1__BackwardRequest *m = SEEN(backward);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 40);
    ck_assert_uint_eq(m->context_id, UINT64_MAX);
    ck_assert_int_eq(m->grad_output->dtype, FP8D__V1__DTYPE__DTYPE_BF16);
    ck_assert(m->grad_output->n_dims == 2 && m->grad_output->dims[1] == 3);
    ck_assert_uint_eq(m->grad_output->inline_bytes->length, 6);
    ck_assert_int_eq(m->grad_input_dtype, FP8D__V1__DTYPE__DTYPE_F32);
    ck_assert_uint_eq(m->grad_input_id, 0);
    ck_assert(!m->replace_grad_input && !m->no_grad_input && !m->time_compute);
    ck_assert_uint_eq(seen.payload_len, 6);
    ck_assert_mem_eq(seen.payload, "dy-dy-", 6);
    FREE(backward, m);
    fake_end(b);
}
END_TEST

/* Backward over resident tensors: no bytes travel, and each flag is its own. */
START_TEST(test_grad_backward_flags)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_backward q = {0};
    bool *flags[] = {&q.replace_grad_input, &q.no_grad_input, &q.time_compute};
    for (int i = 0; i < 3; i++) {
        q = (struct fp8d_backward){
            .context_id = 7, .grad_output = {.tensor_id = 8}, .grad_input_id = 9};
        *flags[i] = true;
        KEPT(fp8d_backward(b.c, &q, NULL, NULL, &err));
        Fp8d__V1__BackwardRequest *m = SEEN(backward);
        ck_assert(m->context_id == 7 && m->grad_output->tensor_id == 8 && m->grad_input_id == 9);
        ck_assert_int_eq(m->grad_input_dtype, FP8D__V1__DTYPE__DTYPE_UNSPECIFIED);
        ck_assert_int_eq(m->replace_grad_input, i == 0);
        ck_assert_int_eq(m->no_grad_input, i == 1);
        ck_assert_int_eq(m->time_compute, i == 2);
        ck_assert_uint_eq(seen.payload_len, 0);
        FREE(backward, m);
    }
    fake_end(b);
}
END_TEST

/* A grad_output that cannot be said on the wire is refused here; nothing goes out. */
START_TEST(test_grad_backward_refused)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_backward q = {.context_id = 1, .grad_output = {.dtype = FP8D_F32, .rank = 9}};
    seen = (struct seen){0};
    ck_assert_int_eq(fp8d_backward(b.c, &q, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    q.grad_output = (struct fp8d_tensor){.dtype = FP8D_F32, .rank = 1, .dims = {1}, .size = 4};
    ck_assert_int_eq(fp8d_backward(b.c, &q, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_uint_eq(seen.type, 0);
    fake_end(b);
}
END_TEST

/* Recompute: the context, the dtype, the id, the head; each flag is its own. */
START_TEST(test_grad_recompute_request)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_recompute q = {0};
    bool *flags[] = {&q.replace_output, &q.time_compute};
    for (int i = 0; i < 2; i++) {
        q = (struct fp8d_recompute){
            .context_id = UINT64_MAX, .output_dtype = FP8D_F16, .output_id = 1ull << 40};
        *flags[i] = true;
        KEPT(fp8d_recompute(b.c, &q, &some_call, NULL, &err));
        Fp8d__V1__RecomputeRequest *m = SEEN(recompute);
        check_head(m->head);
        ck_assert_uint_eq(seen.type, 45);
        ck_assert(m->context_id == UINT64_MAX && m->output_id == 1ull << 40);
        ck_assert_int_eq(m->output_dtype, FP8D__V1__DTYPE__DTYPE_F16);
        ck_assert_int_eq(m->replace_output, i == 0);
        ck_assert_int_eq(m->time_compute, i == 1);
        ck_assert_uint_eq(seen.payload_len, 0);
        FREE(recompute, m);
    }
    fake_end(b);
}
END_TEST

/* ZeroGrad: the model and the expectation. */
START_TEST(test_grad_zero_request)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_expect expect = {4, 5};
    KEPT(fp8d_zero_grad(b.c, "m", &expect, &some_call, NULL, &err));
    Fp8d__V1__ZeroGradRequest *m = SEEN(zero_grad);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 41);
    ck_assert_str_eq(m->model, "m");
    ck_assert(m->expect->incarnation == 4 && m->expect->weight_version == 5);
    FREE(zero_grad, m);
    fake_end(b);
}
END_TEST

/* GetGradient: names, and each part. */
START_TEST(test_grad_get_request)
{
    static const Fp8d__V1__GradientPart want[] = {
        FP8D__V1__GRADIENT_PART__GRADIENT_PART_UNSPECIFIED,
        FP8D__V1__GRADIENT_PART__GRADIENT_PART_WEIGHT, FP8D__V1__GRADIENT_PART__GRADIENT_PART_BIAS};
    static const enum fp8d_gradient_part parts[] = {FP8D_GRADIENT_DEFAULT, FP8D_GRADIENT_WEIGHT,
                                                    FP8D_GRADIENT_BIAS};
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    for (int i = 0; i < 3; i++) {
        KEPT(fp8d_get_gradient(b.c, "m", "l/x", parts[i], NULL, &some_call, NULL, &err));
        Fp8d__V1__GetGradientRequest *m = SEEN(get_gradient);
        check_head(m->head);
        ck_assert_uint_eq(seen.type, 42);
        ck_assert_str_eq(m->model, "m");
        ck_assert_str_eq(m->layer, "l/x");
        ck_assert_int_eq(m->part, want[i]);
        FREE(get_gradient, m);
    }
    fake_end(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_grad");
    TCase *t = tcase_create("grad");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_grad_backward_request);
    tcase_add_test(t, test_grad_backward_flags);
    tcase_add_test(t, test_grad_backward_refused);
    tcase_add_test(t, test_grad_recompute_request);
    tcase_add_test(t, test_grad_zero_request);
    tcase_add_test(t, test_grad_get_request);
    suite_add_tcase(s, t);
    return run_suite(s);
}
