/* run.h - the main() of every unit test program. */
#ifndef FP8D_TESTS_UNIT_RUN_H
#define FP8D_TESTS_UNIT_RUN_H

#include <assert.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Run the suite, as verbose and with the TAP log that check's environment variables ask for
 * (CK_VERBOSITY, CK_TAP_LOG_FILE_NAME, CK_FORK). Returns what main() returns. */
static inline int run_suite(Suite *s)
{
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}

/* What this host cannot run, and why. */
struct run_skips {
    unsigned count;
    char line[4][160];
};

static inline void run_skip(struct run_skips *k, const char *what, const char *why)
{
    assert(k->count < sizeof k->line / sizeof k->line[0]);
    (void)snprintf(k->line[k->count++], sizeof k->line[0], "%s # SKIP %s", what, why);
}

/* check's TAP from a file to stdout, with the skips behind its cases and a plan that counts them. */
static inline void run_print(const char *path, int cases, const struct run_skips *k)
{
    char line[4096];
    FILE *f = fopen(path, "r");
    assert(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "1..", 3) != 0)
            (void)fputs(line, stdout);
    (void)fclose(f);
    for (unsigned i = 0; i < k->count; i++)
        (void)printf("ok %d - %s\n", ++cases, k->line[i]);
    (void)printf("1..%d\n", cases);
}

/* As run_suite. check itself has no word for a skipped case. */
static inline int run_suite_but(Suite *s, const struct run_skips *k)
{
    char path[] = "/tmp/fp8d-tap-XXXXXX";
    const char *tap = getenv("CK_TAP_LOG_FILE_NAME");
    if (!k->count || !tap || strcmp(tap, "-") != 0)
        return run_suite(s);
    int fd = mkstemp(path);
    assert(fd >= 0);
    SRunner *r = srunner_create(s);
    srunner_set_tap(r, path);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    run_print(path, srunner_ntests_run(r), k);
    srunner_free(r);
    close(fd);
    unlink(path);
    return failed != 0;
}

#endif
