/* test_rpc_order.c - frames in the wrong order, in the wrong number, too late, and from clients
 * that leave: what ends a connection, what a request survives, who runs before whom. */
#include "daemon/rpc/table.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- fixture --- */

static struct served S;
static char text[1024];

static void open_served(void)
{
    served_open(&S, NULL, 0);
}

static void close_served(void)
{
    served_close(&S);
}

/* --- helpers --- */

static uint64_t send_free(uint64_t conn, Fp8d__V1__RequestHead *head)
{
    Fp8d__V1__FreeTensorRequest m = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    m.head = head;
    m.tensor_id = 77;
    return desk_send(S.d, conn, REQUEST_FREE_TENSOR, &m.base, NULL, 0, NULL, 0);
}

static int cancel(uint64_t conn, uint64_t id, Fp8d__V1__CancelOutcome *outcome)
{
    Fp8d__V1__CancelRequest m = FP8D__V1__CANCEL_REQUEST__INIT;
    struct desk_frame *f = NULL;
    m.id = id;
    unsigned code = desk_call(S.d, conn, REQUEST_CANCEL, &m.base, NULL, 0, &f, text);
    if (f) {
        Fp8d__V1__CancelReply *r = fp8d__v1__cancel_reply__unpack(NULL, f->meta_len, f->meta);
        *outcome = r->outcome;
        fp8d__v1__cancel_reply__free_unpacked(r, NULL);
        desk_frame_free(f);
    }
    return (int)code;
}

static void fatal(uint64_t conn, struct frame_header h, const char *says)
{
    struct fault f = {0};
    enum net_verdict v = NET_TAKE;
    desk_send_raw(S.d, conn, &h, "", NULL, NULL, &v, &f);
    ck_assert_int_eq(v, NET_FATAL);
    ck_assert_int_eq(f.code, FP8D_EPROTOCOL);
    ck_assert_msg(strstr(f.text, says), "\"%s\" does not say \"%s\"", f.text, says);
}

/* --- fatal frames --- */

START_TEST(order_first_frame_not_hello_is_fatal)
{
    /* Any type but Hello, known or not, ends a connection that has not greeted. */
    desk_open_raw(S.d, 7);
    fatal(7, (struct frame_header){.type = REQUEST_PING, .id = 1}, "has type 2, needed Hello (1)");
    fatal(7, (struct frame_header){.type = 999, .id = 1}, "has type 999, needed Hello (1)");
    desk_close(S.d, 7);
}
END_TEST

START_TEST(order_id_zero_is_fatal)
{
    /* Id 0 belongs to the server, before and after Hello. */
    desk_open_raw(S.d, 7);
    fatal(7, (struct frame_header){.type = REQUEST_HELLO}, "the request id is 0");
    fatal(ATTACKER, (struct frame_header){.type = REQUEST_PING}, "the request id is 0");
    desk_close(S.d, 7);
}
END_TEST

START_TEST(order_reply_flag_is_fatal)
{
    /* A client sends requests only: REPLY and MORE are refused. */
    fatal(ATTACKER, (struct frame_header){.type = REQUEST_PING, .id = 9, .flags = FRAME_FLAG_REPLY},
          "flags of a request are 0x1, needed 0");
    fatal(ATTACKER, (struct frame_header){.type = REQUEST_PING, .id = 9, .flags = FRAME_FLAG_MORE},
          "flags of a request are 0x2, needed 0");
}
END_TEST

START_TEST(order_id_reused_in_flight_is_fatal)
{
    /* The id of a queued or running request is taken until its reply; another connection may use
     * it, and the same one afterwards. */
    uint64_t id = served_start_forward(&S, ATTACKER, 0);
    struct frame_header h = {.type = REQUEST_PING, .id = id};
    fatal(ATTACKER, h, "in flight already");
    struct fault f = {0};
    enum net_verdict v;
    desk_send_raw(S.d, BYSTANDER, &h, "", NULL, NULL, &v, &f);
    ck_assert_int_eq(v, NET_TAKE);
    ck_assert_int_eq(served_code(&S, BYSTANDER, id, text), OK);
    desk_resume(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, id, text), OK);
    desk_send_raw(S.d, ATTACKER, &h, "", NULL, NULL, &v, &f);
    ck_assert_int_eq(served_code(&S, ATTACKER, id, text), OK);
}
END_TEST

/* --- what a connection survives --- */

