/* test_fp8_lines.h - what the FP8 tests share: lines of tests/oracle/fp8_casts.txt, and hashes.
 *
 * Asserts cost a system call each under libcheck, hence none per element here or in the tests.
 */
#ifndef FP8D_TESTS_TEST_FP8_LINES_H
#define FP8D_TESTS_TEST_FP8_LINES_H

#include "tests/oracle/cast_inputs.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A file of tests/oracle, below $FP8D_SRCDIR or the current folder. */
static inline FILE *oracle_open(const char *name)
{
    char path[4096];
    const char *top = getenv("FP8D_SRCDIR");
    (void)snprintf(path, sizeof path, "%s/tests/oracle/%s", top ? top : ".", name);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s cannot be read", path);
    return f;
}

/* Check every line of fp8_casts.txt that starts so; there must be `want` of them. */
static inline void lines_check(const char *start, int want, void (*check)(const char *line))
{
    char line[256];
    int found = 0;
    FILE *f = oracle_open("fp8_casts.txt");
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, start, strlen(start))) {
            check(line);
            found++;
        }
    (void)fclose(f);
    ck_assert_int_eq(found, want);
}

static inline const struct cast_input *input_find(const char *name)
{
    const struct cast_input *in = cast_input_find(name);
    ck_assert_msg(in != NULL, "no input is called %s", name);
    return in;
}

static inline void *bytes_new(uint64_t n)
{
    void *p = calloc(n, 1);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* XXH3-128 as fp8_casts.txt spells it. Frees p. */
static inline void hash_free(void *p, uint64_t n, char out[33])
{
    XXH128_hash_t d = XXH3_128bits(p, n);
    free(p);
    (void)snprintf(out, 33, "%016llx%016llx", (unsigned long long)d.high64,
                   (unsigned long long)d.low64);
}

#endif
