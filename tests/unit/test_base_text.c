#include "base/text.h"
#include "tests/unit/run.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- helpers --- */

static unsigned length_of(const char *s)
{
    return utf8_length((const unsigned char *)s, strlen(s));
}

/* UTF-8 of a code point, surrogates too (RFC 3629's bit layout, without its exclusions). */
static unsigned encode(uint32_t cp, unsigned char out[4])
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    unsigned n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (unsigned char)(0x80 | (cp & 0x3f));
    out[0] = (unsigned char)(0xf00 >> n | cp);
    return n;
}

static bool printable(uint32_t cp)
{
    return cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0) && !(cp >= 0xd800 && cp < 0xe000) &&
           cp <= 0x10ffff;
}

/* Code point of an n-byte sequence, or UINT32_MAX if its bits are no sequence of n bytes. */
static uint32_t decode(const unsigned char *s, unsigned n)
{
    static const unsigned char lead[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    static const unsigned char mask[] = {0, 0x80, 0xe0, 0xf0, 0xf8};
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if ((s[0] & mask[n]) != lead[n])
        return UINT32_MAX;
    uint32_t cp = s[0] & (unsigned char)~mask[n];
    for (unsigned i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return UINT32_MAX;
        cp = cp << 6 | (s[i] & 0x3f);
    }
    return cp >= least[n] ? cp : UINT32_MAX;
}

static unsigned expected_length(const unsigned char *s, unsigned len)
{
    for (unsigned n = 1; n <= len; n++) {
        uint32_t cp = decode(s, n);
        if (cp != UINT32_MAX)
            return printable(cp) ? n : 0;
    }
    return 0;
}

static const char *escape(const char *s, size_t len, unsigned size)
{
    static char out[256];
    memset(out, '#', sizeof out);
    return text_escape(out, size, s, len);
}

/* --- cases --- */

/* Every code point in its own form is accepted, except controls and surrogates. */
START_TEST(text_every_code_point)
{
    for (uint32_t cp = 0; cp < 0x110100; cp++) {
        unsigned char s[4];
        unsigned n = encode(cp, s);
        ck_assert_msg(utf8_length(s, n) == (printable(cp) ? n : 0), "U+%X", cp);
        if (n > 1)
            ck_assert_msg(utf8_length(s, n - 1) == 0, "U+%X cut", cp);
    }
}
END_TEST

/* Every 1, 2 and 3-byte string is judged as an independent decoder judges it. */
START_TEST(text_every_short_string)
{
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++) {
            unsigned char s[3] = {(unsigned char)a, (unsigned char)b, 0};
            if (utf8_length(s, 2) != expected_length(s, 2))
                ck_abort_msg("%02x %02x", a, b);
            for (unsigned c = 0; a >= 0xe0 && c < 256; c++) {
                s[2] = (unsigned char)c;
                if (utf8_length(s, 3) != expected_length(s, 3))
                    ck_abort_msg("%02x %02x %02x", a, b, c);
            }
        }
}
END_TEST

/* The classic attacks: overlong forms, surrogates, beyond U+10FFFF, lone and missing bytes. */
START_TEST(text_malformed_utf8_is_refused)
{
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc0\xaf",
        "\xc1\xbf",
        "\xc2",
        "\xe0\x80\x80",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xe2\x82",
        "\xe2\x28\xa1",
        "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80",
        "\xf8\x88\x80",
        "\xfe",
        "\xff",
        "\xc2\x80",
        "\xc2\x9f",
        "\x7f",
        "\x1b[0m",
        "\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(length_of(bad[i]) == 0, "row %zu", i);
    ck_assert_uint_eq(utf8_length((const unsigned char *)"", 0), 0);
    ck_assert_uint_eq(utf8_length((const unsigned char *)"\0", 1), 0);
}
END_TEST

/* A string is printable if all its sequences are; the empty string is. */
START_TEST(text_printable_strings)
{
    ck_assert(utf8_printable("", 0));
    ck_assert(utf8_printable("layer.0/\xce\xb1\xe2\x82\xac\xf0\x9f\x98\x80", 17));
    ck_assert(!utf8_printable("a\0b", 3));
    ck_assert(!utf8_printable("ab\xc3", 3));
}
END_TEST

/* Model names: 1 to 128 bytes of [A-Za-z0-9._-] and nothing else. */
START_TEST(text_model_names)
{
    char name[130];
    memset(name, 'a', sizeof name);
    ck_assert(!text_is_model_name(name, 0));
    ck_assert(text_is_model_name(name, 1));
    ck_assert(text_is_model_name(name, 128));
    ck_assert(!text_is_model_name(name, 129));
    for (int c = 0; c < 256; c++) {
        bool good = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    c == '.' || c == '_' || c == '-';
        name[1] = (char)c;
        ck_assert_msg(text_is_model_name(name, 3) == good, "byte %d", c);
    }
}
END_TEST

/* Tensor names: 1 to 1024 bytes of printable UTF-8, slashes and spaces included. */
START_TEST(text_tensor_names)
{
    char name[1025];
    memset(name, 'a', sizeof name);
    ck_assert(!text_is_tensor_name(name, 0));
    ck_assert(text_is_tensor_name(name, 1024));
    ck_assert(!text_is_tensor_name(name, 1025));
    ck_assert(text_is_tensor_name("a/b c\xc3\xa9", 7));
    ck_assert(!text_is_tensor_name("a\nb", 3));
    ck_assert(!text_is_tensor_name("a\0b", 3));
}
END_TEST

