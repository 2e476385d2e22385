/* fp8.h against tests/oracle and the rule: casts, counts, codes. */
#include "kernels/fp8.h"
#include "tests/unit/run.h"
#include "tests/unit/test_fp8_lines.h"

#include <fenv.h>
#include <float.h>
#include <math.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

/* --- helpers: one case --- */

struct result {
    char hash[33];
    unsigned long long nonfinite, saturated, flushed;
    float amax;
};

static uint8_t cast_count(float x, float scale, enum dtype fmt, struct result *r)
{
    float v = x * scale;
    uint8_t code = fp8_encode(v, fmt);
    if (!fp8_finite(x)) {
        r->nonfinite++;
        return code;
    }
    r->amax = fabsf(x) > r->amax ? fabsf(x) : r->amax;
    r->saturated += fp8_saturates(v, fmt) ? 1 : 0;
    r->flushed += fp8_flushed(x, code) ? 1 : 0;
    return code;
}

static void cast_all(const struct cast_input *in, float scale, enum dtype fmt, struct result *r)
{
    uint8_t *codes = bytes_new(in->count);
    *r = (struct result){0};
    for (uint64_t i = 0; i < in->count; i++)
        codes[i] = cast_count(in->at(i), scale, fmt, r);
    hash_free(codes, in->count, r->hash);
}

static void cast_line_check(const char *line)
{
    char name[16], fmt[8];
    unsigned scale, amax;
    struct result want, got;
    ck_assert_int_eq(sscanf(line, "cast %15s %x %7s %32s %llu %llu %llu %x", name, &scale, fmt,
                            want.hash, &want.nonfinite, &want.saturated, &want.flushed, &amax),
                     8);
    cast_all(input_find(name), fp8_bits_float(scale),
             strcmp(fmt, "e4m3") ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, &got);
    ck_assert_msg(!strcmp(got.hash, want.hash), "codes differ: %s", line);
    ck_assert_msg(got.nonfinite == want.nonfinite, "non-finite %llu: %s", got.nonfinite, line);
    ck_assert_msg(got.saturated == want.saturated, "saturated %llu: %s", got.saturated, line);
    ck_assert_msg(got.flushed == want.flushed, "flushed %llu: %s", got.flushed, line);
    ck_assert_msg(fp8_float_bits(got.amax) == amax, "amax %a: %s", (double)got.amax, line);
}

/* All conversions of all edges, one after the other. */
static void convert_all(char hash[33])
{
    const struct cast_input *in = input_find("edges");
    struct all {
        uint8_t codes[2];
        uint16_t half[2];
        uint16_t flushed;
        float back[3];
    } *all = bytes_new(in->count * sizeof *all);
    for (uint64_t i = 0; i < in->count; i++) {
        float x = in->at(i);
        all[i].codes[0] = fp8_encode(x, DTYPE_F8_E4M3);
        all[i].codes[1] = fp8_encode(x, DTYPE_F8_E5M2);
        all[i].half[0] = bf16_encode(x);
        all[i].half[1] = f16_encode(x);
        all[i].flushed = (uint16_t)fp8_flushed(x, all[i].codes[0]);
        all[i].back[0] = fp8_decode((uint8_t)i, DTYPE_F8_E4M3);
        all[i].back[1] = fp8_decode((uint8_t)i, DTYPE_F8_E5M2);
        all[i].back[2] = f16_decode((uint16_t)i);
    }
    hash_free(all, in->count * sizeof *all, hash);
}

/* --- cases --- */

static void seed_check(const char *line)
{
    char want[32];
    (void)snprintf(want, sizeof want, "seed %016llx\n", (unsigned long long)CAST_SEED);
    ck_assert_str_eq(line, want);
}

/* The committed hashes belong to the generator written above. */
START_TEST(fp8_oracle_has_the_seed)
{
    lines_check("seed ", 1, seed_check);
}
END_TEST

/* All bf16 inputs times 12 scales give the codes and counts of ml_dtypes, in both formats. */
START_TEST(fp8_casts_bf16)
{
    lines_check("cast bf16 ", 24, cast_line_check);
}
END_TEST

/* All f16 inputs times 12 scales give the codes and counts of ml_dtypes, in both formats. */
START_TEST(fp8_casts_f16)
{
    lines_check("cast f16 ", 24, cast_line_check);
}
END_TEST

