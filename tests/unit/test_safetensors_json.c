#include "ckpt/json.h"
#include "ckpt/safetensors.h"
#include "tests/unit/run.h"
#include "tests/unit/st_blob.h"

#include <pthread.h>
#include <stdio.h>

/* --- fixture --- */

#define E FP8D_EDATA_LOSS

static int64_t blocks;

static void setup(void)
{
    json_setup();
    blocks = mem_live_blocks();
}

static void teardown(void)
{
    ck_assert_int_eq(mem_live_blocks(), blocks);
}

/* --- helpers --- */

/* Parse with a cap of `cap` bytes; the tree is dropped again. */
static int parse(const char *text, size_t cap, struct fault *f)
{
    struct arena mem;
    json_t *v = NULL;
    arena_init(&mem, cap);
    int rc = json_parse(text, strlen(text), &mem, &v, f);
    ck_assert_int_eq(v == NULL, rc != 0);
    ck_assert_uint_le(mem.used, cap);
    arena_fini(&mem);
    return rc;
}

static void *parse_often(void *arg)
{
    struct fault f;
    intptr_t bad = 0;
    for (int i = 0; i < 300; i++) {
        bad += parse("{\"a\":[1,2,{\"b\":\"c\"}]}", 10000, &f) != 0;
        bad += parse("{\"a\":[1,2,{\"b\":\"c\"}]}", 300, &f) != FP8D_ERESOURCE_EXHAUSTED;
        json_t *v = json_pack("{s:i}", "x", i);
        bad += !v;
        json_decref(v);
    }
    (void)arg;
    return (void *)bad;
}

/* A file whose header length says n and which has `data` bytes behind the 8. */
static void bad_length(uint64_t n, size_t data, int code, const char *found, const char *needed)
{
    struct fake_file file;
    struct fault f = {0};
    struct safetensors *s = NULL;
    unsigned char bytes[64] = {0};
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> (8 * i));
    bytes[8] = '{';
    fake_file_init(&file, bytes, 8 + data);
    ck_assert_int_eq(safetensors_read(&file.io, 7, &file.st, NULL, &s, &f), code);
    ck_assert_msg(strstr(f.text, found) && strstr(f.text, needed), "%s", f.text);
}

/* --- cases: documents --- */

/* A document is parsed into the arena and needs no other memory. */
START_TEST(json_tree_lives_in_the_arena)
{
    struct arena mem;
    struct fault f = {0};
    json_t *v = NULL;
    const char *text = " {\"a\": [1, 2.5, null, \"x\"]} ";
    arena_init(&mem, 10000);
    ck_assert_int_eq(json_parse(text, strlen(text), &mem, &v, &f), 0);
    json_t *a = json_object_get(v, "a");
    ck_assert_uint_eq(json_array_size(a), 4);
    ck_assert_int_eq(json_integer_value(json_array_get(a, 0)), 1);
    ck_assert_str_eq(json_string_value(json_array_get(a, 3)), "x");
    arena_fini(&mem);
}
END_TEST

/* A document ends at its end: text behind the value is refused, and so are duplicate keys. */
START_TEST(json_document_is_one_value)
{
    struct fault f = {0};
    ck_assert_int_eq(parse("[]", 1000, &f), 0);
    ck_assert_int_eq(parse("7", 1000, &f), 0);
    ck_assert_int_eq(parse("", 1000, &f), E);
    ck_assert_int_eq(parse("[] []", 1000, &f), E);
    ck_assert_int_eq(parse("{\"a\":1,\"a\":1}", 1000, &f), E);
    ck_assert_ptr_nonnull(strstr(f.text, "duplicate"));
    ck_assert_int_eq(parse("{\"a\":99999999999999999999}", 1000, &f), E);
    ck_assert_ptr_nonnull(strstr(f.text, "needed a number below 2^63"));
}
END_TEST

/* 32 levels are parsed, 33 are not; brackets inside strings are no levels. */
START_TEST(json_depth_limit_is_exact)
{
    struct fault f = {0};
    char text[200];
    for (int n = 32; n <= 33; n++) {
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        text[2 * n] = 0;
        ck_assert_int_eq(parse(text, 100000, &f), n == 32 ? 0 : E);
    }
    ck_assert_ptr_nonnull(strstr(f.text, "nests deeper than 32"));
    memset(text, '[', 100);
    text[0] = '"', text[50] = '\\', text[51] = '"', text[99] = '"', text[100] = 0;
    ck_assert_int_eq(parse(text, 100000, &f), 0);
}
END_TEST

