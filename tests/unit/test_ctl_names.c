/* Numbers in words. */
#include "client/ctl/names.h"

#include "tests/unit/run.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* --- cases --- */

static const struct text {
    float v;
    const char *text;
} texts[] = {
    {0.0f, "0"},
    {1.0f, "1"},
    {0.1f, "0.1"},
    {448.0f, "448"},
    {57344.0f, "57344"},
    {16777216.0f, "16777216"},
    {0.33333334f, "0.33333334"},
    {3.4028235e38f, "3.4028235e+38"},
    {1.17549435e-38f, "1.1754944e-38"},
    {1e-45f, "1e-45"},
    {-2.5f, "-2.5"},
};

/* The shortest text is the one known from the standard's examples. */
START_TEST(test_float_shortest)
{
    char out[32];
    ck_assert_str_eq(float_text(texts[_i].v, out), texts[_i].text);
}
END_TEST

/* Any float32 reads back: 200 000 bit patterns of a fixed sequence. */
START_TEST(test_float_reads_back)
{
    char out[32];
    uint32_t bits = 12345;
    for (int i = 0; i < 200000; i++) {
        float v;
        bits = bits * 1664525u + 1013904223u;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v))
            continue;
        if (strtof(float_text(v, out), NULL) != v)
            ck_abort_msg("%a became %s", (double)v, out);
    }
}
END_TEST

/* What JSON numbers cannot be has a word. */
START_TEST(test_float_words)
{
    char out[32];
    ck_assert_str_eq(float_text(NAN, out), "NaN");
    ck_assert_str_eq(float_text(INFINITY, out), "Infinity");
    ck_assert_str_eq(float_text(-INFINITY, out), "-Infinity");
}
END_TEST

/* Sizes in binary units; shapes in brackets, up to 8 dimensions of 20 digits. */
START_TEST(test_sizes)
{
    char out[32], shape[256];
    struct fp8d_tensor t = {.rank = 2, .dims = {111, 384}};
    ck_assert_str_eq(bytes_text(1023, out), "1023 B");
    ck_assert_str_eq(bytes_text(1536, out), "1.5 KiB");
    ck_assert_str_eq(bytes_text(UINT64_MAX, out), "16.0 EiB");
    ck_assert_str_eq(shape_text(&t, shape), "[111, 384]");
    t.rank = 8;
    for (int i = 0; i < 8; i++)
        t.dims[i] = UINT64_MAX;
    ck_assert_uint_lt(strlen(shape_text(&t, shape)), 256);
    t.rank = 0;
    ck_assert_str_eq(shape_text(&t, shape), "[]");
}
END_TEST

/* Enum values of a newer server are a question mark, never out of bounds. */
START_TEST(test_unknown_enums)
{
    ck_assert_str_eq(recipe_kind_name((enum fp8d_recipe_kind)99), "?");
    ck_assert_str_eq(format_name((enum fp8d_format) - 1), "?");
    ck_assert_str_eq(amax_algo_name((enum fp8d_amax_algo)3), "?");
    ck_assert_str_eq(weight_copy_name(FP8D_WEIGHT_PRIMARY), "primary");
    ck_assert_str_eq(weight_copy_name((enum fp8d_weight_copy)7), "?");
    ck_assert_str_eq(fp8_name((enum fp8d_dtype)1000), "?");
    ck_assert_str_eq(mode_name((enum fp8d_mode)4), "?");
    ck_assert_str_eq(step_outcome_name(FP8D_STEP_SKIPPED), "skipped");
    ck_assert_str_eq(step_outcome_name((enum fp8d_step_outcome)4), "?");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_names");
    TCase *t = tcase_create("names");
    tcase_add_loop_test(t, test_float_shortest, 0, sizeof texts / sizeof texts[0]);
    tcase_add_test(t, test_float_reads_back);
    tcase_add_test(t, test_float_words);
    tcase_add_test(t, test_sizes);
    tcase_add_test(t, test_unknown_enums);
    suite_add_tcase(s, t);
    return run_suite(s);
}