/* `*` is any run, slashes and nothing included; `?` one byte; all else itself. */
START_TEST(text_glob_table)
{
    static const struct {
        const char *pattern, *text;
        bool match;
    } rows[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "a/b.c", true},
        {"?", "", false},
        {"?", "a", true},
        {"?", "ab", false},
        {"a*c", "ac", true},
        {"a*c", "abbc", true},
        {"a*c", "abcd", false},
        {"*.weight", "x.weight", true},
        {"*.weight", "x.weights", false},
        {"*a*b*", "xxaxxbxx", true},
        {"*a*b*", "xxbxxaxx", false},
        {"**", "abc", true},
        {"a**?", "ab", true},
        {"a**?", "a", false},
        {"[a]", "a", false},
        {"[a]", "[a]", true},
        {"\\*", "\\x", true},
        {"\\*", "*", false},
        {"model.*.mlp.*", "model.layers.3.mlp.up", true},
        {"*ab", "aab", true},
        {"*aab", "aaab", true},
        {"??", "\xc3\xa9", true},
        {"a", "A", false},
        {"*?", "", false},
        {"abc", "ab", false},
        {"ab", "abc", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_msg(text_glob(rows[i].pattern, rows[i].text) == rows[i].match, "%s ~ %s",
                      rows[i].pattern, rows[i].text);
}
END_TEST

/* The patterns that make backtracking matchers explode take no time here: at most 4 s for what is
 * 512 * 65536 steps by the contract. */
START_TEST(text_glob_worst_case_is_quadratic)
{
    static char pattern[1025], text[65537];
    for (unsigned i = 0; i < 1022; i += 2)
        memcpy(pattern + i, "*a", 3);
    strcat(pattern, "*b");
    memset(text, 'a', 65536);
    clock_t t = clock();
    ck_assert(!text_glob(pattern, text));
    memset(pattern, '*', 1023);
    ck_assert(!text_glob(pattern, text));
    memset(pattern + 1, 'a', 1022);
    ck_assert(!text_glob(pattern, text));
    ck_assert_msg((double)(clock() - t) / CLOCKS_PER_SEC < 4, "%g s",
                  (double)(clock() - t) / CLOCKS_PER_SEC);
}
END_TEST

/* Foreign bytes are shown as \xNN, the backslash too, so that the shown text is unambiguous. */
START_TEST(text_escape_shows_foreign_bytes)
{
    ck_assert_str_eq(escape("plain", 5, 256), "plain");
    ck_assert_str_eq(escape("\xce\xb1", 2, 256), "\xce\xb1");
    ck_assert_str_eq(escape("a\nb\x1b", 4, 256), "a\\x0ab\\x1b");
    ck_assert_str_eq(escape("\xc3", 1, 256), "\\xc3");
    ck_assert_str_eq(escape("a\0b", 3, 256), "a\\x00b");
    ck_assert_str_eq(escape("a\\x41", 5, 256), "a\\x5cx41");
    ck_assert_str_eq(escape("\xc2\x85", 2, 256), "\\xc2\\x85");
    ck_assert_str_eq(escape("", 0, 256), "");
    ck_assert_str_eq(escape("a\xe2\x80\xae"
                            "b",
                            5, 256),
                     "a\\xe2\\x80\\xaeb"); /* U+202E */
    ck_assert_str_eq(escape("\xe2\x81\xa9\xd8\x9c", 5, 256), "\\xe2\\x81\\xa9\\xd8\\x9c");
    ck_assert_str_eq(escape("\xe2\x80\xa6\xd8\xa7", 5, 256),
                     "\xe2\x80\xa6\xd8\xa7"); /* U+2026, U+0627 */
}
END_TEST

/* What does not fit is cut with "...", never inside a sequence or an escape, never past size. */
START_TEST(text_escape_cuts)
{
    static const char *const texts[] = {"abcdefghijklmnopqrstuvwxyz", "\n\n\n\n\n\n\n\n\n",
                                        "\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80",
                                        "a\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"};
    for (size_t k = 0; k < 4; k++)
        for (unsigned size = 8; size < 24; size++) {
            const char *s = escape(texts[k], strlen(texts[k]), size);
            size_t n = strlen(s);
            ck_assert_uint_lt(n, size);
            ck_assert(utf8_printable(s, n));
            if (n < strlen(texts[k]))
                ck_assert_str_eq(s + n - 3, "...");
            ck_assert_int_eq(s[size], '#');
        }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/text");
    TCase *c = tcase_create("text");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, text_every_code_point);
    tcase_add_test(c, text_every_short_string);
    tcase_add_test(c, text_malformed_utf8_is_refused);
    tcase_add_test(c, text_printable_strings);
    tcase_add_test(c, text_model_names);
    tcase_add_test(c, text_tensor_names);
    tcase_add_test(c, text_glob_table);
    tcase_add_test(c, text_glob_worst_case_is_quadratic);
    tcase_add_test(c, text_escape_shows_foreign_bytes);
    tcase_add_test(c, text_escape_cuts);
    suite_add_tcase(s, c);
    return run_suite(s);
}
