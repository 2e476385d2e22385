/* Models from tensors: memory, and what happens while one is being made. */
#include "base/mem.h"
#include "tests/scenario/maker.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <string.h>

/* --- life and memory --- */

/* The ledger is back where it was, whether the model goes first or its creator. */
START_TEST(create_gives_all_memory_back)
{
    enum maker_kind kind = (enum maker_kind)(_i / 2);
    struct maker c = maker_of_kind(kind, _i & 1, "m"); /* tables of ids have their size now */
    maker_made(&c);
    maker_drop("m");
    if (_i & 1)
        maker_free_resident();
    uint64_t used = ledger_used(&D->ledger);
    int64_t blocks = desk_blocks();
    c = maker_of_kind(kind, _i & 1, "m");
    maker_made(&c);
    maker_drop("m");
    if (_i & 1)
        maker_free_resident();
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
    ck_assert_int_eq(desk_blocks(), blocks);
    c = maker_of_kind(kind, _i & 1, "m");
    maker_made(&c);
    ask_close(&A);
    maker_forward(&B, "m", "a", kind == WIDE ? EVAL : TRAIN, NULL); /* it lives on */
    maker_drop("m");
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
    A = ask_open(D, 1);
}
END_TEST

static void create_later(enum maker_kind kind)
{
    struct maker c = maker_of_kind(kind, true, "m");
    desk_hold(D);
    A.later = true;
    ck_assert_uint_eq(maker_create(&A, &c), ASK_LATER);
    A.later = false;
    ck_assert(desk_step(D));
    desk_set_aside(D);
    desk_release(D);
}

/* A load that takes the name while the model is being made has it; the creator is told. */
START_TEST(create_name_is_taken_meanwhile)
{
    create_later((enum maker_kind)_i);
    struct desk_layer layer = {"other", OUT, IN, W, NULL};
    ck_assert_uint_eq(desk_load(D, 2, "m", &layer, 1, NULL, B.text), ASK_OK);
    desk_resume(D);
    ck_assert_uint_eq(ask_take(&A, A.sent), ALREADY_EXISTS);
    served_says("CreateModel", A.text, "model m");
    maker_forward(&B, "m", "other", EVAL, NULL);
    maker_free_resident();
    maker_drop("m");
    ck_assert_uint_eq(ledger_used(&D->ledger), 0);
}
END_TEST

/* Its creator leaves meanwhile: the model is there, whole, or it is not; no memory is lost. */
START_TEST(create_client_leaves_meanwhile)
{
    create_later((enum maker_kind)_i);
    ask_close(&A);
    desk_resume(D);
    if (maker_models()) {
        maker_forward(&B, "m", "a", EVAL, NULL);
        maker_drop("m");
    }
    ck_assert_uint_eq(ledger_used(&D->ledger), 0);
    A = ask_open(D, 1);
}
END_TEST

/* Whichever allocation fails: RESOURCE_EXHAUSTED, and nothing is left of it. */
START_TEST(create_faults_leave_nothing)
{
    int64_t failed = 0, n = 0;
    enum maker_kind kind = (enum maker_kind)(_i / 2);
    struct maker c = maker_of_kind(kind, _i & 1, "m");
    maker_made(&c);
    maker_drop("m");
    uint64_t used = ledger_used(&D->ledger);
    int64_t blocks = desk_blocks();
    for (bool fired = true; fired; n++) {
        ck_assert_int_lt(n, 1000);
        mem_fault_arm(n, false);
        unsigned code = maker_create(&A, &c);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert_msg(!code || code == RESOURCE_EXHAUSTED, "fault %lld: code %u, %s", (long long)n,
                      code, A.text);
        ck_assert_msg(fired || !code, "no fault, but: %s", A.text);
        if (code && !strstr(A.text, "was executed")) {
            ck_assert_uint_eq(maker_models(), 0);
            failed++;
        } else {
            maker_drop("m");
        }
        ck_assert_uint_eq(ledger_used(&D->ledger), used);
        ck_assert_int_eq(desk_blocks(), blocks);
    }
    ck_assert_int_ge(failed, 15); /* model, layers, names, two buffers for each of six sites */
    if (_i & 1)
        maker_free_resident();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("create_life");
    TCase *c = tcase_create("create_life");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, maker_start, maker_stop);
    tcase_add_loop_test(c, create_gives_all_memory_back, 0, 2 * KINDS);
    tcase_add_loop_test(c, create_name_is_taken_meanwhile, 0, KINDS);
    tcase_add_loop_test(c, create_client_leaves_meanwhile, 0, KINDS);
    tcase_add_loop_test(c, create_faults_leave_nothing, 0, 2 * KINDS);
    suite_add_tcase(s, c);
    return run_suite(s);
}
