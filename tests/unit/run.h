/* run.h - the main() of every unit test program. */
#ifndef FP8D_TESTS_UNIT_RUN_H
#define FP8D_TESTS_UNIT_RUN_H

#include <check.h>

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

#endif
