#include "ckpt/safetensors.h"
#include "base/mem.h"
#include "tests/unit/run.h"
#include "tests/unit/st_blob.h"

#include <stdio.h>

/* --- fixture --- */

static struct fault f;
static struct safetensors_plan plan;
static int64_t blocks;

static void setup(void)
{
    memset(&f, 0, sizeof f);
    memset(&plan, 0, sizeof plan);
    blocks = mem_live_blocks();
}

static void teardown(void)
{
    mem_fault_arm(-1, false);
    ck_assert_int_eq(mem_live_blocks(), blocks);
}

/* --- helpers --- */

static struct safetensors_tensor tensor(const char *name, enum dtype dtype, uint64_t n,
                                        uint64_t bytes)
{
    return (struct safetensors_tensor){
        .name = name, .dtype = dtype, .rank = 1, .dims = {n}, .bytes = bytes};
}

/* One tensor that must be refused, with both parts in the sentence; nothing is changed. */
static void refused(struct safetensors_tensor t, const char *a, const char *b)
{
    t.offset = 77;
    ck_assert_int_eq(safetensors_plan(&t, 1, NULL, 0, &plan, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(f.code, FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(f.text, a) && strstr(f.text, b), "%s", f.text);
    ck_assert_uint_eq(t.offset, 77);
    ck_assert_ptr_null(plan.head);
}

static void refused_meta(const char *key, const char *value, const char *part)
{
    struct safetensors_meta m = {key, value};
    ck_assert_int_eq(safetensors_plan(NULL, 0, &m, 1, &plan, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(f.text, part) != NULL, "%s", f.text);
}

/* --- cases --- */

/* The header's bytes are fixed by the input: metadata first, order as given, padded to 8. */
START_TEST(write_header_bytes)
{
    struct safetensors_tensor t[2] = {tensor("b", DTYPE_F32, 2, 8), tensor("a", DTYPE_U8, 3, 3)};
    struct safetensors_meta m[2] = {{"z", "1"}, {"format", "pt"}};
    t[0].rank = 2;
    t[0].dims[1] = 1;
    const char *want = "{\"__metadata__\":{\"z\":\"1\",\"format\":\"pt\"},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                       "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    size_t padded = (strlen(want) + 7) / 8 * 8;
    ck_assert_int_eq(safetensors_plan(t, 2, m, 2, &plan, &f), 0);
    ck_assert_uint_eq(plan.head_bytes, 8 + padded);
    ck_assert_uint_eq(plan.file_bytes, 8 + padded + 11);
    ck_assert_uint_eq((unsigned char)plan.head[0], padded & 255);
    ck_assert_uint_eq((unsigned char)plan.head[1], padded >> 8);
    ck_assert_mem_eq(plan.head + 2, "\0\0\0\0\0\0", 6);
    ck_assert_mem_eq(plan.head + 8, want, strlen(want));
    for (size_t i = strlen(want); i < padded; i++)
        ck_assert_int_eq(plan.head[8 + i], ' ');
    ck_assert_uint_eq(t[0].offset, 8 + padded);
    ck_assert_uint_eq(t[1].offset, 8 + padded + 8);
    safetensors_plan_fini(&plan);
    ck_assert_ptr_null(plan.head);
}
END_TEST

/* No tensors and no metadata give the smallest file there is: "{}" padded. */
START_TEST(write_nothing)
{
    ck_assert_int_eq(safetensors_plan(NULL, 0, NULL, 0, &plan, &f), 0);
    ck_assert_uint_eq(plan.file_bytes, 16);
    ck_assert_mem_eq(plan.head, "\10\0\0\0\0\0\0\0{}      ", 16);
    safetensors_plan_fini(&plan);
}
END_TEST

/* Odd names and metadata come back from the reader as they went in. */
START_TEST(write_text_round_trip)
{
    static const char *const texts[] = {"plain",   "quote\" back\\ slash/", "\xc3\xa9\xe2\x82\xac",
                                        "\\u0041", "{\"a\":[1]}",           "\xf0\x9f\x98\x80"};
    struct safetensors_tensor t[6];
    struct safetensors_meta m[6] = {
        {"", ""}, {"c\x01\x1f\x7f", "\n\t\r"}, {"\xc2\x80\xc2\x9f", "x"}};
    struct safetensors *s = NULL;
    for (int i = 0; i < 6; i++)
        t[i] = tensor(texts[i], DTYPE_BF16, 0, 0);
    for (int i = 3; i < 6; i++)
        m[i] = (struct safetensors_meta){texts[i], texts[i]};
    ck_assert_int_eq(safetensors_plan(t, 6, m, 6, &plan, &f), 0);
    int rc = safetensors_parse(plan.head + 8, plan.head_bytes - 8, plan.file_bytes, NULL, &s, &f);
    ck_assert_msg(rc == 0, "%s", f.text);
    for (int i = 0; i < 6; i++) {
        ck_assert_ptr_nonnull(safetensors_find(s, texts[i]));
        ck_assert_str_eq(safetensors_meta(s, m[i].key), m[i].value);
    }
    safetensors_free(s);
    safetensors_plan_fini(&plan);
}
END_TEST

/* Every dtype and rank is read back with the place that the plan chose. */
START_TEST(write_tensors_round_trip)
{
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8"};
    struct safetensors *s = NULL;
    struct safetensors_tensor t[9];
    for (unsigned i = 0; i < 9; i++) {
        t[i] = (struct safetensors_tensor){.name = names[i], .dtype = DTYPE_F16, .rank = i};
        t[i].bytes = 2;
        for (unsigned k = 0; k < i; k++)
            t[i].bytes *= t[i].dims[k] = 1 + k % 3;
    }
    ck_assert_int_eq(safetensors_plan(t, 9, NULL, 0, &plan, &f), 0);
    ck_assert_int_eq(
        safetensors_parse(plan.head + 8, plan.head_bytes - 8, plan.file_bytes, NULL, &s, &f), 0);
    for (unsigned i = 0; i < 9; i++) {
        const struct safetensors_tensor *r = safetensors_find(s, names[i]);
        ck_assert(r->dtype == t[i].dtype && r->rank == i && r->bytes == t[i].bytes);
        ck_assert_uint_eq(r->offset, t[i].offset);
        for (unsigned k = 0; k < i; k++)
            ck_assert_uint_eq(r->dims[k], t[i].dims[k]);
    }
    safetensors_free(s);
    safetensors_plan_fini(&plan);
}
END_TEST

/* A tensor that the reader would refuse is not written. */
START_TEST(write_refuses_bad_tensors)
{
    struct safetensors_tensor big = tensor("t", DTYPE_U8, 1, 1);
    big.rank = 9;
    refused(tensor("", DTYPE_U8, 1, 1), "name has 0 bytes", "needed 1 to 1024");
    refused(tensor("a\nb", DTYPE_U8, 1, 1), "\"a\\x0ab\"", "printable UTF-8");
    refused(tensor("\xff", DTYPE_U8, 1, 1), "\"\\xff\"", "printable UTF-8");
    refused(tensor("__metadata__", DTYPE_U8, 1, 1), "tensor \"__metadata__\"", "other than");
    refused(tensor("t", DTYPE_NONE, 1, 1), "dtype is number 0", "needed one of the format");
    refused(tensor("t", (enum dtype)99, 1, 1), "dtype is number 99", "needed one of the format");
    refused(big, "shape has 9 numbers", "needed at most 8");
    refused(tensor("t", DTYPE_F32, 2, 4), "has 4 bytes", "needed 8 for its shape");
    refused(tensor("t", DTYPE_F4, 3, 1), "takes 12 bits", "needed whole bytes");
    refused(tensor("t", DTYPE_F64, UINT64_MAX, 8), "overflows", "needed a product below");
}
END_TEST

/* Names and metadata keys are given once. */
START_TEST(write_refuses_duplicates)
{
    struct safetensors_tensor t[3] = {tensor("a", DTYPE_U8, 1, 1), tensor("b", DTYPE_U8, 1, 1),
                                      tensor("a", DTYPE_U8, 1, 1)};
    struct safetensors_meta m[3] = {{"k", "1"}, {"l", "2"}, {"k", "1"}};
    ck_assert_int_eq(safetensors_plan(t, 3, NULL, 0, &plan, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_str_eq(f.text, "tensor \"a\" is given twice, needed once");
    ck_assert_int_eq(safetensors_plan(t, 2, m, 3, &plan, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_str_eq(f.text, "metadata \"k\" is given twice, needed once");
}
END_TEST

/* Metadata is UTF-8. */
START_TEST(write_refuses_metadata_that_is_no_utf8)
{
    refused_meta("k", "\xff", "metadata \"k\" has bytes that are no UTF-8");
    refused_meta("\xc3", "v", "metadata \"\\xc3\" has bytes that are no UTF-8");
    refused_meta("k", "\xed\xa0\x80", "no UTF-8");
}
END_TEST

/* Sizes that add up to 2^63 or more are refused, each of them being good. */
START_TEST(write_refuses_files_too_large)
{
    uint64_t half = (uint64_t)1 << 60;
    struct safetensors_tensor t[9];
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    for (int i = 0; i < 9; i++)
        t[i] = tensor(names[i], DTYPE_U8, half, half);
    ck_assert_int_eq(safetensors_plan(t, 8, NULL, 0, &plan, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "take 2^63 bytes or more"));
    ck_assert_int_eq(safetensors_plan(t, 7, NULL, 0, &plan, &f), 0);
    safetensors_plan_fini(&plan);
}
END_TEST

/* A header above the format's limit is refused, not written. */
START_TEST(write_refuses_a_header_too_large)
{
    size_t n = 100000000;
    char *value = malloc(n + 1);
    memset(value, 'v', n);
    value[n] = 0;
    struct safetensors_meta m = {"k", value};
    ck_assert_int_eq(safetensors_plan(NULL, 0, &m, 1, &plan, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "needed at most 100000000"));
    free(value);
}
END_TEST

/* Every allocation that fails is -ENOMEM; nothing is left behind or changed. */
START_TEST(write_every_allocation_fails_once)
{
    struct safetensors_tensor t[2] = {tensor("b", DTYPE_F32, 2, 8), tensor("a", DTYPE_U8, 3, 3)};
    struct safetensors_meta m = {"format", "pt"};
    int n = 0;
    for (;; n++) {
        mem_fault_arm(n, false);
        int rc = safetensors_plan(t, 2, &m, 1, &plan, &f);
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        if (!fired)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_ptr_null(plan.head);
        ck_assert_uint_eq(t[0].offset, 0);
        ck_assert_int_eq(mem_live_blocks(), blocks);
    }
    ck_assert_int_ge(n, 3);
    safetensors_plan_fini(&plan);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ckpt/safetensors_write");
    TCase *c = tcase_create("write");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, write_header_bytes);
    tcase_add_test(c, write_nothing);
    tcase_add_test(c, write_text_round_trip);
    tcase_add_test(c, write_tensors_round_trip);
    tcase_add_test(c, write_refuses_bad_tensors);
    tcase_add_test(c, write_refuses_duplicates);
    tcase_add_test(c, write_refuses_metadata_that_is_no_utf8);
    tcase_add_test(c, write_refuses_files_too_large);
    tcase_add_test(c, write_refuses_a_header_too_large);
    tcase_add_test(c, write_every_allocation_fails_once);
    suite_add_tcase(s, c);
    return run_suite(s);
}
