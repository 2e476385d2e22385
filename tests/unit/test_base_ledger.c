#include "base/ledger.h"
#include "tests/unit/run.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

/* --- fixture --- */

#define THREADS 4
#define ROUNDS 20000
#define CAP 1000

static struct ledger l;
static _Atomic bool overdrawn;

/* --- helpers --- */

/* Charge and give back amounts that differ by round; two threads' largest do not fit together. */
static void *spend(void *arg)
{
    unsigned seed = *(unsigned *)arg;
    struct fault f = {0};
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t bytes = (seed * 31 + i * 17) % 700;
        int rc = ledger_charge(&l, bytes, "a test", &f);
        if (ledger_used(&l) > CAP)
            overdrawn = true;
        if (!rc)
            ledger_release(&l, bytes);
    }
    return NULL;
}

/* --- cases --- */

/* Charges add up to the cap exactly; one byte more is refused, charges nothing, and says why. */
START_TEST(ledger_refuses_past_the_cap)
{
    struct fault f = {0};
    ledger_init(&l, CAP);
    ck_assert_int_eq(ledger_charge(&l, 400, "input tensor", &f), 0);
    ck_assert_int_eq(ledger_charge(&l, 600, "input tensor", &f), 0);
    ck_assert_int_eq(ledger_charge(&l, 1, "input tensor", &f), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_str_eq(f.text, "input tensor needs 1 bytes, but 1000 of the memory limit of 1000 are "
                             "in use");
    ck_assert_uint_eq(ledger_used(&l), CAP);
    ck_assert_ptr_nonnull(strstr(f.text, "input tensor needs 1 bytes"));
    ck_assert_ptr_nonnull(strstr(f.text, "1000"));
    ck_assert_uint_gt(f.retry_after_ms, 0);
    ck_assert_int_eq(ledger_charge(&l, CAP + 1, "input tensor", &f), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_uint_eq(f.retry_after_ms, 0); /* it will never fit */
    ledger_release(&l, 600);
    ck_assert_int_eq(ledger_charge(&l, 600, "input tensor", &f), 0);
}
END_TEST

/* Amounts near 2^64 do not wrap around the cap. */
START_TEST(ledger_huge_amounts_do_not_wrap)
{
    struct fault f = {0};
    ledger_init(&l, CAP);
    ck_assert_int_eq(ledger_charge(&l, 10, "x", &f), 0);
    ck_assert_int_eq(ledger_charge(&l, UINT64_MAX, "x", &f), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_int_eq(ledger_charge(&l, UINT64_MAX - 9, "x", &f), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_uint_eq(ledger_used(&l), 10);
}
END_TEST

/* The peak is the most that was ever charged at once. */
START_TEST(ledger_peak_stays)
{
    struct fault f = {0};
    ledger_init(&l, CAP);
    ledger_charge(&l, 300, "x", &f);
    ledger_charge(&l, 200, "x", &f);
    ledger_release(&l, 500);
    ledger_charge(&l, 100, "x", &f);
    ck_assert_uint_eq(ledger_peak(&l), 500);
    ck_assert_uint_eq(ledger_used(&l), 100);
}
END_TEST

/* Threads that charge at the same time never pass the cap together, and lose nothing. */
START_TEST(ledger_threads_never_pass_the_cap)
{
    pthread_t t[THREADS];
    unsigned seed[THREADS];
    ledger_init(&l, CAP);
    overdrawn = false;
    for (unsigned i = 0; i < THREADS; i++) {
        seed[i] = i;
        ck_assert_int_eq(pthread_create(&t[i], NULL, spend, &seed[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    ck_assert(!overdrawn);
    ck_assert_uint_eq(ledger_used(&l), 0);
    ck_assert_uint_le(ledger_peak(&l), CAP);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/ledger");
    TCase *c = tcase_create("ledger");
    tcase_add_test(c, ledger_refuses_past_the_cap);
    tcase_add_test(c, ledger_huge_amounts_do_not_wrap);
    tcase_add_test(c, ledger_peak_stays);
    tcase_add_test(c, ledger_threads_never_pass_the_cap);
    suite_add_tcase(s, c);
    return run_suite(s);
}