/* Float32 numbers on, just below and just above every FP8 number and tie give ml_dtypes' codes. */
START_TEST(fp8_casts_f32_edges)
{
    lines_check("cast edges ", 24, cast_line_check);
}
END_TEST

/* Ten million random float32 bit patterns give the codes and counts of ml_dtypes. */
START_TEST(fp8_casts_f32_random)
{
    lines_check("cast random ", 6, cast_line_check);
}
END_TEST

/* Codes of values chosen by hand: zeros, ties at both ends, saturation, NaN. */
START_TEST(fp8_encodes_special_values)
{
    static const struct {
        uint32_t bits;
        uint8_t e4m3, e5m2;
    } t[] = {
        {0x00000000, 0x00, 0x00}, {0x80000000, 0x80, 0x80}, /* zeros */
        {0x3f800000, 0x38, 0x3c}, {0xbf800000, 0xb8, 0xbc}, /* 1, -1 */
        {0x3a800000, 0x00, 0x14}, {0x3a800001, 0x01, 0x14}, /* 2^-10: E4M3's lowest tie */
        {0xba800000, 0x80, 0x94}, {0x3b400000, 0x02, 0x1a}, /* 3 * 2^-10 goes to even */
        {0x37000000, 0x00, 0x00}, {0x37000001, 0x00, 0x01}, /* 2^-17: E5M2's lowest tie */
        {0xb7000000, 0x80, 0x80}, {0x37c00000, 0x00, 0x02}, /* 3 * 2^-17 goes to even */
        {0x3c700000, 0x08, 0x24}, {0x3c6fffff, 0x07, 0x23}, /* 15 * 2^-10: into the normals */
        {0x43e00000, 0x7e, 0x5f}, {0x43e80000, 0x7e, 0x5f}, /* 448, 464 */
        {0x43e80001, 0x7e, 0x5f}, {0x47600000, 0x7e, 0x7b}, /* above 464; 57344 */
        {0x476fffff, 0x7e, 0x7b}, {0x47700000, 0x7e, 0x7b}, /* below 61440; 61440 */
        {0x7f7fffff, 0x7e, 0x7b}, {0xff7fffff, 0xfe, 0xfb}, /* FLT_MAX */
        {0x7f800000, 0x7e, 0x7b}, {0xff800000, 0xfe, 0xfb}, /* Inf */
        {0x7fc00000, 0x7f, 0x7f}, {0xffc00000, 0x7f, 0x7f}, /* NaN */
        {0x7f800001, 0x7f, 0x7f}, {0xffffffff, 0x7f, 0x7f}, /* signalling, all ones */
        {0x00000001, 0x00, 0x00}, {0x807fffff, 0x80, 0x80}, /* denormals */
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        float v = fp8_bits_float(t[i].bits);
        ck_assert_msg(fp8_encode(v, DTYPE_F8_E4M3) == t[i].e4m3, "E4M3 of %08x", t[i].bits);
        ck_assert_msg(fp8_encode(v, DTYPE_F8_E5M2) == t[i].e5m2, "E5M2 of %08x", t[i].bits);
    }
}
END_TEST

/* Saturated, flushed and finite turn exactly at the thresholds of the rule. */
START_TEST(fp8_counts_turn_at_thresholds)
{
    ck_assert(!fp8_saturates(464.0f, DTYPE_F8_E4M3));
    ck_assert(fp8_saturates(nextafterf(464.0f, INFINITY), DTYPE_F8_E4M3));
    ck_assert(fp8_saturates(nextafterf(-464.0f, -INFINITY), DTYPE_F8_E4M3));
    ck_assert(!fp8_saturates(nextafterf(61440.0f, 0.0f), DTYPE_F8_E5M2));
    ck_assert(fp8_saturates(61440.0f, DTYPE_F8_E5M2));
    ck_assert(fp8_saturates(-61440.0f, DTYPE_F8_E5M2));
    ck_assert(fp8_saturates(INFINITY, DTYPE_F8_E4M3) && fp8_saturates(-INFINITY, DTYPE_F8_E5M2));
    ck_assert(fp8_flushed(FLT_TRUE_MIN, 0x00) && fp8_flushed(-FLT_TRUE_MIN, 0x80));
    ck_assert(!fp8_flushed(0.0f, 0x00) && !fp8_flushed(-0.0f, 0x80));
    ck_assert(!fp8_flushed(1.0f, 0x01) && !fp8_flushed(NAN, 0x7f));
    ck_assert(fp8_finite(FLT_MAX) && fp8_finite(-FLT_TRUE_MIN) && fp8_finite(0.0f));
    ck_assert(!fp8_finite(INFINITY) && !fp8_finite(-INFINITY) && !fp8_finite(NAN));
}
END_TEST