START_TEST(order_unknown_type_is_unimplemented)
{
    /* An unknown type is answered, its payload discarded, and the connection lives on. */
    for (unsigned type = 0; type < 65536; type += type < 64 ? 1 : 997) {
        if (request_row((uint16_t)type))
            continue;
        struct frame_header h = {.type = (uint16_t)type, .id = 500 + type, .payload_len = 8};
        struct fault f = {0};
        enum net_verdict v;
        desk_send_raw(S.d, ATTACKER, &h, "", "12345678", NULL, &v, &f);
        ck_assert_int_eq(v, NET_DISCARD);
        ck_assert_int_eq(served_code(&S, ATTACKER, h.id, text), UNIMPLEMENTED);
        char says[64];
        (void)snprintf(says, sizeof says, "request type %u", type);
        ck_assert_msg(strstr(text, says), "%s", text);
    }
    ck_assert_uint_gt(served_forwards_done(&S), 0);
}
END_TEST

START_TEST(hello_refusal_names_both_versions)
{
    /* Every version that cannot work is UNIMPLEMENTED, names both sides and who must be upgraded;
     * the connection has not greeted then. */
    static const struct {
        uint32_t major, minor, min;
        const char *client, *who;
    } rows[] = {
        {2, 0, 0, "speaks schema 2.0", "upgrade the server"},
        {1, 9, 7, "at least 1.7", "upgrade the server"},
        {0, 0, 3, "at least 0.3", "upgrade the server"},
        {UINT32_MAX, 1, 0, "schema 4294967295.1", "upgrade the server"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Fp8d__V1__HelloRequest m = FP8D__V1__HELLO_REQUEST__INIT;
        m.schema_major = rows[i].major;
        m.schema_minor = rows[i].minor;
        m.min_schema_minor = rows[i].min;
        desk_open_raw(S.d, 7 + i);
        unsigned code = desk_call(S.d, 7 + i, REQUEST_HELLO, &m.base, NULL, 0, NULL, text);
        ck_assert_uint_eq(code, UNIMPLEMENTED);
        ck_assert_msg(strstr(text, rows[i].client) && strstr(text, "speaks 1.0") &&
                          strstr(text, "fp8d test") && strstr(text, rows[i].who),
                      "row %zu: %s", i, text);
        fatal(7 + i, (struct frame_header){.type = REQUEST_PING, .id = 9}, "needed Hello");
        desk_close(S.d, 7 + i);
    }
}
END_TEST

START_TEST(hello_newer_minor_is_served)
{
    /* An additive change never locks a client out: a newer minor that can use an older server
     * works, and so do an empty Hello and unknown fields. */
    Fp8d__V1__HelloRequest m = FP8D__V1__HELLO_REQUEST__INIT;
    m.schema_major = 1;
    m.schema_minor = 4000000000u;
    desk_open_raw(S.d, 7);
    ck_assert_uint_eq(desk_call(S.d, 7, REQUEST_HELLO, &m.base, NULL, 0, NULL, text), OK);
    desk_close(S.d, 7);
    desk_open_raw(S.d, 8);
    struct frame_header h = {.type = REQUEST_HELLO, .id = 3, .meta_len = 3};
    struct fault f = {0};
    enum net_verdict v;
    desk_send_raw(S.d, 8, &h, "\xf8\x07\x05", NULL, NULL, &v, &f);
    ck_assert_int_eq(served_code(&S, 8, 3, text), OK);
    desk_close(S.d, 8);
}
END_TEST

START_TEST(hello_second_is_refused)
{
    /* A second Hello is an error, not the end; names over 128 bytes are refused. */
    Fp8d__V1__HelloRequest m = FP8D__V1__HELLO_REQUEST__INIT;
    char name[130];
    ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_HELLO, &m.base, NULL, 0, NULL, text),
                      FAILED_PRECONDITION);
    memset(name, 'n', sizeof name);
    name[129] = 0;
    m.client_name = name;
    desk_open_raw(S.d, 7);
    ck_assert_uint_eq(desk_call(S.d, 7, REQUEST_HELLO, &m.base, NULL, 0, NULL, text),
                      INVALID_ARGUMENT);
    ck_assert_msg(strstr(text, "client_name") && strstr(text, "129") && strstr(text, "128"), "%s",
                  text);
    desk_close(S.d, 7);
    ck_assert_uint_gt(served_forwards_done(&S), 0);
}
END_TEST

