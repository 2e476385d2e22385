/* FP8 weights in a file: bytes and factor verbatim, static input scales, E5M2, NaN codes, and
 * --dequantize. What the numbers mean comes from tests/oracle/codes. */
#include "tests/oracle/codes.h"
#include "tests/scenario/bound.h"
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define N (OUT * IN)
#define TOKENS 7

/* --- fixture --- */

static struct desk *D;
static struct ask A;
static struct stash S;
static uint8_t codes[N];
static Fp8d__V1__LoadOptions options;

/* Every finite code of the format, over and over. */
static void draw_codes(bool e5m2)
{
    unsigned finite = e5m2 ? 0x7c : 0x7f;
    for (size_t i = 0; i < N; i++)
        codes[i] = (uint8_t)((i * 37 % finite) | (i % 3 == 0 ? 0x80 : 0));
}

static void start(void)
{
    float factor = 0.0123f;
    D = desk_new(NULL, 0);
    A = ask_open(D, 1);
    fp8d__v1__load_options__init(&options);
    draw_codes(false);
    stash_put(&S, "l.weight", DTYPE_F8_E4M3, 2, OUT, IN, codes);
    stash_put(&S, "l.weight_scale", DTYPE_F32, 0, 1, 1, &factor);
}

static void stop(void)
{
    stash_free(&S);
    ask_close(&A);
    desk_free(D);
}

/* --- helpers --- */

static unsigned load(const char *model, Fp8d__V1__LoadCommitReply **r)
{
    struct blob b = stash_blob(&S);
    unsigned code = stash_load(&A, model, &b, &options, r);
    blob_free(&b);
    return code;
}

static Fp8d__V1__LoadCommitReply *good(const char *model)
{
    Fp8d__V1__LoadCommitReply *r = NULL;
    ck_assert_msg(load(model, &r) == 0, "%s", A.text);
    return r;
}

static void refused(const char *part)
{
    ck_assert_uint_eq(load("m", NULL), 3);
    ck_assert_msg(strstr(A.text, part) && strstr(A.text, "the-file"), "\"%s\" lacks \"%s\"", A.text,
                  part);
}

static void put_factor(const char *name, enum dtype dtype, unsigned rank, const void *bytes)
{
    stash_put(&S, name, dtype, rank, 1, 1, bytes);
}

static void put_e5m2(void)
{
    draw_codes(true);
    stash_put(&S, "l.weight", DTYPE_F8_E5M2, 2, OUT, IN, codes);
}

/* A save of the model has exactly the file's bytes, and this factor. */
static void check_verbatim(const char *model, float factor)
{
    struct blob s = stash_save(&A, model);
    ck_assert_mem_eq(blob_tensor(&s, "l.weight", NULL), codes, N);
    ck_assert_mem_eq(blob_tensor(&s, "l.weight_scale", NULL), &factor, sizeof factor);
    blob_free(&s);
}

static unsigned forward(const char *model, Fp8d__V1__Mode mode, struct desk_forward *out, float *y)
{
    float *x = draw_normal(77, TOKENS * IN, 0.5);
    *out = (struct desk_forward){.model = model,
                                 .layer = "l",
                                 .mode = mode,
                                 .x = x,
                                 .tokens = TOKENS,
                                 .in = IN,
                                 .out = OUT,
                                 .y = y};
    unsigned code = desk_forward(D, 1, out, A.text);
    free(x);
    return code;
}

/* --- verbatim --- */

/* Either name, every dtype and shape of a factor: widened to F32, otherwise as it stands. */
START_TEST(source_bytes_and_factor_are_verbatim)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    stash_drop(&S, "l.weight_scale");
    for (unsigned i = 0; i < 18; i++) {
        const char *name = i % 2 ? "l.weight_scale" : "l.weight_scale_inv";
        enum dtype dtype = dtypes[i / 2 % 3];
        uint16_t half = half_code(0.0123, dtype == DTYPE_BF16);
        float factor = dtype == DTYPE_F32 ? 0.0123f : (float)half_value(half, dtype == DTYPE_BF16);
        put_factor(name, dtype, i / 6, dtype == DTYPE_F32 ? (void *)&factor : (void *)&half);
        stash_report_free(good("m"));
        check_verbatim("m", factor);
        stash_drop(&S, name);
    }
}
END_TEST

/* The least and the largest factor there may be, and one whose reciprocal does not round back. */
START_TEST(source_extreme_factors_are_verbatim)
{
    const float factors[] = {0x1p-128f, 3.40282347e38f, 0.1f / 3.0f, 1.0f, 0x1.000002p-1f};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        put_factor("l.weight_scale", DTYPE_F32, 1, &factors[i]);
        stash_report_free(good("m"));
        check_verbatim("m", factors[i]);
    }
}
END_TEST

