/* The GEMM's edges, with values worked out by hand: factors, bias, rounding, specials, shapes. The
 * sums themselves are test_gemm_hash's. */
#include "kernels/cpu/kernels.h"
#include "tests/oracle/gemm_input.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <math.h>

/* --- fixture --- */

static struct rig rig;

static void setup(void)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, false);
}

static void teardown(void)
{
    rig_close(&rig);
}

/* --- helpers --- */

/* y = code_a * code_b for one element each, E4M3; bits of the output, 16-bit ones widened. */
static uint32_t one(uint8_t code_a, float fa, uint8_t code_b, float fb, const struct tensor *bias,
                    enum dtype out)
{
    struct qtensor *a = rig_adopt(&rig, DTYPE_F8_E4M3, 1, 1, &code_a, fa);
    struct qtensor *b = rig_adopt(&rig, DTYPE_F8_E4M3, 1, 1, &code_b, fb);
    struct tensor y = rig_tensor(&rig, out, 1, 1, NULL);
    uint32_t bits = 0;
    struct gemm g = {.a = a, .b = b, .bias = bias, .out = y};
    ck_assert_msg(!backend_gemm(rig.q, &g, &rig.f), "%s", rig.f.text);
    rig_wait(&rig);
    memcpy(&bits, y.buf->host, dtype_bits(out) / 8);
    buffer_unref(y.buf);
    qtensor_unref(a);
    qtensor_unref(b);
    return bits;
}

static uint32_t with_bias(enum dtype bias_type, const void *value, enum dtype out)
{
    struct tensor bias = rig_tensor(&rig, bias_type, 1, 1, value);
    uint32_t bits = one(0x38, 1.0f, 0x38, 1.0f, &bias, out); /* 1 * 1 + bias */
    buffer_unref(bias.buf);
    return bits;
}

