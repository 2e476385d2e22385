/* Lines of the log: logfmt, escaping, levels, the journal. */
#include "daemon/log.h"
#include "tests/unit/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A line on a terminal has time, level, message and pairs. */
START_TEST(log_logfmt)
{
    char out[256];
    size_t n = log_format(out, sizeof out, "T", LOG_WARN,
                          LOG_PAIRS(LOG_NUM("conn", 7), LOG_TEXT("why", "a b")), "gone");
    ck_assert_str_eq(out, "ts=T level=warn msg=\"gone\" conn=7 why=\"a b\"");
    ck_assert_uint_eq(n, strlen(out));
}
END_TEST

/* Under the journal there is a priority of syslog(3) instead of the time. */
START_TEST(log_journal_prefix)
{
    static const char *const prefix[] = {"<3>", "<4>", "<6>", "<7>"};
    char out[64];
    for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
        log_format(out, sizeof out, NULL, (enum log_level)level, NULL, "x");
        ck_assert_mem_eq(out, prefix[level], 3);
        ck_assert_ptr_nonnull(strstr(out, log_level_name((enum log_level)level)));
    }
}
END_TEST

/* Quotes, line ends and bytes that are no text cannot break a line or forge another. */
START_TEST(log_escapes)
{
    char out[256];
    log_format(out, sizeof out, "T", LOG_INFO, LOG_PAIRS(LOG_TEXT("k", "\"\xff")),
               "a\nlevel=error \"b\"");
    ck_assert_str_eq(out, "ts=T level=info msg=\"a\\x0alevel=error \\\"b\\\"\" k=\"\\\"\\xff\"");
}
END_TEST

/* A line that is too long is cut, never past the end. */
START_TEST(log_cut)
{
    char out[40], long_text[4000];
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = 0;
    memset(out, 'Z', sizeof out);
    size_t n = log_format(out, sizeof out - 1, "T", LOG_INFO, LOG_PAIRS(LOG_TEXT("k", long_text)),
                          long_text);
    ck_assert_uint_eq(n, sizeof out - 2);
    ck_assert_int_eq(out[sizeof out - 2], 0);
    ck_assert_int_eq(out[sizeof out - 1], 'Z');
}
END_TEST

/* JOURNAL_STREAM counts only if device and inode are those of the descriptor. */
START_TEST(log_journal_stream)
{
    char text[64];
    struct stat st;
    FILE *file = tmpfile();
    ck_assert_int_eq(fstat(fileno(file), &st), 0);
    snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    ck_assert(log_is_journal(text, fileno(file)));
    strcat(text, "0");
    ck_assert(!log_is_journal(text, fileno(file)));
    ck_assert(!log_is_journal("rubbish", fileno(file)));
    ck_assert(!log_is_journal(NULL, fileno(file)));
    fclose(file);
}
END_TEST

/* What is above the level does not reach stderr; what is written is one whole line. */
START_TEST(log_levels)
{
    char got[512] = "";
    FILE *file = tmpfile();
    int saved = dup(2);
    dup2(fileno(file), 2);
    unsetenv("JOURNAL_STREAM");
    log_init(LOG_WARN);
    log_line(LOG_INFO, NULL, "not %s", "seen");
    log_line(LOG_WARN, NULL, "seen %d", 1);
    dup2(saved, 2);
    close(saved);
    rewind(file);
    size_t n = fread(got, 1, sizeof got - 1, file);
    fclose(file);
    ck_assert_ptr_null(strstr(got, "not seen"));
    ck_assert_ptr_nonnull(strstr(got, "Z level=warn msg=\"seen 1\"\n"));
    ck_assert_mem_eq(got, "ts=2", 4);
    ck_assert_int_eq(got[n - 1], '\n');
    ck_assert(log_wants(LOG_ERROR) && !log_wants(LOG_INFO));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("log");
    TCase *t = tcase_create("line");
    tcase_add_test(t, log_logfmt);
    tcase_add_test(t, log_journal_prefix);
    tcase_add_test(t, log_escapes);
    tcase_add_test(t, log_cut);
    tcase_add_test(t, log_journal_stream);
    tcase_add_test(t, log_levels);
    suite_add_tcase(s, t);
    return run_suite(s);
}