/* primary_fp8 changes nothing about FP8 sources; the weight's site has the file's scale. */
START_TEST(source_with_primary_fp8_is_verbatim)
{
    options.primary_fp8 = true;
    Fp8d__V1__LoadCommitReply *r = good("m");
    ck_assert_uint_eq(r->report->n_converted, 0);
    stash_report_free(r);
    check_verbatim("m", 0.0123f);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m");
    const Fp8d__V1__SiteState *w = ask_site(q, "l", "weight");
    ck_assert(w->set && w->scale_inv == 0.0123f && w->scale == 1.0f / 0.0123f);
    ck_assert(w->updates == 0 && w->amax_last == 0.0f);
    ask_state_free(q);
}
END_TEST

/* y = sum x_code * w_code * factors, by the values of the codes. */
START_TEST(source_eval_uses_the_factor)
{
    struct desk_forward f;
    float y[TOKENS * OUT];
    float *x = draw_normal(77, TOKENS * IN, 0.5), input = 0.01f;
    put_factor("l.input_scale", DTYPE_F32, 0, &input);
    stash_report_free(good("m"));
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_EVAL, &f, y), 0);
    ck_assert(!f.uncalibrated && f.input_scale == 1.0f / 0.01f && f.weight_scale_inv == 0.0123f);
    for (size_t i = 0; i < TOKENS * IN; i++)
        x[i] /= input;
    for (size_t i = 0; i < TOKENS * OUT; i++) {
        float w[IN];
        for (size_t k = 0; k < IN; k++)
            w[k] = (float)fp8_value(codes[i % OUT * IN + k], false);
        struct cut c = cut_of(x + i / OUT * IN, w, IN, cut_least(false), cut_least(false));
        cut_scale(&c, 0.01 * 0.0123);
        struct bound b = {.k = IN, .count = 1, .want = &c.sum, .cut = &c};
        /* Half a step of E4M3 for every input, and what the sum itself may be off. */
        ck_assert_double_le(fabs((double)y[i] - c.sum),
                            c.magnitude / 16 + 0.01 + bound_at(&b, 0) * 17 / 16);
    }
    free(x);
}
END_TEST

/* --- static input scales --- */

/* eval uses it until the first train update replaces it. */
START_TEST(source_input_scale_is_static_until_trained)
{
    struct desk_forward f;
    uint16_t half = half_code(0.25, true);
    put_factor("l.input_scale", DTYPE_BF16, 1, &half);
    stash_report_free(good("m"));
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_EVAL, &f, NULL), 0);
    ck_assert(f.input_scale == 4.0f && !f.uncalibrated);
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_TRAIN, &f, NULL), 0);
    ck_assert(f.input_scale == 4.0f);
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_EVAL, &f, NULL), 0);
    ck_assert(f.input_scale != 4.0f && !f.uncalibrated);
}
END_TEST

/* It stands beside high-precision weights too, and `current` ignores it and says so. */
START_TEST(source_input_scale_is_ignored_by_current)
{
    struct desk_forward f;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    float d = 0.25f;
    void *w = stash_draw(3, DTYPE_F16, N, 1.0);
    stash_put(&S, "l.weight", DTYPE_F16, 2, OUT, IN, w);
    stash_drop(&S, "l.weight_scale");
    put_factor("l.input_scale", DTYPE_F32, 2, &d);
    stash_report_free(good("m"));
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_EVAL, &f, NULL), 0);
    ck_assert(f.input_scale == 4.0f);
    recipe.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    options.recipe = &recipe;
    Fp8d__V1__LoadCommitReply *r = good("m");
    ck_assert(stash_noted(r, "input_scale of 1 layers is not used while the recipe is current"));
    stash_report_free(r);
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_EVAL, &f, NULL), 0);
    ck_assert(f.input_scale != 4.0f);
    free(w);
}
END_TEST

/* --- E5M2 --- */

/* Under hybrid they are for eval: the load says so, and train is refused with the reason. */
START_TEST(source_e5m2_is_for_eval_under_hybrid)
{
    struct desk_forward f;
    put_e5m2();
    Fp8d__V1__LoadCommitReply *r = good("m");
    ck_assert(stash_noted(r, "1 layers have F8_E5M2 weights and are for eval only"));
    stash_report_free(r);
    check_verbatim("m", 0.0123f);
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_EVAL, &f, NULL), 0);
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_TRAIN, &f, NULL), 9);
    ck_assert_msg(strstr(A.text, "F8_E5M2 weights") && strstr(A.text, "fp8_format e4m3"), "%s",
                  A.text);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "m"); /* a scale for E5M2 is none for E4M3 */
    ck_assert(!ask_site(q, "l", "weight")->set && ask_site(q, "l", "input")->updates == 0);
    ask_state_free(q);
}
END_TEST

START_TEST(source_e5m2_trains_under_e4m3)
{
    struct desk_forward f;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    put_e5m2();
    recipe.fp8_format = FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
    options.recipe = &recipe;
    Fp8d__V1__LoadCommitReply *r = good("m");
    ck_assert(!stash_noted(r, "eval only"));
    stash_report_free(r);
    ck_assert_uint_eq(forward("m", FP8D__V1__MODE__MODE_TRAIN, &f, NULL), 0);
}
END_TEST

/* --- NaN codes --- */

