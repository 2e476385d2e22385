#include "ckpt/safetensors.h"
#include "base/mem.h"
#include "tests/unit/run.h"
#include "tests/unit/st_blob.h"

#include <stdio.h>

/* --- fixture --- */

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

static void good(const char *json, size_t data)
{
    safetensors_free(st_good(json, data));
}

/* --- cases --- */

/* A tensor comes back with name, dtype, shape, place in the file and size. */
START_TEST(safetensors_reads_what_the_header_says)
{
    const char *json = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                       "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                       "\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"}}";
    struct safetensors *s = st_good(json, 16);
    size_t start = 8 + strlen(json);
    ck_assert_uint_eq(s->count, 2);
    ck_assert_uint_eq(s->header_bytes, strlen(json));
    ck_assert_uint_eq(s->file_bytes, start + 16);
    const struct safetensors_tensor *a = safetensors_find(s, "a"), *b = safetensors_find(s, "b");
    ck_assert_ptr_eq(a, &s->tensors[0]);
    ck_assert_ptr_eq(b, &s->tensors[1]);
    ck_assert(a->dtype == DTYPE_F32 && a->rank == 0 && a->offset == start && a->bytes == 4);
    ck_assert(b->dtype == DTYPE_BF16 && b->rank == 2 && b->dims[0] == 2 && b->dims[1] == 3);
    ck_assert(b->offset == start + 4 && b->bytes == 12);
    ck_assert_str_eq(safetensors_meta(s, "format"), "pt");
    ck_assert_str_eq(safetensors_meta(s, "a"), "");
    ck_assert_ptr_null(safetensors_meta(s, "b"));
    ck_assert_ptr_null(safetensors_find(s, "c"));
    ck_assert_ptr_null(safetensors_find(s, ""));
    safetensors_free(s);
}
END_TEST

/* A file of no tensors is good; nothing is found in it. */
START_TEST(safetensors_no_tensors)
{
    struct safetensors *s = st_good("{}", 0);
    ck_assert_uint_eq(s->count, 0);
    ck_assert_uint_eq(s->meta_count, 0);
    ck_assert_ptr_null(safetensors_find(s, "x"));
    ck_assert_ptr_null(safetensors_meta(s, "x"));
    safetensors_free(s);
    safetensors_free(NULL);
}
END_TEST

/* Tensors are sorted by the bytes of their names, whatever the order of header and data. */
START_TEST(safetensors_sorted_by_name)
{
    struct safetensors *s =
        st_good("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                "\"\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":"
                "[2,3]},"
                "\"B\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                3);
    ck_assert_str_eq(s->tensors[0].name, "B");
    ck_assert_str_eq(s->tensors[1].name, "b");
    ck_assert_str_eq(s->tensors[2].name, "\xc3\xa9");
    safetensors_free(s);
}
END_TEST

/* JSON white space is accepted before, inside and after the object, as the reference does. */
START_TEST(safetensors_white_space_around_the_header)
{
    good(" \t\r\n" ST_ONE("F32", "[1]", "[0,4]"), 4);
    good(ST_ONE("F32", "[1]", "[0,4]") "   \n\t\r  ", 4);
    good("{ \"t\" :\n{ \"dtype\" : \"F32\", \"shape\" : [ 1 ] ,\t\"data_offsets\" : [ 0 , 4 ] } }",
         4);
}
END_TEST

/* Data may begin at any byte, and a tensor at any byte of it. */
START_TEST(safetensors_unaligned_data)
{
    char json[256];
    for (int pad = 0; pad < 8; pad++) {
        snprintf(json, sizeof json,
                 "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                 "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[1,9]}}%*s",
                 pad, "");
        struct safetensors *s = st_good(json, 9);
        ck_assert_uint_eq(safetensors_find(s, "b")->offset, 8 + strlen(json) + 1);
        safetensors_free(s);
    }
}
END_TEST

