/* fp8.h, the 16-bit formats, against tests/oracle. */
#include "kernels/fp8.h"
#include "tests/unit/run.h"
#include "tests/unit/test_fp8_lines.h"

#include <math.h>

/* --- helpers --- */

/* "decode FORMAT HASH": float32 of all patterns, NaN as 0x7fc00000. */
static void decode_line_check(const char *line)
{
    char fmt[16], want[33], got[33];
    ck_assert_int_eq(sscanf(line, "decode %15s %32s", fmt, want), 2);
    uint32_t *out = bytes_new(65536 * sizeof *out);
    for (uint32_t i = 0; i < 65536; i++) {
        float x = strcmp(fmt, "bf16") ? f16_decode((uint16_t)i) : bf16_decode((uint16_t)i);
        out[i] = isnan(x) ? 0x7fc00000u : fp8_float_bits(x);
    }
    hash_free(out, 65536 * sizeof *out, got);
    ck_assert_msg(!strcmp(got, want), "%s: %s", got, line);
}

/* "encode FORMAT INPUT HASH": codes of the input, NaN as 0x7fc0 or 0x7e00. */
static void encode_line_check(const char *line)
{
    char fmt[16], name[16], want[33], got[33];
    ck_assert_int_eq(sscanf(line, "encode %15s %15s %32s", fmt, name, want), 3);
    const struct cast_input *in = input_find(name);
    bool bf16 = !strcmp(fmt, "bf16");
    uint16_t *out = bytes_new(in->count * sizeof *out);
    for (uint64_t i = 0; i < in->count; i++) {
        float x = in->at(i);
        out[i] = bf16 ? bf16_encode(x) : f16_encode(x);
        if (isnan(x))
            out[i] = bf16 ? 0x7fc0 : 0x7e00;
    }
    hash_free(out, in->count * sizeof *out, got);
    ck_assert_msg(!strcmp(got, want), "%s: %s", got, line);
}

/* --- cases --- */

/* bf16 and f16 decode as ml_dtypes and numpy do, over all patterns. */
START_TEST(fp8_decodes_16_bits)
{
    lines_check("decode ", 2, decode_line_check);
}
END_TEST

/* Float32 is rounded to bf16 and f16 as numpy and ml_dtypes do, on random patterns and all ties. */
START_TEST(fp8_encodes_16_bits)
{
    lines_check("encode ", 6, encode_line_check);
}
END_TEST

/* Every bf16 NaN decodes with its sign and payload and encodes to itself made quiet. */
START_TEST(fp8_keeps_bf16_nan)
{
    unsigned wrong = 0;
    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7fff) > 0x7f80) {
            float x = bf16_decode((uint16_t)h);
            wrong += fp8_float_bits(x) != h << 16 || bf16_encode(x) != (h | 0x40);
        }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(bf16_encode(fp8_bits_float(0xff800001)), 0xffc0);
}
END_TEST

/* Every f16 NaN decodes with its sign and payload and encodes to itself made quiet. */
START_TEST(fp8_keeps_f16_nan)
{
    unsigned wrong = 0;
    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7fff) > 0x7c00) {
            float x = f16_decode((uint16_t)h);
            uint32_t want = (h & 0x8000) << 16 | 0x7f800000 | (h & 0x3ff) << 13;
            wrong += fp8_float_bits(x) != want || f16_encode(x) != (h | 0x200);
        }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(f16_encode(fp8_bits_float(0x7f800001)), 0x7e00);
}
END_TEST

/* Infinity begins exactly where nearest-even rounding leaves the range. */
START_TEST(fp8_16_bits_overflow_to_inf)
{
    ck_assert_uint_eq(f16_encode(nextafterf(65520.0f, 0.0f)), 0x7bff);
    ck_assert_uint_eq(f16_encode(65520.0f), 0x7c00);
    ck_assert_uint_eq(f16_encode(-INFINITY), 0xfc00);
    ck_assert_uint_eq(bf16_encode(fp8_bits_float(0x7f7f7fff)), 0x7f7f);
    ck_assert_uint_eq(bf16_encode(fp8_bits_float(0x7f7f8000)), 0x7f80);
    ck_assert_uint_eq(bf16_encode(-INFINITY), 0xff80);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fp8_half");
    TCase *tc = tcase_create("fp8_half");
    tcase_set_timeout(tc, 60); /* seconds; sanitizers */
    tcase_add_test(tc, fp8_decodes_16_bits);
    tcase_add_test(tc, fp8_encodes_16_bits);
    tcase_add_test(tc, fp8_keeps_bf16_nan);
    tcase_add_test(tc, fp8_keeps_f16_nan);
    tcase_add_test(tc, fp8_16_bits_overflow_to_inf);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