/* Each of them is refused with its count and loaded, and counted, with allow_nan. */
START_TEST(source_nan_codes)
{
    static const struct {
        enum dtype fmt;
        uint8_t code;
        const char *says;
    } rows[] = {{DTYPE_F8_E4M3, 0x7f, "1 NaN codes (0x7f or 0xff)"},
                {DTYPE_F8_E4M3, 0xff, "1 NaN codes (0x7f or 0xff)"},
                {DTYPE_F8_E5M2, 0x7d, "1 NaN codes (0x7d to 0x7f or 0xfd to 0xff) and 0 Inf"},
                {DTYPE_F8_E5M2, 0x7e, "1 NaN codes"},
                {DTYPE_F8_E5M2, 0x7f, "1 NaN codes"},
                {DTYPE_F8_E5M2, 0xfd, "1 NaN codes"},
                {DTYPE_F8_E5M2, 0xff, "1 NaN codes"},
                {DTYPE_F8_E5M2, 0x7c, "0 NaN codes (0x7d to 0x7f or 0xfd to 0xff) and 1 Inf codes"},
                {DTYPE_F8_E5M2, 0xfc, "1 Inf codes (0x7c or 0xfc)"}};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        const enum dtype fmt = rows[i / 2].fmt;
        draw_codes(fmt == DTYPE_F8_E5M2);
        codes[i % 2 ? N - 1 : 5 + i] = rows[i / 2].code;
        stash_put(&S, "l.weight", fmt, 2, OUT, IN, codes);
        options.allow_nan = false;
        refused(rows[i / 2].says);
        ck_assert(strstr(A.text, "\"l.weight\"") && strstr(A.text, "needed none"));
        options.dequantize = FP8D__V1__DTYPE__DTYPE_BF16;
        refused(rows[i / 2].says);
        options.dequantize = 0;
        options.allow_nan = true;
        Fp8d__V1__LoadCommitReply *r = good("n");
        ck_assert_uint_eq(r->report->nan_codes, 1);
        stash_report_free(r);
        check_verbatim("n", 0.0123f);
    }
}
END_TEST

/* --- dequantize --- */

/* code * factor in float32, rounded once to the dtype; the report names the layer. */
static void check_widened(bool e5m2, bool bf16)
{
    if (e5m2)
        put_e5m2();
    options.dequantize = bf16 ? FP8D__V1__DTYPE__DTYPE_BF16 : FP8D__V1__DTYPE__DTYPE_F32;
    Fp8d__V1__LoadCommitReply *r = good("m");
    ck_assert(stash_converted(r, e5m2 ? "l (from F8_E5M2 to " : "l (from F8_E4M3 to "));
    ck_assert(stash_converted(r, bf16 ? "to BF16)" : "to F32)"));
    stash_report_free(r);
    struct blob s = stash_save(&A, "m");
    struct safetensors_tensor t;
    const unsigned char *w = blob_tensor(&s, "l.weight", &t);
    ck_assert(t.dtype == (bf16 ? DTYPE_BF16 : DTYPE_F32) && !blob_has(&s, "l.weight_scale"));
    for (size_t i = 0; i < N; i++) {
        float v = (float)fp8_value(codes[i], e5m2) * 0.0123f;
        uint16_t half = half_code((double)v, true);
        ck_assert(
            !memcmp(bf16 ? w + 2 * i : w + 4 * i, bf16 ? (void *)&half : (void *)&v, bf16 ? 2 : 4));
    }
    blob_free(&s);
}

START_TEST(source_dequantize_makes_high_precision)
{
    check_widened(_i & 1, _i & 2);
}
END_TEST

/* Casting back with the file's scale gives the file's codes: nothing is lost on the way. */
START_TEST(source_dequantize_and_back)
{
    options.dequantize = FP8D__V1__DTYPE__DTYPE_F32;
    stash_report_free(good("m"));
    struct blob s = stash_save(&A, "m");
    options.dequantize = 0;
    options.primary_fp8 = true;
    ck_assert_msg(stash_load(&A, "m", &s, &options, NULL) == 0, "%s", A.text);
    struct blob back = stash_save(&A, "m");
    const uint8_t *c = blob_tensor(&back, "l.weight", NULL);
    for (size_t i = 0; i < N; i++) /* a zero keeps its sign */
        ck_assert_uint_eq(c[i], codes[i]);
    blob_free(&s);
    blob_free(&back);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fp8_source");
    TCase *c = tcase_create("fp8_source");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, source_bytes_and_factor_are_verbatim);
    tcase_add_test(c, source_extreme_factors_are_verbatim);
    tcase_add_test(c, source_with_primary_fp8_is_verbatim);
    tcase_add_test(c, source_eval_uses_the_factor);
    tcase_add_test(c, source_input_scale_is_static_until_trained);
    tcase_add_test(c, source_input_scale_is_ignored_by_current);
    tcase_add_test(c, source_e5m2_is_for_eval_under_hybrid);
    tcase_add_test(c, source_e5m2_trains_under_e4m3);
    tcase_add_test(c, source_nan_codes);
    tcase_add_loop_test(c, source_dequantize_makes_high_precision, 0, 4);
    tcase_add_test(c, source_dequantize_and_back);
    suite_add_tcase(s, c);
    return run_suite(s);
}