/* Zero-size tensors have no bytes and may share a boundary with each other and with a real one. */
START_TEST(safetensors_zero_size_tensors_share_a_boundary)
{
    struct safetensors *s = st_good(
        "{\"z\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[4,4]},"
        "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
        "\"x\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
        8);
    ck_assert_uint_eq(safetensors_find(s, "z")->bytes, 0);
    ck_assert_uint_eq(safetensors_find(s, "z")->rank, 2);
    ck_assert_uint_eq(safetensors_find(s, "b")->bytes, 4);
    safetensors_free(s);
}
END_TEST

/* __metadata__ may be null, empty, or absent, and stand anywhere. */
START_TEST(safetensors_metadata_forms)
{
    good("{\"__metadata__\":null}", 0);
    good("{\"__metadata__\":{}}", 0);
    struct safetensors *s =
        st_good("{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                "\"__metadata__\":{\"k\\n\":\"\\u20ac\\u0001\",\"a\":\"b\"}}",
                1);
    ck_assert_uint_eq(s->meta_count, 2);
    ck_assert_str_eq(s->meta[0].key, "a");
    ck_assert_str_eq(safetensors_meta(s, "k\n"), "\xe2\x82\xac\x01");
    ck_assert_uint_eq(s->count, 1);
    safetensors_free(s);
}
END_TEST

/* Unknown keys inside an entry are ignored, whatever their value; key order does not matter. */
START_TEST(safetensors_unknown_keys_are_ignored)
{
    good("{\"t\":{\"x\":[{\"y\":null}],\"data_offsets\":[0,4],\"shape\":[1],\"z\":1.5e3,"
         "\"dtype\":\"F32\"}}",
         4);
}
END_TEST

/* Escapes in names are decoded; names of 1024 bytes and of any script are good. */
START_TEST(safetensors_names)
{
    char json[1200], name[1025];
    struct safetensors *s = st_good("{\"\\u0061\\ud83d\\ude00\\\"\\\\\\/\":{\"dtype\":\"U8\","
                                    "\"shape\":[1],\"data_offsets\":[0,1]}}",
                                    1);
    ck_assert_str_eq(s->tensors[0].name, "a\xf0\x9f\x98\x80\"\\/");
    safetensors_free(s);
    memset(name, 'n', 1024);
    name[1024] = 0;
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
             name);
    s = st_good(json, 1);
    ck_assert_ptr_nonnull(safetensors_find(s, name));
    safetensors_free(s);
}
END_TEST

/* Elements below a byte count in bits: six F4 take 3 bytes, four F6 take 3. */
START_TEST(safetensors_sub_byte_dtypes)
{
    good(ST_ONE("F4", "[6]", "[0,3]"), 3);
    good(ST_ONE("F6_E2M3", "[4]", "[0,3]"), 3);
    good(ST_ONE("F6_E3M2", "[2,2]", "[0,3]"), 3);
}
END_TEST

/* Rank 8 is the highest that is read. */
START_TEST(safetensors_rank_8)
{
    struct safetensors *s = st_good(ST_ONE("U8", "[1,2,1,2,1,2,1,2]", "[0,16]"), 16);
    ck_assert_uint_eq(s->tensors[0].rank, 8);
    ck_assert_uint_eq(s->tensors[0].dims[7], 2);
    safetensors_free(s);
}
END_TEST

