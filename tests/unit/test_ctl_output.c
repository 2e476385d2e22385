/* A tensor that came back: what is said about it, and what a command refuses to read. */
#include "client/ctl/output.h"

#include "tests/unit/run.h"

#include <math.h>
#include <string.h>

static const float numbers[4] = {1.5f, -3.0f, NAN, 0};

/* --- cases --- */

/* The members of its object. */
START_TEST(test_output_json)
{
    struct ctl ctl = {0};
    struct fault f = {0};
    struct output o;
    struct fp8d_tensor t = {
        .dtype = FP8D_F32, .rank = 2, .dims = {2, 2}, .data = numbers, .size = sizeof numbers};
    ck_assert_int_eq(output_take(&o, "x", &t, NULL, &f), 0);
    json_t *j = output_json(&ctl, &o);
    ck_assert_uint_eq(json_object_size(j), 5);
    ck_assert_str_eq(json_string_value(json_object_get(j, "dtype")), "F32");
    ck_assert_uint_eq(json_array_size(json_object_get(j, "shape")), 2);
    ck_assert(json_real_value(json_object_get(j, "max_abs")) == 3.0);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "nonfinite")), 1);
    ck_assert(json_is_null(json_object_get(j, "file")));
    ck_assert(!ctl.no_memory);
    json_decref(j);
}
END_TEST

/* A server that answers with an id, or in FP8, is not read. */
START_TEST(test_output_refused)
{
    struct fault f = {0};
    struct output o;
    struct fp8d_tensor away = {
        .dtype = FP8D_F32, .rank = 1, .dims = {4}, .size = 16, .tensor_id = 7};
    struct fp8d_tensor fp8 = {
        .dtype = FP8D_F8_E4M3, .rank = 1, .dims = {4}, .data = numbers, .size = 4};
    struct fp8d_tensor none = {.dtype = FP8D_F32, .rank = 2, .dims = {0, 4}};
    ck_assert_int_eq(output_take(&o, "grad_input", &away, NULL, &f), FP8D_EPROTOCOL);
    ck_assert_ptr_nonnull(strstr(f.text, "grad_input came without its 16 bytes"));
    f = (struct fault){0};
    ck_assert_int_eq(output_take(&o, "output", &fp8, NULL, &f), FP8D_EPROTOCOL);
    ck_assert_ptr_nonnull(strstr(f.text, "output has dtype F8_E4M3"));
    f = (struct fault){0};
    ck_assert_int_eq(output_take(&o, "output", &none, NULL, &f), 0);
    ck_assert(o.max_abs == 0 && o.nonfinite == 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_output");
    TCase *t = tcase_create("output");
    tcase_add_test(t, test_output_json);
    tcase_add_test(t, test_output_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
