#include "base/dtype.h"
#include "tests/unit/run.h"

#include <string.h>

/* --- fixture --- */

/* Spelling and bits: the safetensors format's table. Numbers: enum DType of the wire. */
static const struct {
    const char *name;
    unsigned bits;
    int number;
} table[] = {
    {"BOOL", 8, 7},     {"F4", 4, 8},    {"F6_E2M3", 6, 9},      {"F6_E3M2", 6, 10},
    {"U8", 8, 11},      {"I8", 8, 12},   {"F8_E5M2", 8, 5},      {"F8_E4M3", 8, 4},
    {"F8_E8M0", 8, 13}, {"I16", 16, 16}, {"F8_E4M3FNUZ", 8, 14}, {"F8_E5M2FNUZ", 8, 15},
    {"U16", 16, 17},    {"F16", 16, 3},  {"BF16", 16, 2},        {"I32", 32, 18},
    {"U32", 32, 19},    {"F32", 32, 1},  {"C64", 64, 20},        {"F64", 64, 6},
    {"I64", 64, 21},    {"U64", 64, 22},
};

#define ROWS (sizeof table / sizeof table[0])

/* --- cases --- */

/* All 22 dtypes of the format have the spelling, the size and the wire number of the table. */
START_TEST(dtype_table_is_that_of_the_format)
{
    ck_assert_uint_eq(ROWS, 22);
    for (size_t i = 0; i < ROWS; i++) {
        enum dtype t = dtype_parse(table[i].name, strlen(table[i].name));
        ck_assert_int_eq((int)t, table[i].number);
        ck_assert_str_eq(dtype_name(t), table[i].name);
        ck_assert_uint_eq(dtype_bits(t), table[i].bits);
    }
}
END_TEST

/* Other spellings, prefixes, longer and lower-case names are no dtype. */
START_TEST(dtype_parse_refuses_other_spellings)
{
    static const char *const bad[] = {"",     "F",    "F3",   "F321",        "f32",
                                      "F8",   "BF1",  "bool", "F8_E4M3FN",   "F8_E8M0FNU",
                                      "F32 ", " F32", "NONE", "F8_E4M3FNUZZ"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(dtype_parse(bad[i], strlen(bad[i])) == DTYPE_NONE, "%s", bad[i]);
    ck_assert(dtype_parse("F32\0", 4) == DTYPE_NONE);
}
END_TEST

/* Numbers outside the list have no bits and the name "?". */
START_TEST(dtype_outside_the_list)
{
    static const int bad[] = {-1, 0, 23, 1000};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_uint_eq(dtype_bits((enum dtype)bad[i]), 0);
        ck_assert_str_eq(dtype_name((enum dtype)bad[i]), "?");
    }
}
END_TEST

/* Bytes are counted in whole bytes: an odd number of 4-bit elements has none. */
START_TEST(dtype_bytes_are_whole)
{
    uint64_t b = 7;
    ck_assert(dtype_bytes(DTYPE_F4, 6, &b));
    ck_assert_uint_eq(b, 3);
    ck_assert(dtype_bytes(DTYPE_F6_E2M3, 4, &b));
    ck_assert_uint_eq(b, 3);
    ck_assert(dtype_bytes(DTYPE_C64, 3, &b));
    ck_assert_uint_eq(b, 24);
    ck_assert(dtype_bytes(DTYPE_F32, 0, &b));
    ck_assert_uint_eq(b, 0);
    b = 7;
    ck_assert(!dtype_bytes(DTYPE_F4, 5, &b));
    ck_assert(!dtype_bytes(DTYPE_F6_E3M2, 2, &b));
    ck_assert(!dtype_bytes(DTYPE_NONE, 8, &b));
    ck_assert_uint_eq(b, 7);
}
END_TEST

/* n * bits past 2^64 is refused, one element below it is not. */
START_TEST(dtype_bytes_overflow_is_refused)
{
    uint64_t b = 7;
    ck_assert(!dtype_bytes(DTYPE_F64, (uint64_t)1 << 58, &b));
    ck_assert_uint_eq(b, 7);
    ck_assert(dtype_bytes(DTYPE_F64, ((uint64_t)1 << 58) - 1, &b));
    ck_assert_uint_eq(b, ((uint64_t)1 << 61) - 8);
}
END_TEST

/* High precision is F32, BF16, F16; FP8 is F8_E4M3 and F8_E5M2, never the FNUZ kinds. */
START_TEST(dtype_classes)
{
    for (size_t i = 0; i < ROWS; i++) {
        const char *n = table[i].name;
        enum dtype t = (enum dtype)table[i].number;
        ck_assert_int_eq(dtype_is_high(t),
                         !strcmp(n, "F32") || !strcmp(n, "BF16") || !strcmp(n, "F16"));
        ck_assert_int_eq(dtype_is_fp8(t), !strcmp(n, "F8_E4M3") || !strcmp(n, "F8_E5M2"));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/dtype");
    TCase *c = tcase_create("dtype");
    tcase_add_test(c, dtype_table_is_that_of_the_format);
    tcase_add_test(c, dtype_parse_refuses_other_spellings);
    tcase_add_test(c, dtype_outside_the_list);
    tcase_add_test(c, dtype_bytes_are_whole);
    tcase_add_test(c, dtype_bytes_overflow_is_refused);
    tcase_add_test(c, dtype_classes);
    suite_add_tcase(s, c);
    return run_suite(s);
}
