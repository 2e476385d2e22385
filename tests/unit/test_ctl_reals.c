/* Options that are real numbers: what is one, and which range it must be in. */
#include "client/ctl/reals.h"

#include "tests/unit/run.h"

static const struct arg_option options[] = {
    {"a", "X", "", 0, 0, false},
    {"b", "X", "", 0, 0, false},
    {NULL, NULL, NULL, 0, 0, false},
};

/* --- helpers --- */

/* Is --a VALUE taken in this range? */
static bool taken(enum real_range range, const char *value, double *out)
{
    const char *const words[] = {"--a", value};
    const struct real list[] = {{"a", out, range}, {NULL, NULL, range}};
    struct ctl ctl = {0};
    struct args a;
    char why[256];
    ck_assert(args_parse(&a, 2, words, options, NULL, why, sizeof why));
    bool good = reals_take(&ctl, &a, list);
    args_fini(&a);
    return good;
}

/* --- cases --- */

/* Decimal numbers are read as C reads them. */
START_TEST(test_reals_good)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},    {"1", 1},  {"-2.5", -2.5}, {"+3", 3}, {"1e-8", 1e-8},
                {".5", 0.5}, {"5.", 5}, {"1E+3", 1000}, {"-0", 0}, {"1e308", 1e308}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double v = 99;
        ck_assert_msg(real_parse(good[i].text, &v) && v == good[i].value, "%s", good[i].text);
    }
}
END_TEST

/* Words, hexadecimal, blanks, and numbers that are not finite are none. */
START_TEST(test_reals_bad)
{
    static const char *const bad[] = {"",   "inf", "nan", "infinity", "0x1",   "1p3",
                                      " 1", "1 ",  "1,5", "--1",      "1.2.3", "e",
                                      ".",  "1e",  "-",   "1e309",    "one",   "1f"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double v = 99;
        ck_assert_msg(!real_parse(bad[i], &v), "'%s'", bad[i]);
        ck_assert(v == 99);
    }
}
END_TEST

/* Both ends of every range, and what is not given keeps its value. */
START_TEST(test_reals_ranges)
{
    static const struct {
        enum real_range range;
        const char *text;
        bool good;
    } rows[] = {
        {REAL_FROM_0, "0", true},   {REAL_FROM_0, "1e9", true},   {REAL_FROM_0, "-1e-9", false},
        {REAL_ABOVE_0, "0", false}, {REAL_ABOVE_0, "1e-9", true}, {REAL_ABOVE_0, "1e-400", false},
        {REAL_TO_1, "0", true},     {REAL_TO_1, "1", true},       {REAL_TO_1, "1.0001", false},
        {REAL_TO_1, "-0.1", false}, {REAL_BELOW_1, "0", false},   {REAL_BELOW_1, "0.999", true},
        {REAL_BELOW_1, "1", false}, {REAL_BELOW_1, "x", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v = 99;
        ck_assert_msg(taken(rows[i].range, rows[i].text, &v) == rows[i].good, "%zu: %s", i,
                      rows[i].text);
        ck_assert_int_eq(v == 99, !rows[i].good);
    }
    double v = 99;
    struct ctl ctl = {0};
    struct args none = {0};
    const struct real list[] = {{"b", &v, REAL_FROM_0}, {NULL, NULL, REAL_FROM_0}};
    ck_assert(reals_take(&ctl, &none, list) && v == 99);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_reals");
    TCase *t = tcase_create("reals");
    tcase_add_test(t, test_reals_good);
    tcase_add_test(t, test_reals_bad);
    tcase_add_test(t, test_reals_ranges);
    suite_add_tcase(s, t);
    return run_suite(s);
}
