/* The numbers of the installed header are those inside. This file sees no header of base but
 * through what libfp8d exports and these declarations. */
#include "client/fp8d.h"

#include "tests/unit/run.h"

#include <string.h>

const char *status_name(int code);
int status_from_rpc(unsigned rpc);

/* --- helpers --- */

struct row {
    int code;
    const char *name;
};

static const struct row rows[] = {
#define ROW(name) {FP8D_E##name, #name},
    ROW(CANCELLED) ROW(UNKNOWN) ROW(INVALID_ARGUMENT) ROW(DEADLINE_EXCEEDED) ROW(NOT_FOUND)
        ROW(ALREADY_EXISTS) ROW(PERMISSION_DENIED) ROW(RESOURCE_EXHAUSTED) ROW(FAILED_PRECONDITION)
            ROW(ABORTED) ROW(OUT_OF_RANGE) ROW(UNIMPLEMENTED) ROW(INTERNAL) ROW(UNAVAILABLE)
                ROW(DATA_LOSS) ROW(UNAUTHENTICATED) ROW(PROTOCOL) ROW(CLOSED) ROW(FORKED)
#undef ROW
};
#define ROWS (sizeof rows / sizeof rows[0])

static const struct row dtypes[] = {
#define ROW(name) {FP8D_##name, #name},
    ROW(F32) ROW(BF16) ROW(F16) ROW(F8_E4M3) ROW(F8_E5M2) ROW(F64) ROW(BOOL) ROW(F4) ROW(F6_E2M3)
        ROW(F6_E3M2) ROW(U8) ROW(I8) ROW(F8_E8M0) ROW(F8_E4M3FNUZ) ROW(F8_E5M2FNUZ) ROW(I16)
            ROW(U16) ROW(I32) ROW(U32) ROW(C64) ROW(I64) ROW(U64)
#undef ROW
};

/* --- cases --- */

/* Every constant of the header has the value and name it has in base. */
START_TEST(test_codes_equal)
{
    for (size_t i = 0; i < ROWS; i++) {
        ck_assert_str_eq(status_name(rows[i].code), rows[i].name);
        ck_assert_str_eq(fp8d_code_name(rows[i].code), rows[i].name);
    }
}
END_TEST

/* Every code that base knows is in the header. */
START_TEST(test_codes_complete)
{
    size_t known = 0;
    for (int code = -1; code > -2000; code--)
        known +=
            code <= -1000 && (code == FP8D_EUNKNOWN || strcmp(status_name(code), "UNKNOWN") != 0);
    ck_assert_uint_eq(known, ROWS);
}
END_TEST

/* google.rpc codes 1 to 16 are the header's codes shifted by 1000. */
START_TEST(test_codes_rpc)
{
    for (unsigned rpc = 1; rpc <= 16; rpc++)
        ck_assert_int_eq(status_from_rpc(rpc), rows[rpc - 1].code);
    ck_assert_int_eq(status_from_rpc(17), FP8D_EUNKNOWN);
}
END_TEST

/* Element types have the numbers and spellings of safetensors that base has, all of them. */
START_TEST(test_dtypes_equal)
{
    size_t count = sizeof dtypes / sizeof dtypes[0];
    for (size_t i = 0; i < count; i++)
        ck_assert_str_eq(fp8d_dtype_name((enum fp8d_dtype)dtypes[i].code), dtypes[i].name);
    ck_assert_str_eq(fp8d_dtype_name((enum fp8d_dtype)(count + 1)), "?");
}
END_TEST

/* Names of errno values and of nonsense are texts, never NULL. */
START_TEST(test_names_never_null)
{
    ck_assert_str_eq(fp8d_code_name(-2), "ENOENT");
    ck_assert_str_eq(fp8d_code_name(123456), "UNKNOWN");
    ck_assert_str_eq(fp8d_stage_name(FP8D_STAGE_QUEUE), "queue");
    ck_assert_str_eq(fp8d_stage_name((enum fp8d_stage)99), "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_codes");
    TCase *t = tcase_create("codes");
    tcase_add_test(t, test_codes_equal);
    tcase_add_test(t, test_codes_complete);
    tcase_add_test(t, test_codes_rpc);
    tcase_add_test(t, test_dtypes_equal);
    tcase_add_test(t, test_names_never_null);
    suite_add_tcase(s, t);
    return run_suite(s);
}
