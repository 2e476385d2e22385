#include "ckpt/safetensors.h"
#include "base/mem.h"
#include "tests/unit/run.h"
#include "tests/unit/st_blob.h"

#include <stdio.h>

/* --- fixture --- */

#define E FP8D_EDATA_LOSS
#define U8_1(name, offsets)                                                                        \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":" offsets "}"

static int64_t blocks;

static void setup(void)
{
    blocks = mem_live_blocks();
}

static void teardown(void)
{
    ck_assert_int_eq(mem_live_blocks(), blocks);
}

/* --- helpers --- */

/* One line of the manifest: "file ok" or "file part of the sentence". */
static void replay(const char *dir, char *line)
{
    char path[1024];
    struct io_stat st;
    struct fault f = {0};
    struct safetensors *s = NULL;
    char *expect = strchr(line, ' ');
    line[strcspn(line, "\n")] = 0;
    *expect++ = 0;
    snprintf(path, sizeof path, "%s/%s", dir, line);
    int fd = io_open_read(&io_posix, path, &st, &f);
    ck_assert_msg(fd >= 0, "%s", f.text);
    int rc = safetensors_read(&io_posix, fd, &st, NULL, &s, &f);
    io_posix.close(NULL, fd);
    if (!strcmp(expect, "ok"))
        ck_assert_msg(rc == 0, "%s: %s", line, f.text);
    else
        ck_assert_msg(rc < 0 && !s && strstr(f.text, expect), "%s: %d \"%s\" lacks \"%s\"", line,
                      rc, f.text, expect);
    safetensors_free(s);
}

/* --- cases: names --- */

/* A tensor's name may stand once only, however it is written. */
START_TEST(evil_duplicate_tensor)
{
    st_bad("{" U8_1("t", "[0,1]") "," U8_1("t", "[0,1]") "}", 1, E, "\"t\"", "stands twice",
           "needed once");
    st_bad("{" U8_1("t", "[0,1]") "," U8_1("\\u0074", "[1,2]") "}", 2, E, "\"t\"", "stands twice",
           "needed once");
}
END_TEST

/* No key may stand twice, at any level. */
START_TEST(evil_duplicate_keys)
{
    st_bad("{\"__metadata__\":{},\"__metadata__\":null}", 0, E, "__metadata__", "stands twice",
           "needed once");
    st_bad("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, E, "__metadata__", "duplicate",
           "\"a\"");
    st_bad("{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, E,
           "\"t\"", "duplicate", "\"dtype\"");
    st_bad("{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1, E,
           "\"t\"", "duplicate", "\"shape\"");
    st_bad("{\"t\":{\"x\":{\"y\":1,\"y\":1}}}", 0, E, "\"t\"", "duplicate", "\"y\"");
}
END_TEST