/* x[rows, k] * w[n, k]^T in F32 of float32 operands that the caller filled. */
static void high(const struct tensor *x, const struct tensor *w, const struct tensor *y)
{
    int rc = backend_gemm_high(rig.q, &(struct gemm_high){.a = *x, .b = *w, .out = *y}, &rig.f);
    ck_assert_msg(!rc, "%s", rig.f.text);
    rig_wait(&rig);
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* --- cases: factors --- */

/* The two factors are multiplied first: with 0.1 and 0.7 and an accumulator of 7 the other order
 * gives another float32. */
START_TEST(gemm_multiplies_the_factors_first)
{
    float both = 0.1f * 0.7f;
    ck_assert(7.0f * both != (7.0f * 0.1f) * 0.7f);
    ck_assert_uint_eq(one(0x4e, 0.1f, 0x38, 0.7f, NULL, DTYPE_F32), bits_of(7.0f * both));
}
END_TEST

/* Unless their product is not a normal float32: 2^-80 * 2^-60 is lost, 2^70 * 2^70 infinite and
 * 2^-70 * 2^-70 zero, but (acc * a) * b is not. */
START_TEST(gemm_keeps_results_that_the_factors_product_loses)
{
    ck_assert_uint_eq(one(0x7e, 0x1p-80f, 0x7e, 0x1p-60f, NULL, DTYPE_F32),
                      bits_of(448.0f * 448.0f * 0x1p-80f * 0x1p-60f));
    ck_assert_uint_eq(one(0x01, 0x1p70f, 0x01, 0x1p70f, NULL, DTYPE_F32), bits_of(0x1p122f));
    ck_assert_uint_eq(one(0x7e, 0x1.000002p-66f, 0x7e, 0x1p-61f, NULL, DTYPE_F32),
                      bits_of(0x1.880004p-110f));
    ck_assert_uint_eq(one(0x7e, 0x1p-100f, 0x7e, 0x1p-65f, NULL, DTYPE_F32), bits_of(0x1.88p-148f));
}
END_TEST

/* --- cases: bias and rounding --- */

/* A 16-bit output rounds the bias to its own dtype, adds in float32, and rounds the sum once. */
START_TEST(gemm_rounds_bias_to_a_16_bit_output)
{
    /* bf16: 1 + 2^-8 is a tie, to even: 1. 3 * 2^-9 stays. 1 + 3 * 2^-9: above it, 1.0078125. */
    ck_assert_uint_eq(with_bias(DTYPE_F32, &(float){0x1p-8f}, DTYPE_BF16), 0x3f80);
    ck_assert_uint_eq(with_bias(DTYPE_F32, &(float){0x1.8p-8f}, DTYPE_BF16), 0x3f81);
    /* 2^-8 * (1 + 2^-9) rounds to 2^-8 as bf16, so that the sum is the tie again: 1. */
    ck_assert_uint_eq(with_bias(DTYPE_F32, &(float){0x1.008p-8f}, DTYPE_BF16), 0x3f80);
    /* The same value as an f16 bias is exact there and rounded to bf16 here: 0x1c02 is
     * 2^-8 * (1 + 2^-9). */
    ck_assert_uint_eq(with_bias(DTYPE_F16, &(uint16_t){0x1c02}, DTYPE_BF16), 0x3f80);
    /* f16: 2^-11 * (1 + 2^-12) rounds to 2^-11, a tie: 1. */
    ck_assert_uint_eq(with_bias(DTYPE_F32, &(float){0x1.001p-11f}, DTYPE_F16), 0x3c00);
    ck_assert_uint_eq(with_bias(DTYPE_F32, &(float){0x1.8p-11f}, DTYPE_F16), 0x3c01);
}
END_TEST

/* A float32 output adds the bias exactly as given, whatever its dtype. */
START_TEST(gemm_adds_bias_in_float32)
{
    ck_assert_uint_eq(with_bias(DTYPE_F32, &(float){0x1p-23f}, DTYPE_F32), 0x3f800001);
    ck_assert_uint_eq(with_bias(DTYPE_BF16, &(uint16_t){0x3f81}, DTYPE_F32), bits_of(2.0078125f));
    ck_assert_uint_eq(with_bias(DTYPE_F16, &(uint16_t){0x3c01}, DTYPE_F32), bits_of(2.0009765625f));
}
END_TEST

/* The bias comes after the factors. */
START_TEST(gemm_adds_bias_after_the_factors)
{
    struct tensor bias = rig_tensor(&rig, DTYPE_F32, 1, 1, (float[]){10.0f});
    ck_assert_uint_eq(one(0x38, 0.5f, 0x38, 0.5f, &bias, DTYPE_F32), bits_of(10.25f));
    buffer_unref(bias.buf);
}
END_TEST

/* f16 overflows to Inf from 65520 on; below it stays 65504. */
START_TEST(gemm_f16_overflows_to_inf)
{
    ck_assert_uint_eq(one(0x78, 256.0f, 0x38, 1.0f, NULL, DTYPE_F16), 0x7c00); /* 256 * 256 */
    ck_assert_uint_eq(one(0x38, 65519.0f, 0x38, 1.0f, NULL, DTYPE_F16), 0x7bff);
    ck_assert_uint_eq(one(0xb8, 65520.0f, 0x38, 1.0f, NULL, DTYPE_F16), 0xfc00);
}
END_TEST

/* A NaN code gives the one quiet NaN of each output dtype, whatever its sign. */
START_TEST(gemm_nan_is_canonical)
{
    ck_assert_uint_eq(one(0xff, 1.0f, 0xb8, 1.0f, NULL, DTYPE_F32), 0x7fc00000);
    ck_assert_uint_eq(one(0x7f, 1.0f, 0xff, 1.0f, NULL, DTYPE_BF16), 0x7fc0);
    ck_assert_uint_eq(one(0x38, 1.0f, 0xff, 1.0f, NULL, DTYPE_F16), 0x7e00);
}
END_TEST

/* Infinities of E5M2 pass through, and cancel to NaN. */
START_TEST(gemm_carries_e5m2_infinities)
{
    struct qtensor *a = rig_adopt(&rig, DTYPE_F8_E5M2, 2, 2, (uint8_t[]){0x7c, 0, 0x7c, 0xfc}, 1);
    struct qtensor *b = rig_adopt(&rig, DTYPE_F8_E4M3, 1, 2, (uint8_t[]){0x38, 0x38}, 1);
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 2, 1, NULL);
    ck_assert_int_eq(
        backend_gemm(rig.q, &(struct gemm){.a = a, .b = b, .out = y, .precise = true}, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(y.buf->host, ((uint32_t[]){0x7f800000, 0x7fc00000}), 8);
    buffer_unref(y.buf);
    qtensor_unref(a);
    qtensor_unref(b);
}
END_TEST

/* --- cases: order and shapes --- */

/* Products are rounded before they are added: with an FMA 1.000244140625^2 - 1.00048828125 would be
 * 2^-24. Lane 0 gets k = 0 and 16. */
START_TEST(gemm_forms_no_fma)
{
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 17, (float[17]){0});
    struct tensor w = rig_tensor(&rig, DTYPE_F32, 1, 17, (float[17]){0});
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 1, 1, NULL);
    float *a = x.buf->host, *b = w.buf->host;
    a[0] = -0x1.002p0f;
    b[0] = 1.0f;
    a[16] = b[16] = 0x1.001p0f;
    high(&x, &w, &y);
    ck_assert(*(float *)y.buf->host == 0.0f);
    buffer_unref(x.buf);
    buffer_unref(w.buf);
    buffer_unref(y.buf);
}
END_TEST

