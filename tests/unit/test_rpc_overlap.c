/* test_rpc_overlap.c - computing requests beside each other: those that change no state, up to
 * rpc_options.overlap, and never past one that waits. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <string.h>

/* --- fixture: four connections, two evals at a time --- */

static struct served S;
static char text[1024];

static void open_served(void)
{
    served_open(&S, NULL, 0);
    S.d->rpc->o.overlap = 2;
    desk_open(S.d, 3);
    desk_open(S.d, 4);
}

static void close_served(void)
{
    desk_close(S.d, 4);
    desk_close(S.d, 3);
    served_close(&S);
}

/* --- helpers --- */

static int code(uint64_t conn, uint64_t id)
{
    return served_code(&S, conn, id, text);
}

/* How many run and how many wait, as connection 3 is told. */
static void check_status(uint32_t running, uint32_t queued)
{
    Fp8d__V1__StatusReply *r = served_status(&S, 3);
    ck_assert_uint_eq(r->running, running);
    ck_assert_uint_eq(r->queued, queued);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
}

/* --- cases --- */

/* Two evals compute beside each other, a third waits. */
START_TEST(overlap_of_evals_up_to_the_limit)
{
    uint64_t a = served_start_forward(&S, ATTACKER, 0);
    uint64_t b = served_start_forward(&S, BYSTANDER, 0);
    uint64_t c = served_forward(&S, 3, NULL, 0);
    check_status(2, 1);
    desk_resume(S.d);
    ck_assert(!code(ATTACKER, a) && !code(BYSTANDER, b) && !code(3, c));
}
END_TEST

/* A train request computes alone. */
START_TEST(overlap_none_of_train)
{
    uint64_t train = served_start_forward(&S, 4, 5);
    uint64_t c = served_forward(&S, 3, NULL, 0);
    check_status(1, 1);
    desk_resume(S.d);
    ck_assert(!code(4, train) && !code(3, c));
}
END_TEST

/* An eval that comes after a train request that waits does not pass it. */
START_TEST(overlap_passes_nobody_who_waits)
{
    uint64_t a = served_start_forward(&S, ATTACKER, 0);
    uint64_t train = served_forward(&S, 4, NULL, 6);
    uint64_t c = served_forward(&S, 3, NULL, 0);
    check_status(1, 2);
    desk_resume(S.d);
    ck_assert(!code(ATTACKER, a) && !code(4, train) && !code(3, c));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_overlap");
    TCase *t = tcase_create("overlap");
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, overlap_of_evals_up_to_the_limit);
    tcase_add_test(t, overlap_none_of_train);
    tcase_add_test(t, overlap_passes_nobody_who_waits);
    suite_add_tcase(s, t);
    return run_suite(s);
}
