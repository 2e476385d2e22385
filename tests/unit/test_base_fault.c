#include "base/fault.h"
#include "base/text.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <string.h>

/* --- cases --- */

/* Setting gives code and sentence, forgets an old retry hint, and keeps the stage. */
START_TEST(fault_set_fills_code_and_sentence)
{
    struct fault f = {.stage = STAGE_DECODE, .retry_after_ms = 5};
    ck_assert_int_eq(fault_set(&f, FP8D_ENOT_FOUND, "model \"%s\" has %d layers", "m", 3),
                     FP8D_ENOT_FOUND);
    ck_assert_int_eq(f.code, FP8D_ENOT_FOUND);
    ck_assert_str_eq(f.text, "model \"m\" has 3 layers");
    ck_assert_int_eq(f.stage, STAGE_DECODE);
    ck_assert_uint_eq(f.retry_after_ms, 0);
}
END_TEST

/* Control characters never reach a log line: each becomes '?'. */
START_TEST(fault_set_replaces_controls)
{
    struct fault f = {0};
    fault_set(&f, -EIO, "a%sb", "\n\r\t\x1b\x7f");
    ck_assert_str_eq(f.text, "a?????b");
}
END_TEST

/* A wrapped fault reads "prefix: sentence" and keeps its code and retry hint. */
START_TEST(fault_wrap_puts_prefixes_in_front)
{
    struct fault f = {0};
    fault_set(&f, -ENOENT, "cannot open");
    f.retry_after_ms = 9;
    ck_assert_int_eq(fault_wrap(&f, "shard %d", 2), -ENOENT);
    fault_wrap(&f, "model");
    ck_assert_str_eq(f.text, "model: shard 2: cannot open");
    ck_assert_uint_eq(f.retry_after_ms, 9);
}
END_TEST

/* A sentence too long is cut at FAULT_TEXT_MAX - 1 bytes, and stays terminated. */
START_TEST(fault_text_is_cut)
{
    struct fault f = {0};
    char big[2 * FAULT_TEXT_MAX];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    fault_set(&f, -EIO, "%s", big);
    ck_assert_uint_eq(strlen(f.text), FAULT_TEXT_MAX - 1);
    fault_wrap(&f, "%s", "head");
    ck_assert_uint_eq(strlen(f.text), FAULT_TEXT_MAX - 1);
    ck_assert(!strncmp(f.text, "head: xxx", 9));
    fault_wrap(&f, "%s", big);
    ck_assert_uint_eq(strlen(f.text), FAULT_TEXT_MAX - 1);
    ck_assert_int_eq(f.code, -EIO);
}
END_TEST

/* The cut never splits a UTF-8 sequence: protobuf strings must be well-formed. */
START_TEST(fault_cut_keeps_utf8_whole)
{
    static const char *const letters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t k = 0; k < 3; k++)
        for (unsigned shift = 0; shift < 4; shift++) {
            struct fault f = {0};
            char big[2 * FAULT_TEXT_MAX] = "abcd";
            size_t n = strlen(letters[k]);
            for (size_t at = shift; at + n < sizeof big; at += n)
                memcpy(big + at, letters[k], n + 1);
            fault_set(&f, -EIO, "%s", big);
            ck_assert_uint_ge(strlen(f.text), FAULT_TEXT_MAX - 4);
            ck_assert(utf8_printable(f.text, strlen(f.text)));
            fault_wrap(&f, "x");
            ck_assert(utf8_printable(f.text, strlen(f.text)));
        }
}
END_TEST

/* The first stage set is the one that is kept. */
START_TEST(fault_stage_is_set_once)
{
    struct fault f = {0};
    fault_set(&f, -EIO, "x");
    ck_assert_int_eq(fault_at(&f, STAGE_FILE), -EIO);
    fault_at(&f, STAGE_RECEIVE);
    ck_assert_int_eq(f.stage, STAGE_FILE);
}
END_TEST

/* Every stage has its name; the unspecified one and numbers outside have the empty string. */
START_TEST(fault_stage_names)
{
    ck_assert_str_eq(fault_stage_name(STAGE_UNSPECIFIED), "");
    ck_assert_str_eq(fault_stage_name(STAGE_RECEIVE), "receive");
    ck_assert_str_eq(fault_stage_name(STAGE_DECODE), "decode");
    ck_assert_str_eq(fault_stage_name(STAGE_QUEUE), "queue");
    ck_assert_str_eq(fault_stage_name(STAGE_COPY), "copy");
    ck_assert_str_eq(fault_stage_name(STAGE_COMPUTE), "compute");
    ck_assert_str_eq(fault_stage_name(STAGE_FILE), "file");
    ck_assert_str_eq(fault_stage_name((enum fault_stage)7), "");
    ck_assert_str_eq(fault_stage_name((enum fault_stage) - 1), "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/fault");
    TCase *c = tcase_create("fault");
    tcase_add_test(c, fault_set_fills_code_and_sentence);
    tcase_add_test(c, fault_set_replaces_controls);
    tcase_add_test(c, fault_wrap_puts_prefixes_in_front);
    tcase_add_test(c, fault_text_is_cut);
    tcase_add_test(c, fault_cut_keeps_utf8_whole);
    tcase_add_test(c, fault_stage_is_set_once);
    tcase_add_test(c, fault_stage_names);
    suite_add_tcase(s, c);
    return run_suite(s);
}
