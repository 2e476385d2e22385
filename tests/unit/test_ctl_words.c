/* Lines of a batch: quoting like a shell, and what is wrong with a line. */
#include "client/ctl/words.h"

#include "tests/unit/run.h"

#include <string.h>

/* --- helpers --- */

/* A line, and its words joined by '|'. */
static const struct good {
    const char *line, *words;
} goods[] = {
    {"", ""},
    {"   \t \n", ""},
    {"# all comment", ""},
    {"ping", "ping|"},
    {"  ping\t--count 3 \r\n", "ping|--count|3|"},
    {"load m 'a b.safetensors' # comment", "load|m|a b.safetensors|"},
    {"a\"b c\"d'e f'g", "ab cde fg|"},
    {"\"\" ''", "||"},
    {"\"a\\\"b\\\\c\\n\"", "a\"b\\c\\n|"},
    {"'a\\'", "a\\|"},
    {"a\\ b \\# \\'", "a b|#|'|"},
    {"a#b", "a#b|"},
    {"x '#' \"#\"", "x|#|#|"},
    {"caf\xc3\xa9 \xf0\x9f\x98\x80", "caf\xc3\xa9|\xf0\x9f\x98\x80|"},
};

static const char *split(const char *line, char joined[256])
{
    static struct words w;
    static char copy[4096];
    strcpy(copy, line);
    const char *why = words_split(&w, copy);
    joined[0] = 0;
    for (int i = 0; !why && i < w.count; i++) {
        strcat(joined, w.word[i]);
        strcat(joined, "|");
    }
    return why;
}

/* --- cases --- */

/* Every line splits as sh would split it without expansions. */
START_TEST(test_words_good)
{
    char joined[256];
    ck_assert_ptr_null(split(goods[_i].line, joined));
    ck_assert_str_eq(joined, goods[_i].words);
}
END_TEST

/* Open quotes, a dangling backslash, and too many words are said, not guessed. */
START_TEST(test_words_bad)
{
    char joined[256], many[2 * WORDS_MAX + 8] = "";
    ck_assert_str_eq(split("a 'b", joined), "a quote does not end");
    ck_assert_str_eq(split("a \"b\\\"", joined), "a quote does not end");
    ck_assert_str_eq(split("a \"b\\", joined), "a quote does not end");
    ck_assert_str_eq(split("a \\", joined), "a backslash ends the line");
    for (int i = 0; i <= WORDS_MAX; i++)
        strcat(many, "x ");
    ck_assert_str_eq(split(many, joined), "too many words");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_words");
    TCase *t = tcase_create("words");
    tcase_add_loop_test(t, test_words_good, 0, sizeof goods / sizeof goods[0]);
    tcase_add_test(t, test_words_bad);
    suite_add_tcase(s, t);
    return run_suite(s);
}
