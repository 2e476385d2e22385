/* FILE:TENSOR, and output files that are whole or not there. */
#include "base/status.h"
#include "client/ctl/tensor_file.h"

#include "tests/unit/run.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture: a directory with files written by hand --- */

static char dir[64];

static void put_file(const char *name, const char *json, const void *data, size_t len)
{
    char path[256];
    uint64_t n = strlen(json);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fwrite(&n, 8, 1, f);
    fwrite(json, 1, n, f);
    fwrite(data, 1, len, f);
    fclose(f);
}

static void setup(void)
{
    static const float two[2] = {1.5f, -3.0f};
    strcpy(dir, "/tmp/fp8d-ctl-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    put_file("one", "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", two, 8);
    put_file("o:ne", "{\"y\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", two, 8);
    put_file("two",
             "{\"a:b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
             "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
             two, 8);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

/* --- helpers --- */

static int read_spec(const char *name, struct tensor_file *t, struct fault *f)
{
    char spec[256];
    snprintf(spec, sizeof spec, "%s/%s", dir, name);
    *f = (struct fault){0};
    return tensor_file_read(spec, t, f);
}

static float first(const struct tensor_file *t)
{
    float v;
    memcpy(&v, t->tensor.data, sizeof v);
    return v;
}

/* --- cases: reading --- */

/* A file with one tensor needs no name; one that exists as written is not split at its colon. */
START_TEST(test_read_one)
{
    struct tensor_file t = {0};
    struct fault f;
    ck_assert_int_eq(read_spec("one", &t, &f), 0);
    ck_assert(first(&t) == 1.5f);
    ck_assert_uint_eq(t.tensor.rank, 1);
    tensor_file_fini(&t);
    ck_assert_int_eq(read_spec("one:x", &t, &f), 0);
    tensor_file_fini(&t);
    ck_assert_int_eq(read_spec("o:ne", &t, &f), 0);
    ck_assert_uint_eq(t.tensor.rank, 2);
    tensor_file_fini(&t);
    ck_assert_int_eq(read_spec("o:ne:y", &t, &f), 0);
    tensor_file_fini(&t);
}
END_TEST

/* Several tensors: the name is behind the last colon, and asked for if it is missing. */
START_TEST(test_read_named)
{
    struct tensor_file t = {0};
    struct fault f;
    ck_assert_int_eq(read_spec("two:c", &t, &f), 0);
    ck_assert(first(&t) == -3.0f);
    tensor_file_fini(&t);
    ck_assert_int_eq(read_spec("two", &t, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "a:b, c"));
    ck_assert_int_eq(read_spec("two:d", &t, &f), FP8D_ENOT_FOUND);
    ck_assert_ptr_nonnull(strstr(f.text, "\"d\""));
    ck_assert_int_eq(read_spec("two:a:b", &t, &f), -ENOENT);
    ck_assert_int_eq(read_spec("none", &t, &f), -ENOENT);
}
END_TEST

/* What no command can send is refused here, by name and dtype. */
START_TEST(test_read_other_dtypes)
{
    struct tensor_file t = {0};
    struct fault f;
    static const char data[8];
    put_file("others",
             "{\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[0,8]}}", data, 8);
    ck_assert_int_eq(read_spec("others", &t, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "others: tensor is F8_E4M3, needed F32, BF16 or F16"));
    put_file("others", "{\"q\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", data, 8);
    ck_assert_int_eq(read_spec("others:q", &t, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "tensor is F64, needed F32, BF16 or F16"));
    ck_assert_ptr_null(t.pages);
}
END_TEST

/* --- cases: writing --- */

static unsigned files_in_dir(void)
{
    unsigned n = 0;
    DIR *d = opendir(dir);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

/* What is written reads back; an existing file is replaced; no temporary stays. */
START_TEST(test_write_replaces)
{
    static const uint16_t data[6] = {1, 2, 3, 4, 5, 6};
    struct fp8d_tensor out = {
        .dtype = FP8D_BF16, .rank = 2, .dims = {2, 3}, .data = data, .size = 12};
    struct tensor_file t = {0};
    struct fault f = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/one", dir);
    ck_assert_int_eq(tensor_file_write(path, "output", &out, &f), 0);
    ck_assert_int_eq(read_spec("one:output", &t, &f), 0);
    ck_assert_int_eq(t.tensor.dtype, FP8D_BF16);
    ck_assert_uint_eq(t.tensor.dims[1], 3);
    ck_assert_mem_eq(t.tensor.data, data, 12);
    ck_assert_uint_eq(files_in_dir(), 3);
    tensor_file_fini(&t);
}
END_TEST

/* A target that cannot be replaced is an error that names it, and no temporary stays. */
START_TEST(test_write_fails)
{
    static const float v = 1;
    struct fp8d_tensor out = {.dtype = FP8D_F32, .rank = 1, .dims = {1}, .data = &v, .size = 4};
    struct fault f = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/sub", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_lt(tensor_file_write(path, "output", &out, &f), 0);
    ck_assert_ptr_nonnull(strstr(f.text, path));
    ck_assert_uint_eq(files_in_dir(), 4);
    ck_assert_int_eq(tensor_file_write("/nonexistent/out", "output", &out, &f), -ENOENT);
}
END_TEST

/* --- cases: max |x|, norm --- */

/* Every F16 and BF16 bit pattern that matters: by the tables of IEEE 754 and of bfloat16. */
START_TEST(test_max_abs)
{
    static const struct {
        enum fp8d_dtype dtype;
        uint16_t bits;
        float value;
    } rows[] = {
        {FP8D_F16, 0x0001, 0x1p-24f},   {FP8D_F16, 0x03ff, 0x1.ff8p-15f},
        {FP8D_F16, 0x0400, 0x1p-14f},   {FP8D_F16, 0xbc00, 1.0f},
        {FP8D_F16, 0x7bff, 65504.0f},   {FP8D_F16, 0x3555, 0x1.554p-2f},
        {FP8D_BF16, 0x3f80, 1.0f},      {FP8D_BF16, 0xc2f7, 123.5f},
        {FP8D_BF16, 0x0001, 0x1p-133f}, {FP8D_BF16, 0x7f7f, 0x1.fep127f},
    };
    static const uint16_t odd[3] = {0x7c00, 0x7e01, 0x3c00};
    float max;
    uint64_t bad;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fp8d_tensor t = {.dtype = rows[i].dtype, .data = &rows[i].bits, .size = 2};
        tensor_max_abs(&t, &max, &bad);
        ck_assert_msg(max == rows[i].value, "row %zu gave %a", i, (double)max);
        ck_assert_uint_eq(bad, 0);
    }
    struct fp8d_tensor t = {.dtype = FP8D_F16, .data = odd, .size = 6};
    tensor_max_abs(&t, &max, &bad);
    ck_assert(max == 1.0f);
    ck_assert_uint_eq(bad, 2);
}
END_TEST

/* The norm: the table's 3-4-5 triangle, and elements that are not finite left out. */
START_TEST(test_norm)
{
    static const float sides[4] = {3, -4, INFINITY, NAN};
    static const float large[2] = {3e30f, 4e30f}; /* whose squares leave float32 */
    static const uint16_t ones[4] = {0x3c00, 0xbc00, 0x3c00, 0xbc00};
    struct fp8d_tensor t = {.dtype = FP8D_F32, .data = sides, .size = sizeof sides};
    ck_assert(tensor_norm(&t) == 5);
    t = (struct fp8d_tensor){.dtype = FP8D_F32, .data = large, .size = sizeof large};
    ck_assert(fabs(tensor_norm(&t) / 5e30 - 1) < 1e-6);
    t = (struct fp8d_tensor){.dtype = FP8D_F16, .data = ones, .size = sizeof ones};
    ck_assert(tensor_norm(&t) == 2);
    t.size = 0;
    ck_assert(tensor_norm(&t) == 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_tensor_file");
    TCase *t = tcase_create("tensor_file");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, test_read_one);
    tcase_add_test(t, test_read_named);
    tcase_add_test(t, test_read_other_dtypes);
    tcase_add_test(t, test_write_replaces);
    tcase_add_test(t, test_write_fails);
    tcase_add_test(t, test_max_abs);
    tcase_add_test(t, test_norm);
    suite_add_tcase(s, t);
    return run_suite(s);
}