/* Names are 1 to 1024 bytes of printable UTF-8; others are shown escaped. */
START_TEST(evil_tensor_names)
{
    char json[1300] = "{\"";
    st_bad("{" U8_1("", "[0,1]") "}", 1, E, "tensor \"\"", "name has 0 bytes", "needed 1 to 1024");
    st_bad("{" U8_1("a\\nb", "[0,1]") "}", 1, E, "\"a\\x0ab\"", "name has 3 bytes", "printable");
    st_bad("{" U8_1("a\\u0085", "[0,1]") "}", 1, E, "\"a\\xc2\\x85\"", "name has 3 bytes",
           "printable");
    memset(json + 2, 'n', 1025);
    strcpy(json + 1027, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    st_bad(json, 1, E, "\"nnn", "name has 1025 bytes", "needed 1 to 1024");
}
END_TEST

/* __metadata__ is an object of strings or null. */
START_TEST(evil_metadata)
{
    st_bad("{\"__metadata__\":{\"a\":1}}", 0, E, "\"a\"", "is an integer", "needed a string");
    st_bad("{\"__metadata__\":{\"a\":null}}", 0, E, "\"a\"", "is null", "needed a string");
    st_bad("{\"__metadata__\":{\"a\":{}}}", 0, E, "\"a\"", "is an object", "needed a string");
    st_bad("{\"__metadata__\":[]}", 0, E, "__metadata__", "is an array", "needed an object");
    st_bad("{\"__metadata__\":\"\"}", 0, E, "__metadata__", "is a string", "needed an object");
}
END_TEST

/* --- cases: fields --- */

/* An entry is an object. */
START_TEST(evil_entry_types)
{
    st_bad("{\"t\":1}", 0, E, "\"t\"", "entry is an integer", "needed an object");
    st_bad("{\"t\":null}", 0, E, "\"t\"", "entry is null", "needed an object");
    st_bad("{\"t\":[]}", 0, E, "\"t\"", "entry is an array", "needed an object");
}
END_TEST

/* A missing field is named. */
START_TEST(evil_missing_fields)
{
    st_bad("{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, E, "\"t\"", "dtype is missing",
           "needed a name");
    st_bad("{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, E, "\"t\"", "shape is missing",
           "needed an array");
    st_bad("{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, E, "\"t\"", "data_offsets is missing",
           "needed an array");
}
END_TEST

/* A dtype is one of the format's spellings, exactly. */
START_TEST(evil_dtype)
{
    st_bad(ST_ONE("f32", "[1]", "[0,4]"), 4, E, "\"t\"", "dtype is \"f32\"", "needed a name");
    st_bad(ST_ONE("F8_E4M3FN", "[1]", "[0,1]"), 1, E, "\"t\"", "\"F8_E4M3FN\"", "needed a name");
    st_bad(ST_ONE("", "[1]", "[0,1]"), 1, E, "\"t\"", "dtype is \"\"", "needed a name");
    st_bad("{\"t\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, E, "\"t\"",
           "dtype is an integer", "needed a name");
}
END_TEST

/* A shape is an array of integers of 0 or more, at most 8 of them. */
START_TEST(evil_shape)
{
    const char *integers = "needed an array of integers",
               *integer = "needed an integer of 0 or more";
    st_bad(ST_ONE("U8", "\"1\"", "[0,1]"), 1, E, "\"t\"", "shape is a string", integers);
    st_bad(ST_ONE("U8", "1", "[0,1]"), 1, E, "\"t\"", "shape is an integer", integers);
    st_bad(ST_ONE("U8", "null", "[0,1]"), 1, E, "\"t\"", "shape is null", integers);
    st_bad(ST_ONE("U8", "[1,-1]", "[0,1]"), 1, E, "\"t\"", "shape[1] is -1", integer);
    st_bad(ST_ONE("U8", "[1.0]", "[0,1]"), 1, E, "\"t\"", "shape[0] is written as a fraction (1)",
           integer);
    st_bad(ST_ONE("U8", "[1e0]", "[0,1]"), 1, E, "\"t\"", "shape[0] is written as a fraction (1)",
           integer);
    st_bad(ST_ONE("U8", "[\"1\"]", "[0,1]"), 1, E, "\"t\"", "shape[0] is a string", integer);
    st_bad(ST_ONE("U8", "[true]", "[0,1]"), 1, E, "\"t\"", "shape[0] is a boolean", integer);
    st_bad(ST_ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, E, "\"t\"", "shape has 9 numbers",
           "needed at most 8");
}
END_TEST

/* data_offsets are two integers of 0 or more, the end not before the begin. */
START_TEST(evil_offsets)
{
    st_bad(ST_ONE("U8", "[1]", "[1]"), 1, E, "\"t\"", "data_offsets has 1 numbers", "exactly 2");
    st_bad(ST_ONE("U8", "[1]", "[0,1,2]"), 1, E, "\"t\"", "data_offsets has 3 numbers",
           "exactly 2");
    st_bad(ST_ONE("U8", "[1]", "{}"), 1, E, "\"t\"", "data_offsets is an object",
           "needed an array");
    st_bad(ST_ONE("U8", "[1]", "[-1,0]"), 1, E, "\"t\"", "data_offsets[0] is -1", "0 or more");
    st_bad(ST_ONE("U8", "[1]", "[0,1.0]"), 1, E, "\"t\"", "data_offsets[1] is written",
           "0 or more");
    st_bad(ST_ONE("U8", "[1]", "[1,0]"), 1, E, "\"t\"", "end at 0", "at least their begin 1");
}
END_TEST

/* Numbers of 2^63 and more are refused as too big, and never wrap. */
START_TEST(evil_numbers_too_big)
{
    const char *need = "needed a number below 2^63";
    st_bad(ST_ONE("F32", "[2,18446744073709551614]", "[0,4]"), 4, E, "\"t\"",
           "too big integer near '18446744073709551614'", need);
    st_bad(ST_ONE("F32", "[9223372036854775808]", "[0,4]"), 4, E, "\"t\"", "9223372036854775808",
           need);
    st_bad(ST_ONE("F32", "[18446744073709551617]", "[0,4]"), 4, E, "\"t\"", "18446744073709551617",
           need);
    st_bad(ST_ONE("F32", "[1]", "[0,18446744073709551620]"), 4, E, "\"t\"", "18446744073709551620",
           need);
    st_bad(ST_ONE("F32", "[-9223372036854775809]", "[0,4]"), 4, E, "\"t\"", "negative integer",
           need);
}
END_TEST

/* A product of dimensions, or of elements and bits, that overflows is refused, even to 0. */
START_TEST(evil_products_overflow)
{
    const char *need = "needed a product below 2^64 bits";
    st_bad(ST_ONE("F32", "[2,9223372036854775807]", "[0,4]"), 4, E, "\"t\"",
           "shape [2, 9223372036854775807] of F32 overflows", need);
    st_bad(ST_ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, E, "\"t\"",
           "[4294967296, 4294967296] of U8 overflows", need);
    st_bad(ST_ONE("U8", "[3,6148914691236517205,5]", "[0,1]"), 1, E, "\"t\"", "overflows", need);
    st_bad(ST_ONE("F64", "[288230376151711744]", "[0,0]"), 0, E, "\"t\"",
           "[288230376151711744] of F64 overflows", need);
    st_bad(ST_ONE("U8", "[4294967296,4294967296,0]", "[0,0]"), 0, E, "\"t\"", "overflows", need);
}
END_TEST

/* Elements below a byte must fill whole bytes. */
START_TEST(evil_part_of_a_byte)
{
    st_bad(ST_ONE("F4", "[5]", "[0,3]"), 3, E, "\"t\"", "shape [5] of F4 takes 20 bits",
           "needed whole bytes");
    st_bad(ST_ONE("F6_E2M3", "[2]", "[0,2]"), 2, E, "\"t\"", "takes 12 bits", "needed whole bytes");
}
END_TEST

/* data_offsets span exactly the bytes of shape and dtype. */
START_TEST(evil_span_against_shape)
{
    st_bad(ST_ONE("I32", "[2,2]", "[0,4]"), 4, E, "\"t\"", "[0, 4] hold 4 bytes",
           "needed 16 for shape [2, 2] of I32");
    st_bad(ST_ONE("I32", "[1]", "[0,8]"), 8, E, "\"t\"", "hold 8 bytes", "needed 4 for shape [1]");
    st_bad(ST_ONE("I32", "[0]", "[0,4]"), 4, E, "\"t\"", "hold 4 bytes", "needed 0 for shape [0]");
    st_bad(ST_ONE("I32", "[]", "[0,0]"), 0, E, "\"t\"", "hold 0 bytes", "needed 4 for shape []");
}
END_TEST

/* --- cases: layout --- */

/* Data without an owner is refused: at the front and between tensors. */
START_TEST(evil_holes)
{
    st_bad("{" U8_1("t", "[1,2]") "}", 2, E, "\"t\"", "begins at 1",
           "needed 0, where the header ends");
    st_bad("{" U8_1("a", "[0,1]") "," U8_1("b", "[3,4]") "}", 4, E, "\"b\"", "begins at 3",
           "needed 1, where tensor \"a\" ends: there is a hole");
}
END_TEST

/* Bytes with two owners are refused: partly shared, fully shared, and ten times over. */
START_TEST(evil_overlaps)
{
    char json[2000] = "{";
    st_bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
           6, E, "\"b\"", "begins at 2", "needed 4, where tensor \"a\" ends: they overlap");
    for (int i = 0; i < 10; i++)
        sprintf(json + strlen(json),
                "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}",
                i ? "," : "", i);
    strcat(json, "}");
    st_bad(json, 16, E, "\"t", "begins at 0", "needed 16");
}
END_TEST

