/* recipe.h: scales, factors and checks, against tables worked out from docs/numerics.md 1, 3, 4. */
#include "kernels/recipe.h"
#include "tests/unit/run.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

#define COUNT(t) (sizeof(t) / sizeof(t)[0])

/* --- helpers --- */

static struct recipe recipe_with(uint32_t len, int margin)
{
    return (struct recipe){RECIPE_DELAYED, RECIPE_HYBRID, AMAX_MAX, len, margin, ACCUMULATION_FAST};
}

static void refused(struct recipe r, const char *sentence)
{
    struct fault f = {0};
    ck_assert_int_eq(recipe_check(&r, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(f.code, FP8D_EINVALID_ARGUMENT);
    ck_assert_str_eq(f.text, sentence);
}

static void accepted(struct recipe r)
{
    struct fault f = {0};
    ck_assert_int_eq(recipe_check(&r, &f), 0);
    ck_assert_int_eq(f.code, 0);
}

/* --- cases --- */

/* The target is fp8_max with its exponent lowered by the margin, for every margin. */
START_TEST(recipe_target_is_exact)
{
    for (int m = 0; m <= RECIPE_MARGIN_MAX; m++) {
        ck_assert(recipe_target(DTYPE_F8_E4M3, m) == ldexpf(0x1.cp+8f, -m));
        ck_assert(recipe_target(DTYPE_F8_E5M2, m) == ldexpf(0x1.cp+15f, -m));
    }
}
END_TEST

/* Scale and factor of amax 0, ordinary, both sides of each clamp, denormal and FLT_MAX. */
START_TEST(recipe_scale_table)
{
    static const struct {
        float amax;
        enum dtype fmt;
        int margin;
        float scale, scale_inv;
    } t[] = {
        {0x0p+0f, DTYPE_F8_E4M3, 0, 0x1p+0f, 0x1p+0f},
        {0x0p+0f, DTYPE_F8_E5M2, 31, 0x1p+0f, 0x1p+0f},
        {0x1p+0f, DTYPE_F8_E4M3, 0, 0x1.cp+8f, 0x1.24924ap-9f},
        {0x1p+0f, DTYPE_F8_E4M3, 31, 0x1.cp-23f, 0x1.24924ap+22f},
        {0x1p+0f, DTYPE_F8_E5M2, 0, 0x1.cp+15f, 0x1.24924ap-16f},
        {0x1.8p+1f, DTYPE_F8_E4M3, 0, 0x1.2aaaaap+7f, 0x1.b6db6ep-8f},
        {0x1.8p+1f, DTYPE_F8_E5M2, 3, 0x1.2aaaaap+11f, 0x1.b6db6ep-12f},
        {0x1.779a6cp-4f, DTYPE_F8_E4M3, 3, 0x1.3157fp+9f, 0x1.ad42c4p-10f}, /* 0.0917 */
        {0x1.779a6cp-4f, DTYPE_F8_E5M2, 0, 0x1.3157fp+19f, 0x1.ad42c4p-20f},
        {0x1.cp+8f, DTYPE_F8_E4M3, 0, 0x1p+0f, 0x1p+0f}, /* 448 */
        {0x1.cp+8f, DTYPE_F8_E5M2, 3, 0x1p+4f, 0x1p-4f},
        {0x1.cp+15f, DTYPE_F8_E5M2, 31, 0x1p-31f, 0x1p+31f},
        /* target/amax is 2^128 and one ulp of amax less: the upper clamp */
        {0x1.cp-120f, DTYPE_F8_E4M3, 0, 0x1.fffffep+127f, 0x1p-128f},
        {0x1.c00004p-120f, DTYPE_F8_E4M3, 0, 0x1.fffffcp+127f, 0x1p-128f},
        {0x1.cp-120f, DTYPE_F8_E4M3, 3, 0x1p+125f, 0x1p-125f},
        {0x1.cp-113f, DTYPE_F8_E5M2, 0, 0x1.fffffep+127f, 0x1p-128f},
        {0x1.c00002p-113f, DTYPE_F8_E5M2, 3, 0x1.fffffep+124f, 0x1.000002p-125f},
        /* denormal amax */
        {0x1.fffffcp-127f, DTYPE_F8_E4M3, 31, 0x1.c00004p+103f, 0x1.249246p-104f},
        {0x1.fffffcp-127f, DTYPE_F8_E4M3, 0, 0x1.fffffep+127f, 0x1p-128f},
        {0x1p-149f, DTYPE_F8_E4M3, 0, 0x1.fffffep+127f, 0x1p-128f},
        {0x1p-149f, DTYPE_F8_E4M3, 31, 0x1.cp+126f, 0x1.249248p-127f},
        {0x1p-149f, DTYPE_F8_E5M2, 31, 0x1.fffffep+127f, 0x1p-128f},
        /* FLT_MAX, and the lower clamp */
        {0x1.fffffep+127f, DTYPE_F8_E4M3, 0, 0x1.c00002p-120f, 0x1.249248p+119f},
        {0x1.fffffep+127f, DTYPE_F8_E4M3, 6, 0x1.c00002p-126f, 0x1.249248p+125f},
        {0x1.fffffep+127f, DTYPE_F8_E4M3, 7, 0x1p-126f, 0x1p+126f},
        {0x1.fffffep+127f, DTYPE_F8_E4M3, 31, 0x1p-126f, 0x1p+126f},
        {0x1.fffffep+127f, DTYPE_F8_E5M2, 13, 0x1.c00002p-126f, 0x1.249248p+125f},
        {0x1.fffffep+127f, DTYPE_F8_E5M2, 14, 0x1p-126f, 0x1p+126f},
    };
    for (size_t i = 0; i < COUNT(t); i++) {
        float scale = recipe_scale(t[i].amax, t[i].fmt, t[i].margin);
        float inv = recipe_scale_inv(scale);
        ck_assert_msg(scale == t[i].scale, "row %zu: scale %a", i, (double)scale);
        ck_assert_msg(inv == t[i].scale_inv, "row %zu: scale_inv %a", i, (double)inv);
    }
}
END_TEST

/* A factor from a file gives the reciprocal as scale, clamped at both ends. */
START_TEST(recipe_scale_of_factor_table)
{
    static const struct {
        float scale_inv, scale;
    } t[] = {
        {0x1p+0f, 0x1p+0f},
        {0x1.8p+1f, 0x1.555556p-2f},
        {0x1.eb851ep-5f, 0x1.0aaaacp+4f}, /* 0.06, whose 1/(1/d) is another number */
        {0x1.779a6cp-4f, 0x1.5cf6c8p+3f},
        {0x1p-127f, 0x1p+127f},
        {0x1.000008p-128f, 0x1.fffffp+127f},
        {0x1p-128f, 0x1.fffffep+127f},
        {0x1.fffffep+125f, 0x1.000002p-126f},
        {0x1p+126f, 0x1p-126f},
        {0x1.000002p+126f, 0x1p-126f},
        {0x1.fffffep+127f, 0x1p-126f},
    };
    for (size_t i = 0; i < COUNT(t); i++) {
        float scale = recipe_scale_of(t[i].scale_inv);
        ck_assert_msg(scale == t[i].scale, "row %zu: scale %a", i, (double)scale);
    }
}
END_TEST

/* Factors from 2^-128 to FLT_MAX are good; smaller, zero, negative and non-finite ones are not. */
START_TEST(recipe_factor_limits)
{
    static const float good[] = {0x1p-128f, 0x1.000008p-128f, 0x1p-126f, 1.0f, FLT_MAX};
    static const float bad[] = {0x1.fffffp-129f, 0x1p-149f, 0.0f,      -0.0f, -1.0f, -0x1p-128f,
                                -FLT_MAX,        INFINITY,  -INFINITY, NAN,   -NAN};
    for (size_t i = 0; i < COUNT(good); i++)
        ck_assert_msg(recipe_factor_ok(good[i]), "%a refused", (double)good[i]);
    for (size_t i = 0; i < COUNT(bad); i++)
        ck_assert_msg(!recipe_factor_ok(bad[i]), "%a taken", (double)bad[i]);
}
END_TEST

/* Both ends of each range pass, and so do the defaults. */
START_TEST(recipe_check_accepts_the_range)
{
    struct recipe d = RECIPE_DEFAULT;
    ck_assert(d.kind == RECIPE_DELAYED && d.format == RECIPE_HYBRID && d.algo == AMAX_MAX);
    ck_assert(d.history_len == 1024 && d.margin == 0 && d.fprop == ACCUMULATION_FAST);
    accepted(d);
    accepted(recipe_with(1, 0));
    accepted(recipe_with(65536, 31));
    accepted((struct recipe){RECIPE_CURRENT, RECIPE_E4M3, AMAX_MOST_RECENT, 2, 1,
                             ACCUMULATION_PRECISE});
}
END_TEST

/* A refusal names the field, the value found and the values needed. */
START_TEST(recipe_check_says_what_is_wrong)
{
    struct recipe r = recipe_with(1024, 0);
    r.kind = (enum recipe_kind)0;
    refused(r, "recipe.kind is 0, needed 1 (delayed) or 2 (current)");
    r.kind = (enum recipe_kind)3;
    refused(r, "recipe.kind is 3, needed 1 (delayed) or 2 (current)");
    r = recipe_with(1024, 0);
    r.format = (enum recipe_format)0;
    refused(r, "recipe.fp8_format is 0, needed 1 (hybrid) or 2 (e4m3)");
    r.format = (enum recipe_format)7;
    refused(r, "recipe.fp8_format is 7, needed 1 (hybrid) or 2 (e4m3)");
    r = recipe_with(1024, 0);
    r.algo = (enum amax_algo)3;
    refused(r, "recipe.amax_algo is 3, needed 1 (max) or 2 (most_recent)");
    refused(recipe_with(0, 0), "recipe.amax_history_len is 0, needed 1 to 65536");
    refused(recipe_with(65537, 0), "recipe.amax_history_len is 65537, needed 1 to 65536");
    refused(recipe_with(UINT32_MAX, 0), "recipe.amax_history_len is 4294967295, needed 1 to 65536");
    refused(recipe_with(1024, -1), "recipe.margin is -1, needed 0 to 31");
    refused(recipe_with(1024, 32), "recipe.margin is 32, needed 0 to 31");
    r = recipe_with(1024, 0);
    r.fprop = (enum recipe_accumulation)0;
    refused(r, "recipe.fprop_accumulation is 0, needed 1 (fast) or 2 (precise)");
    r.fprop = (enum recipe_accumulation)3;
    refused(r, "recipe.fprop_accumulation is 3, needed 1 (fast) or 2 (precise)");
}
END_TEST

/* Accumulation alone, and nothing else beside it: what keeps copies when a recipe changes. */
START_TEST(recipe_difference_in_sums_alone)
{
    const struct recipe d = RECIPE_DEFAULT;
    struct recipe r[6] = {d, d, d, d, d, d};
    r[0].fprop = ACCUMULATION_PRECISE;
    r[1].kind = RECIPE_CURRENT;
    r[2].format = RECIPE_E4M3;
    r[3].algo = AMAX_MOST_RECENT;
    r[4].history_len = 1023;
    r[5].margin = 1;
    ck_assert(!recipe_differs_in_sums_alone(&d, &d));
    ck_assert(recipe_differs_in_sums_alone(&d, &r[0]));
    ck_assert(recipe_differs_in_sums_alone(&r[0], &d));
    for (unsigned i = 1; i < COUNT(r); i++) {
        ck_assert(!recipe_differs_in_sums_alone(&d, &r[i]));
        ck_assert(!recipe_differs_in_sums_alone(&r[0], &r[i]));
    }
}
END_TEST

/* Hybrid casts gradients to E5M2 and all else to E4M3; e4m3 casts everything to E4M3. */
START_TEST(recipe_dtype_table)
{
    static const enum dtype hybrid[SITE_KINDS] = {DTYPE_F8_E4M3, DTYPE_F8_E4M3, DTYPE_F8_E4M3,
                                                  DTYPE_F8_E5M2, DTYPE_F8_E5M2};
    struct recipe r = recipe_with(16, 0);
    for (int k = 0; k < SITE_KINDS; k++) {
        r.format = RECIPE_HYBRID;
        ck_assert_int_eq(recipe_dtype(&r, (enum site_kind)k), hybrid[k]);
        r.format = RECIPE_E4M3;
        ck_assert_int_eq(recipe_dtype(&r, (enum site_kind)k), DTYPE_F8_E4M3);
    }
}
END_TEST

/* Texts are those that the user reads, cut where the room ends. */
START_TEST(recipe_texts)
{
    static const char *const sites[] = {"input", "weight", "output", "grad_output", "grad_input"};
    char out[96];
    struct recipe d = RECIPE_DEFAULT;
    struct recipe c = {RECIPE_CURRENT, RECIPE_E4M3, AMAX_MOST_RECENT, 31, 7,
                       ACCUMULATION_PRECISE};
    ck_assert_str_eq(recipe_text(&d, out, sizeof out),
                     "delayed, hybrid, history 1024, max, margin 0, fast accumulation");
    ck_assert_str_eq(recipe_text(&c, out, sizeof out),
                     "current, e4m3, history 31, most_recent, margin 7, precise accumulation");
    ck_assert_str_eq(recipe_text(&d, out, 8), "delayed");
    for (int k = 0; k < SITE_KINDS; k++)
        ck_assert_str_eq(site_name((enum site_kind)k), sites[k]);
    ck_assert_str_eq(site_name(SITE_KINDS), "?");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recipe");
    TCase *tc = tcase_create("recipe");
    tcase_add_test(tc, recipe_target_is_exact);
    tcase_add_test(tc, recipe_scale_table);
    tcase_add_test(tc, recipe_scale_of_factor_table);
    tcase_add_test(tc, recipe_factor_limits);
    tcase_add_test(tc, recipe_check_accepts_the_range);
    tcase_add_test(tc, recipe_check_says_what_is_wrong);
    tcase_add_test(tc, recipe_difference_in_sums_alone);
    tcase_add_test(tc, recipe_dtype_table);
    tcase_add_test(tc, recipe_texts);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