/* Whatever allocation the cap refuses, parsing ends cleanly: every cap up to what is needed. */
START_TEST(json_every_cap_is_clean)
{
    struct fault f = {0};
    const char *text =
        "{\"a\":[1,2.5,{\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\":\"cccccccccccccccccccc"
        "cccccccccccccccccccccccccc\\u20ac\"}],\"k\":null,\"l\":[[],[],{},{}],"
        "\"number\":12345678901234567,\"real\":1234567890.1234567890e10}";
    size_t cap = 0;
    for (; cap < 100000; cap += 8) {
        int rc = parse(text, cap, &f);
        if (!rc)
            break;
        ck_assert_int_eq(rc, FP8D_ERESOURCE_EXHAUSTED);
    }
    ck_assert_uint_gt(cap, 1000);
    ck_assert_uint_lt(cap, 100000);
    ck_assert_ptr_nonnull(strstr(f.text, "JSON needs more memory than its limit of"));
}
END_TEST

/* Every allocation that fails while parsing is -ENOMEM, and nothing is left behind. */
START_TEST(json_every_allocation_fails_once)
{
    struct fault f = {0};
    static char text[20000] = "[\"";
    memset(text + 2, 's', 15000);
    strcpy(text + 15002, "\",[[],[],[],[],{\"a\":{}}]]");
    int n = 0;
    for (;; n++) {
        mem_fault_arm(n, false);
        int rc = parse(text, 1 << 20, &f);
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert_int_eq(rc, fired ? -ENOMEM : 0);
        if (!fired)
            break;
    }
    ck_assert_int_ge(n, 4);
}
END_TEST

/* Budgets are a thread's own, and other use of jansson beside a parse is not charged. */
START_TEST(json_budgets_of_threads_are_apart)
{
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, parse_often, NULL), 0);
    for (int i = 0; i < 3; i++) {
        void *bad = NULL;
        pthread_join(t[i], &bad);
        ck_assert_ptr_null(bad);
    }
}
END_TEST

/* Members are walked in order; memory is that of one member, not of all. */
START_TEST(json_members_one_at_a_time)
{
    struct json_members m;
    struct fault f = {0};
    const char *name;
    json_t *v;
    static char text[40000] = " { ";
    for (int i = 0; i < 1000; i++)
        sprintf(text + strlen(text), "%s\"n%d\" : [%d]", i ? " ,\n" : "", i, i);
    strcat(text, " } ");
    json_members_init(&m, text, strlen(text), 3000);
    int n = 0;
    while (json_members_next(&m, &name, &v, &f) == 1) {
        char want[16];
        sprintf(want, "n%d", n);
        ck_assert_str_eq(name, want);
        ck_assert_int_eq(json_integer_value(json_array_get(v, 0)), n++);
    }
    json_members_fini(&m);
    ck_assert_int_eq(n, 1000);
    ck_assert_int_eq(f.code, 0);
}
END_TEST

/* --- cases: length --- */

/* An empty file and one too short for the length field are refused with their size. */
START_TEST(evil_file_without_length)
{
    struct fake_file file;
    struct fault f = {0};
    struct safetensors *s = NULL;
    fake_file_init(&file, "1234567", 0);
    ck_assert_int_eq(safetensors_read(&file.io, 7, &file.st, NULL, &s, &f), E);
    ck_assert_ptr_nonnull(strstr(f.text, "the file is empty"));
    file.st.size = 7;
    ck_assert_int_eq(safetensors_read(&file.io, 7, &file.st, NULL, &s, &f), E);
    ck_assert_ptr_nonnull(strstr(f.text, "has 7 bytes, needed at least the 8"));
}
END_TEST

/* A header past the end of the file is refused, and 8 + N never wraps. */
START_TEST(evil_header_past_the_end)
{
    bad_length(60, 0, E, "header of 60 bytes ends at byte 68", "the file has 8");
    bad_length(2, 1, E, "ends at byte 10", "the file has 9");
    bad_length(UINT64_MAX - 7, 1, E, "18446744073709551608 bytes", "needed at most 100000000");
    bad_length((uint64_t)0xff << 56 | 2, 1, E, "18374686479671623682", "needed at most 100000000");
}
END_TEST

/* A header above a limit is reported as that, whatever the file's size, with the limit. */
START_TEST(evil_header_above_the_limits)
{
    bad_length(100000001, 1, E, "100000001 bytes", "needed at most 100000000, the format's limit");
    bad_length(16777217, 1, FP8D_ERESOURCE_EXHAUSTED, "16777217 bytes", "needed at most 16777216");
}
END_TEST

/* --- cases: JSON --- */

/* The header is one JSON object and white space: NUL padding, text behind it, other values no. */
START_TEST(evil_header_is_no_single_object)
{
    struct fault f = {0};
    struct safetensors *s = NULL;
    st_bad("", 0, E, "header", "ends at byte 0", "needed an object");
    st_bad("{", 0, E, "header", "ends at byte 1", "needed a name");
    st_bad("[]", 0, E, "header", "has '['", "needed an object");
    st_bad("null", 0, E, "header", "has 'n'", "needed an object");
    st_bad("\xff", 0, E, "header", "has '\\xff'", "needed an object");
    st_bad("{}x", 0, E, "header", "byte 2 has 'x'", "needed nothing but white space");
    st_bad("{} {}", 0, E, "header", "byte 3 has '{'", "needed nothing but white space");
    st_bad("{,}", 0, E, "header", "byte 1 has ','", "needed a name in quotes");
    ck_assert_int_eq(safetensors_parse("{}\0\0", 4, 12, NULL, &s, &f), E);
    ck_assert_ptr_nonnull(strstr(f.text, "byte 2 has '\\x00', needed nothing but white space"));
}
END_TEST