/* The limits are those of the formats. */
START_TEST(fp8_limits_are_exact)
{
    ck_assert_uint_eq(fp8_float_bits(FP8_FLT_MAX), fp8_float_bits(FLT_MAX));
    ck_assert_uint_eq(fp8_float_bits(FP8_FLT_MIN), fp8_float_bits(FLT_MIN));
    ck_assert(fp8_max(DTYPE_F8_E4M3) == 448.0f && fp8_max(DTYPE_F8_E5M2) == 57344.0f);
}
END_TEST

/* All 256 codes of both formats decode to the committed table, NaN to a quiet NaN of their sign. */
START_TEST(fp8_decodes_all_codes)
{
    char line[256];
    unsigned code, next = 0, e4m3, e5m2;
    FILE *f = oracle_open("fp8_decode.txt");
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#')
            continue;
        ck_assert_int_eq(sscanf(line, "%x %x %*s %x", &code, &e4m3, &e5m2), 3);
        ck_assert_uint_eq(code, next++);
        ck_assert_uint_eq(fp8_float_bits(fp8_decode((uint8_t)code, DTYPE_F8_E4M3)), e4m3);
        ck_assert_uint_eq(fp8_float_bits(fp8_decode((uint8_t)code, DTYPE_F8_E5M2)), e5m2);
    }
    (void)fclose(f);
    ck_assert_uint_eq(next, 256);
}
END_TEST

/* Encoding what a code means gives the code back; infinities saturate and NaN becomes 0x7f. */
START_TEST(fp8_encode_undoes_decode)
{
    for (unsigned c = 0; c < 256; c++) {
        unsigned want4 = (c & 0x7f) == 0x7f ? 0x7f : c;
        unsigned want5 = (c & 0x7f) > 0x7c ? 0x7f : (c & 0x7f) == 0x7c ? c - 1 : c;
        float x4 = fp8_decode((uint8_t)c, DTYPE_F8_E4M3),
              x5 = fp8_decode((uint8_t)c, DTYPE_F8_E5M2);
        ck_assert_uint_eq(fp8_encode(x4, DTYPE_F8_E4M3), want4);
        ck_assert_uint_eq(fp8_encode(x5, DTYPE_F8_E5M2), want5);
    }
}
END_TEST

/* No rounding mode and no flush-to-zero setting changes a bit of a conversion. */
START_TEST(fp8_ignores_float_environment)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    char want[33], got[33];
    convert_all(want);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        ck_assert_int_eq(fesetround(modes[i]), 0);
        convert_all(got);
        ck_assert_str_eq(got, want);
    }
    ck_assert_int_eq(fesetround(FE_TONEAREST), 0);
#ifdef __SSE__
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
    convert_all(got);
    _mm_setcsr(_mm_getcsr() & ~0x8040u);
    ck_assert_str_eq(got, want);
#endif
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fp8");
    TCase *tc = tcase_create("fp8");
    tcase_set_timeout(tc, 120); /* seconds; sanitizers */
    tcase_add_test(tc, fp8_oracle_has_the_seed);
    tcase_add_test(tc, fp8_casts_bf16);
    tcase_add_test(tc, fp8_casts_f16);
    tcase_add_test(tc, fp8_casts_f32_edges);
    tcase_add_test(tc, fp8_casts_f32_random);
    tcase_add_test(tc, fp8_encodes_special_values);
    tcase_add_test(tc, fp8_counts_turn_at_thresholds);
    tcase_add_test(tc, fp8_limits_are_exact);
    tcase_add_test(tc, fp8_decodes_all_codes);
    tcase_add_test(tc, fp8_encode_undoes_decode);
    tcase_add_test(tc, fp8_ignores_float_environment);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