/* A header of exactly the cap is read; one byte more is refused before the file's size matters. */
START_TEST(safetensors_header_cap_is_exact)
{
    struct fault f = {0};
    struct safetensors *s = NULL;
    const char *json = ST_ONE("F32", "[1]", "[0,4]");
    size_t n = strlen(json);
    struct safetensors_limits limits = {.header_cap = n};
    ck_assert_int_eq(safetensors_parse(json, n, 8 + n + 4, &limits, &s, &f), 0);
    safetensors_free(s);
    limits.header_cap = n - 1;
    s = NULL;
    ck_assert_int_eq(safetensors_parse(json, n, 5, &limits, &s, &f), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_ptr_null(s);
    ck_assert_ptr_nonnull(strstr(f.text, "needed at most"));
}
END_TEST

/* The format's limit of 100 000 000 bytes holds whatever cap is asked for; at it, the file's size
 * decides. */
START_TEST(safetensors_header_hard_limit)
{
    struct fault f = {0};
    struct safetensors_limits limits = {.header_cap = UINT64_MAX};
    ck_assert_int_eq(safetensors_check_size(100000000, 100000008, &limits, &f), 0);
    ck_assert_int_eq(safetensors_check_size(100000000, 100000007, &limits, &f), FP8D_EDATA_LOSS);
    ck_assert_ptr_nonnull(strstr(f.text, "ends at byte 100000008, but the file has 100000007"));
    ck_assert_int_eq(safetensors_check_size(100000001, UINT64_MAX, &limits, &f), FP8D_EDATA_LOSS);
    ck_assert_ptr_nonnull(strstr(f.text, "100000001 bytes, needed at most 100000000"));
    ck_assert_int_eq(safetensors_check_size(16777216, 1u << 30, NULL, &f), 0);
    ck_assert_int_eq(safetensors_check_size(16777217, 1u << 30, NULL, &f),
                     FP8D_ERESOURCE_EXHAUSTED);
}
END_TEST

/* More tensors than the cap are refused, with the cap; exactly the cap are read. */
START_TEST(safetensors_tensor_cap_is_exact)
{
    struct fault f = {0};
    struct safetensors *s = NULL;
    struct safetensors_limits limits = {.tensor_cap = 20};
    for (int n = 20; n <= 21; n++) {
        char json[4096] = "{";
        for (int i = 0; i < n; i++)
            sprintf(json + strlen(json),
                    "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                    i ? "," : "", i);
        strcat(json, "}");
        int rc = safetensors_parse(json, strlen(json), 8 + strlen(json), &limits, &s, &f);
        ck_assert_int_eq(rc, n == 20 ? 0 : FP8D_ERESOURCE_EXHAUSTED);
        if (n == 20)
            safetensors_free(s);
    }
    ck_assert_ptr_nonnull(strstr(f.text, "more tensors than the limit 20"));
}
END_TEST

/* Thousands of tensors with the shortest of names stay within the memory limit. */
START_TEST(safetensors_many_short_names)
{
    size_t n = 20000, room = n * 64, at = 1;
    char *json = malloc(room);
    strcpy(json, "{");
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(json + at, room - at,
                               "%s\"%zx\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":"
                               "[%zu,%zu]}",
                               i ? "," : "", i, i, i + 1);
    strcpy(json + at, "}");
    struct safetensors *s = st_good(json, n);
    ck_assert_uint_eq(s->count, n);
    ck_assert_uint_eq(safetensors_find(s, "4e1f")->offset, 8 + strlen(json) + 0x4e1f);
    safetensors_free(s);
    free(json);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ckpt/safetensors");
    TCase *c = tcase_create("safetensors");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, safetensors_reads_what_the_header_says);
    tcase_add_test(c, safetensors_no_tensors);
    tcase_add_test(c, safetensors_sorted_by_name);
    tcase_add_test(c, safetensors_white_space_around_the_header);
    tcase_add_test(c, safetensors_unaligned_data);
    tcase_add_test(c, safetensors_zero_size_tensors_share_a_boundary);
    tcase_add_test(c, safetensors_metadata_forms);
    tcase_add_test(c, safetensors_unknown_keys_are_ignored);
    tcase_add_test(c, safetensors_names);
    tcase_add_test(c, safetensors_sub_byte_dtypes);
    tcase_add_test(c, safetensors_rank_8);
    tcase_add_test(c, safetensors_header_cap_is_exact);
    tcase_add_test(c, safetensors_header_hard_limit);
    tcase_add_test(c, safetensors_tensor_cap_is_exact);
    tcase_add_test(c, safetensors_many_short_names);
    suite_add_tcase(s, c);
    return run_suite(s);
}