/* Broken JSON inside an entry is reported with the tensor's name and the byte. */
START_TEST(evil_broken_entry_names_tensor_and_byte)
{
    st_bad("{\"t\" 1}", 0, E, "\"t\"", "JSON at byte 5 has '1'", "needed ':'");
    st_bad("{\"t\":{\"dtype\":}}", 0, E, "\"t\"", "JSON before byte 15", "near '}'");
    st_bad("{\"__metadata__\":{} 2}", 0, E, "header", "JSON at byte 19 has '2'", "',' or '}'");
    st_bad("{\"t\":{\"x\":01}}", 0, E, "\"t\"", "JSON before byte", "");
}
END_TEST

/* Invalid UTF-8 and NUL in names or values are refused. */
START_TEST(evil_text_in_json)
{
    st_bad("{\"\xc3\x28\":1}", 0, E, "header", "JSON before byte", "unable to decode byte 0xc3");
    st_bad("{\"\xc0\xaf\":1}", 0, E, "header", "JSON before byte", "unable to decode byte 0xc0");
    st_bad("{\"\\ud800\":1}", 0, E, "header", "JSON before byte", "invalid Unicode");
    st_bad("{\"a\\u0000b\":1}", 0, E, "header", "JSON before byte", "");
    st_bad("{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, E, "__metadata__", "JSON before byte", "");
    st_bad("{\"__metadata__\":{\"\\u0000\":\"\"}}", 0, E, "__metadata__", "JSON before byte", "");
}
END_TEST

/* Nesting stops at 32 levels, far below what the stack can bear. */
START_TEST(evil_nesting_is_bounded)
{
    static char json[200000];
    strcpy(json, "{\"t\":");
    memset(json + 5, '[', sizeof json - 6);
    st_bad(json, 0, E, "\"t\"", "nests deeper than 32", "needed at most 32");
}
END_TEST

/* JSON that takes more memory than ten times its length is refused, not obeyed. */
START_TEST(evil_json_bloat_hits_the_budget)
{
    static char json[400000] = "{\"t\":{\"x\":[";
    for (size_t at = strlen(json); at + 8 < sizeof json; at += 3)
        memcpy(json + at, "[],", 4);
    strcat(json, "1]}}");
    st_bad(json, 0, FP8D_ERESOURCE_EXHAUSTED, "\"t\"", "JSON needs more memory", "limit of 40");
}
END_TEST

/* A string token that meets the end of the budget is refused cleanly: the case in which jansson
 * 2.14 itself would run past its buffer. */
START_TEST(evil_long_string_at_the_end_of_the_budget)
{
    static char json[300000];
    for (int lists = 15000; lists < 90000; lists += 2500) {
        struct fault f = {0};
        struct safetensors *s = NULL;
        size_t at = (size_t)sprintf(json, "{\"t\":{\"x\":[");
        for (int i = 0; i < lists && at < 280000; i++, at += 3)
            memcpy(json + at, "[],", 3);
        json[at++] = '"';
        memset(json + at, 's', sizeof json - at - 6);
        strcpy(json + sizeof json - 6, "\"]}}");
        int rc = st_read(json, 0, &s, &f);
        ck_assert(rc == FP8D_ERESOURCE_EXHAUSTED || rc == E);
        ck_assert_ptr_null(s);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ckpt/json");
    TCase *c = tcase_create("json");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, json_tree_lives_in_the_arena);
    tcase_add_test(c, json_document_is_one_value);
    tcase_add_test(c, json_depth_limit_is_exact);
    tcase_add_test(c, json_every_cap_is_clean);
    tcase_add_test(c, json_every_allocation_fails_once);
    tcase_add_test(c, json_budgets_of_threads_are_apart);
    tcase_add_test(c, json_members_one_at_a_time);
    tcase_add_test(c, evil_file_without_length);
    tcase_add_test(c, evil_header_past_the_end);
    tcase_add_test(c, evil_header_above_the_limits);
    tcase_add_test(c, evil_header_is_no_single_object);
    tcase_add_test(c, evil_broken_entry_names_tensor_and_byte);
    tcase_add_test(c, evil_text_in_json);
    tcase_add_test(c, evil_nesting_is_bounded);
    tcase_add_test(c, evil_json_bloat_hits_the_budget);
    tcase_add_test(c, evil_long_string_at_the_end_of_the_budget);
    suite_add_tcase(s, c);
    return run_suite(s);
}