/* --- needs --- */

static int free_with_needs(uint64_t *needs, size_t n)
{
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    head.needs = needs;
    head.n_needs = n;
    return served_code(&S, ATTACKER, send_free(ATTACKER, &head), text);
}

START_TEST(needs_of_a_failed_or_unknown_request_aborts)
{
    /* Only earlier requests of this connection that succeeded satisfy `needs`. */
    uint64_t good = served_forward(&S, ATTACKER, NULL, 0);
    uint64_t bad = send_free(ATTACKER, NULL);
    uint64_t foreign = served_forward(&S, BYSTANDER, NULL, 0);
    ck_assert_int_eq(served_code(&S, ATTACKER, good, text), OK);
    ck_assert_int_eq(served_code(&S, ATTACKER, bad, text), NOT_FOUND);
    ck_assert_int_eq(free_with_needs((uint64_t[]){good}, 1), NOT_FOUND); /* it ran */
    const uint64_t wrong[] = {bad, foreign, 0, 123456, UINT64_MAX, S.d->next_id + 2};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char says[80];
        ck_assert_int_eq(free_with_needs((uint64_t[]){good, wrong[i]}, 2), ABORTED);
        (void)snprintf(says, sizeof says, "head.needs: request %llu", (unsigned long long)wrong[i]);
        ck_assert_msg(strstr(text, says), "%s", text);
    }
}
END_TEST

START_TEST(needs_of_a_question_are_heard)
{
    /* A question that needs an earlier request waits for it, and fails with it. */
    Fp8d__V1__StatusRequest m = FP8D__V1__STATUS_REQUEST__INIT;
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    uint64_t good = served_start_forward(&S, ATTACKER, 0);
    uint64_t bad = send_free(ATTACKER, NULL);
    uint64_t ids[2];
    m.head = &head;
    head.n_needs = 1;
    for (unsigned i = 0; i < 2; i++) {
        head.needs = i ? &bad : &good;
        ids[i] = desk_send(S.d, ATTACKER, REQUEST_STATUS, &m.base, NULL, 0, NULL, 0);
        ck_assert_int_eq(served_code(&S, ATTACKER, ids[i], text), -1);
    }
    desk_resume(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, ids[0], text), OK);
    ck_assert_int_eq(served_code(&S, ATTACKER, ids[1], text), ABORTED);
}
END_TEST

START_TEST(needs_of_more_than_16_is_refused)
{
    /* 16 ids are fine, 17 are not, and the sentence says so. */
    uint64_t ids[17];
    uint64_t good = served_forward(&S, ATTACKER, NULL, 0);
    for (unsigned i = 0; i < 17; i++)
        ids[i] = good;
    ck_assert_int_eq(free_with_needs(ids, 16), NOT_FOUND);
    ck_assert_int_eq(free_with_needs(ids, 17), INVALID_ARGUMENT);
    ck_assert_msg(strstr(text, "head.needs has 17") && strstr(text, "16"), "%s", text);
}
END_TEST

START_TEST(needs_fail_along_a_pipeline)
{
    /* A chain behind a failed request fails as a whole, and nothing of it is executed. */
    uint64_t before = served_forwards_done(&S);
    desk_hold(S.d);
    uint64_t ids[4];
    ids[0] = send_free(ATTACKER, NULL);
    for (unsigned i = 1; i < 4; i++) {
        Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
        head.needs = &ids[i - 1];
        head.n_needs = 1;
        ids[i] = served_forward(&S, ATTACKER, &head, 0);
    }
    desk_release(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, ids[0], text), NOT_FOUND);
    for (unsigned i = 1; i < 4; i++)
        ck_assert_int_eq(served_code(&S, ATTACKER, ids[i], text), ABORTED);
    ck_assert_uint_eq(served_forwards_done(&S), before);
}
END_TEST

/* --- deadlines --- */

START_TEST(deadline_missed_is_not_executed)
{
    /* A request that leaves the queue at or after its deadline is not executed; one before it is.
     */
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    uint64_t before = served_forwards_done(&S);
    head.deadline_ms = 5;
    desk_hold(S.d);
    uint64_t late = served_forward(&S, ATTACKER, &head, 0);
    S.d->now_ns += 4999999;
    head.deadline_ms = 6;
    uint64_t early = served_forward(&S, BYSTANDER, &head, 0);
    S.d->now_ns += 1;
    desk_release(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, late, text), DEADLINE_EXCEEDED);
    ck_assert_msg(strstr(text, "head.deadline_ms is 5") && strstr(text, "5 ms"), "%s", text);
    ck_assert_int_eq(served_code(&S, BYSTANDER, early, text), OK);
    ck_assert_uint_eq(served_forwards_done(&S), before + 1);
}
END_TEST