/* Subnormal operands and results are neither read as zero nor flushed. */
START_TEST(gemm_keeps_subnormals)
{
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 1, (float[]){0x1p-149f});
    struct tensor w = rig_tensor(&rig, DTYPE_F32, 1, 1, (float[]){8.0f});
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 1, 1, NULL);
    high(&x, &w, &y);
    ck_assert(*(float *)y.buf->host == 0x1p-146f);
    buffer_unref(x.buf);
    buffer_unref(w.buf);
    buffer_unref(y.buf);
}
END_TEST

/* Every k is summed, across many blocks of k, whose count has no limit: ones give k. */
START_TEST(gemm_sums_every_k)
{
    static const uint64_t ks[] = {1,
                                  15,
                                  16,
                                  17,
                                  CPU_BLOCK_K - 1,
                                  CPU_BLOCK_K,
                                  CPU_BLOCK_K + 1,
                                  5000,
                                  100003,
                                  3 * CPU_BLOCK_K + 16};
    for (unsigned i = 0; i < sizeof ks / sizeof ks[0]; i++) {
        struct tensor x = rig_tensor(&rig, DTYPE_BF16, 1, ks[i], NULL);
        struct tensor y = rig_tensor(&rig, DTYPE_F32, 1, 1, NULL);
        for (uint64_t j = 0; j < ks[i]; j++)
            ((uint16_t *)x.buf->host)[j] = 0x3f80;
        high(&x, &x, &y);
        ck_assert_msg(*(float *)y.buf->host == (float)ks[i], "k = %lu", ks[i]);
        buffer_unref(x.buf);
        buffer_unref(y.buf);
    }
}
END_TEST

/* Every output of every tile is written, in its place, and nothing behind: small integers are exact
 * in any order. y[i][j] = sum over k of (i % 5 - 2 + k) * (j % 7 - 3), k = 0, 1, 2. */
