/* Words of a command against its options. */
#include "client/ctl/args.h"

#include "base/mem.h"
#include "tests/unit/run.h"

#include <string.h>

/* --- fixture --- */

static const struct arg_option table[] = {
    {"margin", "N", "", 0, 31, false}, {"mode", "eval|train|calibrate", "", 0, 0, false},
    {"only", "GLOB", "", 0, 0, true},  {"strict", NULL, "", 0, 0, false},
    {NULL, NULL, NULL, 0, 0, false},
};

static const struct arg_option more[] = {
    {"json", NULL, "", 0, 0, false},
    {NULL, NULL, NULL, 0, 0, false},
};

/* --- helpers --- */

#define WORDS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define COUNT(...) ((int)(sizeof(WORDS(__VA_ARGS__)) / sizeof(char *)))
#define PARSE(a, why, ...)                                                                         \
    args_parse(a, COUNT(__VA_ARGS__), WORDS(__VA_ARGS__), table, more, why, sizeof why)

/* --- cases --- */

/* Options may stand anywhere, with a blank or an equals sign, from both tables. */
START_TEST(test_args_good)
{
    struct args a;
    char why[256];
    size_t count;
    ck_assert(PARSE(&a, why, "--margin", "7", "m", "--mode=train", "--only", "a*", "p", "--json",
                    "--only=b", "--", "--strict"));
    ck_assert_uint_eq(a.count, 3);
    ck_assert_str_eq(a.argument[2], "--strict");
    ck_assert_uint_eq(args_number(&a, "margin"), 7);
    ck_assert_int_eq(args_choice(&a, "mode"), 2);
    ck_assert(args_has(&a, "json"));
    ck_assert(!args_has(&a, "strict"));
    const char **list = args_list(&a, "only", &count);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(list[0], "a*");
    ck_assert_str_eq(list[1], "b");
    mem_free(list);
    args_fini(&a);
}
END_TEST

static const struct bad {
    const char *words[3];
    int count;
    const char *why;
} bads[] = {
    {{"--margni", "3"}, 2, "did you mean '--margin'"},
    {{"--nothing-like-it"}, 1, "unknown option"},
    {{"--margin"}, 1, "needs a value"},
    {{"--margin", "32"}, 2, "from 0 to 31"},
    {{"--margin", "-1"}, 2, "from 0 to 31"},
    {{"--margin", "3x"}, 2, "from 0 to 31"},
    {{"--margin", ""}, 2, "from 0 to 31"},
    {{"--margin", "18446744073709551616"}, 2, "from 0 to 31"},
    {{"--mode", "tra"}, 2, "needed eval|train|calibrate"},
    {{"--mode", "eval|train"}, 2, "needed eval|train|calibrate"},
    {{"--mode=eval", "--mode=eval"}, 2, "given twice"},
    {{"--strict=1"}, 1, "takes no value"},
    {{"-m"}, 1, "two dashes"},
    {{"--\x1b[31m"}, 1, "\\x1b"},
};

/* What is wrong is said in one sentence that names option, value and need; foreign bytes escaped.
 */
START_TEST(test_args_bad)
{
    struct args a;
    char why[256];
    ck_assert(!args_parse(&a, bads[_i].count, bads[_i].words, table, more, why, sizeof why));
    ck_assert_msg(strstr(why, bads[_i].why) != NULL, "%s", why);
    args_fini(&a);
}
END_TEST

/* More arguments than any command has are refused. */
START_TEST(test_args_too_many)
{
    struct args a;
    char why[256];
    ck_assert(!PARSE(&a, why, "1", "2", "3", "4", "5"));
    ck_assert_str_eq(why, "too many arguments");
    args_fini(&a);
}
END_TEST

/* A whole number is digits alone, within its range, both ends included. */
START_TEST(test_args_number)
{
    static const char *const good[] = {"1", "01", "4294967295"};
    static const char *const bad[] = {
        "0", "", "-1", "+1", " 1", "1 ", "0x1", "1.0", "4294967296", "99999999999999999999", "one"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(args_is_number(good[i], 1, UINT32_MAX), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!args_is_number(bad[i], 1, UINT32_MAX), "%s", bad[i]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_args");
    TCase *t = tcase_create("args");
    tcase_add_test(t, test_args_good);
    tcase_add_loop_test(t, test_args_bad, 0, sizeof bads / sizeof bads[0]);
    tcase_add_test(t, test_args_too_many);
    tcase_add_test(t, test_args_number);
    suite_add_tcase(s, t);
    return run_suite(s);
}