START_TEST(deadline_passes_while_running)
{
    /* One that started runs to its end, however long. */
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    head.deadline_ms = 1;
    desk_hold(S.d);
    uint64_t id = served_forward(&S, ATTACKER, &head, 0);
    ck_assert(desk_step(S.d));
    desk_set_aside(S.d);
    S.d->now_ns += 3600000000000u;
    desk_release(S.d);
    desk_resume(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, id, text), OK);
}
END_TEST

/* --- cancel --- */

START_TEST(cancel_of_a_queued_request_removes_it)
{
    /* The removed request answers CANCELLED, was not executed, and a second cancel finds nothing.
     */
    Fp8d__V1__CancelOutcome outcome = 0;
    uint64_t running = served_start_forward(&S, ATTACKER, 0);
    uint64_t before = served_forwards_done(&S);
    uint64_t queued = served_forward(&S, ATTACKER, NULL, 0);
    uint64_t behind = send_free(ATTACKER, NULL);
    ck_assert_int_eq(cancel(ATTACKER, queued, &outcome), OK);
    ck_assert_int_eq(outcome, FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_REMOVED);
    ck_assert_int_eq(served_code(&S, ATTACKER, queued, text), CANCELLED);
    ck_assert_int_eq(cancel(ATTACKER, queued, &outcome), NOT_FOUND);
    desk_resume(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, running, text), OK);
    ck_assert_int_eq(served_code(&S, ATTACKER, behind, text), NOT_FOUND);
    ck_assert_uint_eq(served_forwards_done(&S), before + 1);
}
END_TEST

START_TEST(cancel_of_a_running_or_unknown_request)
{
    /* Running compute finishes; ids that are unknown, zero, foreign or the cancel's own are
     * NOT_FOUND. */
    Fp8d__V1__CancelOutcome outcome = 0;
    uint64_t running = served_start_forward(&S, ATTACKER, 0);
    ck_assert_int_eq(cancel(ATTACKER, running, &outcome), OK);
    ck_assert_int_eq(outcome, FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_RUNNING);
    ck_assert_int_eq(served_code(&S, ATTACKER, running, text), -1);
    ck_assert_int_eq(cancel(BYSTANDER, running, &outcome), NOT_FOUND);
    const uint64_t wrong[] = {0, 1, UINT64_MAX, S.d->next_id + 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_int_eq(cancel(ATTACKER, wrong[i], &outcome), NOT_FOUND);
        ck_assert_msg(strstr(text, "is not in flight"), "%s", text);
    }
    desk_resume(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, running, text), OK);
}
END_TEST

static void order_cases(TCase *t)
{
    tcase_add_test(t, order_first_frame_not_hello_is_fatal);
    tcase_add_test(t, order_id_zero_is_fatal);
    tcase_add_test(t, order_reply_flag_is_fatal);
    tcase_add_test(t, order_id_reused_in_flight_is_fatal);
    tcase_add_test(t, order_unknown_type_is_unimplemented);
    tcase_add_test(t, hello_refusal_names_both_versions);
    tcase_add_test(t, hello_newer_minor_is_served);
    tcase_add_test(t, hello_second_is_refused);
    tcase_add_test(t, needs_of_a_failed_or_unknown_request_aborts);
    tcase_add_test(t, needs_of_a_question_are_heard);
    tcase_add_test(t, needs_of_more_than_16_is_refused);
    tcase_add_test(t, needs_fail_along_a_pipeline);
    tcase_add_test(t, deadline_missed_is_not_executed);
    tcase_add_test(t, deadline_passes_while_running);
    tcase_add_test(t, cancel_of_a_queued_request_removes_it);
    tcase_add_test(t, cancel_of_a_running_or_unknown_request);
}

int main(void)
{
    Suite *s = suite_create("rpc_order");
    TCase *t = tcase_create("order");
    tcase_add_checked_fixture(t, open_served, close_served);
    order_cases(t);
    suite_add_tcase(s, t);
    return run_suite(s);
}