/* A zero-size tensor stands on a boundary, not inside another tensor or beyond the data. */
START_TEST(evil_zero_size_off_a_boundary)
{
    st_bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
           4, E, "\"z\"", "begins at 2", "needed 4");
    st_bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,5]}}",
           5, E, "\"z\"", "begins at 5", "needed 4");
}
END_TEST

/* The last tensor ends where the file ends, exactly: no byte missing, none too many. */
START_TEST(evil_end_of_file)
{
    st_bad(ST_ONE("I32", "[2,2]", "[0,16]"), 14, E, "\"t\"", "14 bytes of data", "needed 16");
    st_bad(ST_ONE("I32", "[1]", "[0,4]"), 8, E, "\"t\"", "8 bytes of data", "needed 4");
    st_bad(ST_ONE("I32", "[1]", "[0,4]"), 0, E, "\"t\"", "0 bytes of data", "needed 4");
    st_bad("{}", 1, E, "the header", "1 bytes of data", "needed 0");
}
END_TEST

/* --- cases: files --- */

/* Every committed file is loaded or refused as its manifest says. */
START_TEST(evil_manifest_is_obeyed)
{
    char dir[400], path[512], line[500];
    const char *root = getenv("FP8D_SRCDIR");
    int rows = 0;
    snprintf(dir, sizeof dir, "%s/tests/data/evil", root ? root : ".");
    snprintf(path, sizeof path, "%s/manifest.txt", dir);
    FILE *in = fopen(path, "r");
    ck_assert_msg(in != NULL, "%s is missing", path);
    for (; fgets(line, sizeof line, in); rows++)
        replay(dir, line);
    fclose(in);
    ck_assert_int_ge(rows, 150);
}
END_TEST

static TCase *case_rules(void)
{
    TCase *c = tcase_create("rules");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, evil_duplicate_tensor);
    tcase_add_test(c, evil_duplicate_keys);
    tcase_add_test(c, evil_tensor_names);
    tcase_add_test(c, evil_metadata);
    tcase_add_test(c, evil_entry_types);
    tcase_add_test(c, evil_missing_fields);
    tcase_add_test(c, evil_dtype);
    tcase_add_test(c, evil_shape);
    tcase_add_test(c, evil_offsets);
    tcase_add_test(c, evil_numbers_too_big);
    tcase_add_test(c, evil_products_overflow);
    tcase_add_test(c, evil_part_of_a_byte);
    tcase_add_test(c, evil_span_against_shape);
    tcase_add_test(c, evil_holes);
    tcase_add_test(c, evil_overlaps);
    tcase_add_test(c, evil_zero_size_off_a_boundary);
    tcase_add_test(c, evil_end_of_file);
    tcase_add_test(c, evil_manifest_is_obeyed);
    return c;
}

int main(void)
{
    Suite *s = suite_create("ckpt/safetensors_evil");
    suite_add_tcase(s, case_rules());
    return run_suite(s);
}