START_TEST(gemm_writes_every_output_in_its_place)
{
    static const uint64_t shapes[][2] = {{1, 1}, {1, 80}, {71, 3}, {72, 72}, {73, 145}, {150, 74}};
    uint64_t m = shapes[_i][0], n = shapes[_i][1];
    struct tensor x = rig_tensor(&rig, DTYPE_F32, m, 3, NULL);
    struct tensor w = rig_tensor(&rig, DTYPE_F32, n, 3, NULL);
    struct tensor y = rig_tensor(&rig, DTYPE_F32, m + 1, n, NULL);
    float *a = x.buf->host, *b = w.buf->host, *out = y.buf->host;
    for (uint64_t i = 0; i < 3 * m; i++)
        a[i] = (float)(i / 3 % 5 + i % 3) - 2;
    for (uint64_t i = 0; i < 3 * n; i++)
        b[i] = (float)(i / 3 % 7) - 3;
    for (uint64_t i = 0; i < (m + 1) * n; i++)
        out[i] = 777.0f;
    y.rows = m;
    high(&x, &w, &y);
    for (uint64_t i = 0; i < (m + 1) * n; i++) {
        float row = (float)(i / n % 5), col = (float)(i % n % 7);
        float want = i < m * n ? (3 * row - 3) * (col - 3) : 777.0f;
        if (out[i] != want)
            ck_abort_msg("[%lu, %lu] is %g, needed %g", i / n, i % n, (double)out[i], (double)want);
    }
    buffer_unref(x.buf);
    buffer_unref(w.buf);
    buffer_unref(y.buf);
}
END_TEST

/* Operands of different high-precision dtypes are each read in their own. */
START_TEST(gemm_high_mixes_dtypes)
{
    struct tensor x = rig_tensor(&rig, DTYPE_F16, 1, 2, (uint16_t[]){0x3c01, 0x4000});
    struct tensor w = rig_tensor(&rig, DTYPE_BF16, 1, 2, (uint16_t[]){0x4000, 0xbf80});
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 1, 1, NULL);
    high(&x, &w, &y);
    ck_assert(*(float *)y.buf->host == 0x1.004p1f - 2.0f);
    buffer_unref(x.buf);
    buffer_unref(w.buf);
    buffer_unref(y.buf);
}
END_TEST

/* Long sums stay within the bound of 16-lane summation: (k/16 + 4) * 2^-24 of the sum of
 * magnitudes, stated beforehand, against float64. */
START_TEST(gemm_error_stays_within_its_bound)
{
    uint64_t k = rig_small() ? 3000 : 40000;
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 4, k, NULL);
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 4, 4, NULL);
    gemm_input(1234, 4 * k, DTYPE_F32, x.buf->host);
    high(&x, &x, &y);
    const float *a = x.buf->host;
    for (uint64_t o = 0; o < 16; o++) {
        double sum = 0, mag = 0;
        for (uint64_t i = 0; i < k; i++) {
            sum += (double)a[o / 4 * k + i] * (double)a[o % 4 * k + i];
            mag += fabs((double)a[o / 4 * k + i] * (double)a[o % 4 * k + i]);
        }
        double diff = fabs((double)((float *)y.buf->host)[o] - sum);
        ck_assert_double_le(diff, ((double)k / 16 + 5) * 0x1p-24 * mag);
    }
    buffer_unref(x.buf);
    buffer_unref(y.buf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gemm");
    TCase *c = tcase_create("gemm");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, gemm_multiplies_the_factors_first);
    tcase_add_test(c, gemm_keeps_results_that_the_factors_product_loses);
    tcase_add_test(c, gemm_rounds_bias_to_a_16_bit_output);
    tcase_add_test(c, gemm_adds_bias_in_float32);
    tcase_add_test(c, gemm_adds_bias_after_the_factors);
    tcase_add_test(c, gemm_f16_overflows_to_inf);
    tcase_add_test(c, gemm_nan_is_canonical);
    tcase_add_test(c, gemm_carries_e5m2_infinities);
    if (!rig_cuda()) /* cuBLASLt's float32 GEMM forms them */
        tcase_add_test(c, gemm_forms_no_fma);
    tcase_add_test(c, gemm_keeps_subnormals);
    tcase_add_test(c, gemm_sums_every_k);
    tcase_add_loop_test(c, gemm_writes_every_output_in_its_place, 0, 6);
    tcase_add_test(c, gemm_high_mixes_dtypes);
    tcase_add_test(c, gemm_error_stays_within_its_bound);
    suite_add_tcase(s, c);
    return run_suite(s);
}
