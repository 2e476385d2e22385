/* test_rpc_turns.c - who runs when, and what is left of those who leave: questions beside compute,
 * turns between connections, the in-flight cap, closing at every state, draining. */
#include "daemon/rpc/caller.h"
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

static uint64_t send_free(uint64_t conn, uint64_t tensor_id)
{
    Fp8d__V1__FreeTensorRequest m = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    m.tensor_id = tensor_id;
    return desk_send(S.d, conn, REQUEST_FREE_TENSOR, &m.base, NULL, 0, NULL, 0);
}

static uint64_t send_scaling(uint64_t conn, bool ordered)
{
    Fp8d__V1__QueryScalingRequest m = FP8D__V1__QUERY_SCALING_REQUEST__INIT;
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    head.ordered = ordered;
    m.head = &head;
    m.model = str("m");
    return desk_send(S.d, conn, REQUEST_QUERY_SCALING, &m.base, NULL, 0, NULL, 0);
}

static uint64_t send_put(uint64_t conn, uint64_t tensor_id)
{
    static const float value[4];
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    uint64_t dims[] = {4};
    m.tensor_id = tensor_id;
    m.tensor = &ref;
    ref.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    ref.n_dims = 1;
    ref.dims = dims;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = sizeof value;
    return desk_send(S.d, conn, REQUEST_PUT_TENSOR, &m.base, value, sizeof value, NULL, 0);
}

static uint64_t send_scope(uint64_t conn, uint64_t scope_id)
{
    Fp8d__V1__BeginScopeRequest m = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    m.scope_id = scope_id;
    m.model = str("m");
    return desk_send(S.d, conn, REQUEST_BEGIN_SCOPE, &m.base, NULL, 0, NULL, 0);
}

/* Connections of the final frames that wait at the desk, in the order they came; they are taken. */
static void take_order(char *out, size_t size)
{
    size_t n = 0;
    while (S.d->frames && n + 1 < size) {
        struct desk_frame *f = S.d->frames;
        out[n++] = (char)('0' + f->conn);
        desk_frame_free(desk_peek(S.d, f->conn, f->id));
    }
    out[n] = 0;
}

static int code(uint64_t conn, uint64_t id)
{
    return served_code(&S, conn, id, text);
}

/* --- questions beside compute --- */

START_TEST(turn_question_is_answered_while_compute_runs)
{
    /* A question is answered at once, from the state after the last completed change: the running
     * train forward is not in it yet. */
    struct desk_frame *before = desk_scaling(S.d, BYSTANDER, "m");
    uint64_t running = served_start_forward(&S, ATTACKER, 5);
    struct desk_frame *during = desk_scaling(S.d, BYSTANDER, "m");
    ck_assert_uint_eq(before->meta_len, during->meta_len);
    ck_assert_mem_eq(before->meta, during->meta, before->meta_len);
    uint64_t own = send_scaling(ATTACKER, false);
    ck_assert_int_eq(code(ATTACKER, own), OK);
    ck_assert_int_eq(code(ATTACKER, running), -1);
    desk_resume(S.d);
    ck_assert_int_eq(code(ATTACKER, running), OK);
    struct desk_frame *after = desk_scaling(S.d, BYSTANDER, "m");
    ck_assert(before->meta_len != after->meta_len ||
              memcmp(before->meta, after->meta, before->meta_len) != 0);
    desk_frame_free(before);
    desk_frame_free(during);
    desk_frame_free(after);
}
END_TEST

START_TEST(turn_ordered_question_waits_in_line)
{
    /* With head.ordered a question waits behind the ordered requests of its connection, and counts
     * against no other. */
    uint64_t running = served_start_forward(&S, ATTACKER, 0);
    uint64_t waits = send_scaling(ATTACKER, true);
    uint64_t other = send_scaling(BYSTANDER, true);
    ck_assert_int_eq(code(ATTACKER, waits), -1);
    ck_assert_int_eq(code(BYSTANDER, other), OK);
    desk_resume(S.d);
    char order[8];
    take_order(order, sizeof order);
    ck_assert_str_eq(order, "11");
    (void)running;
}
END_TEST

/* --- turns --- */

START_TEST(turn_scope_does_not_begin_beside_a_change)
{
    /* A change that found no scope open ends before one begins. */
    uint64_t running = served_start_forward(&S, ATTACKER, 5);
    uint64_t scope = send_scope(BYSTANDER, 9);
    ck_assert_int_eq(code(BYSTANDER, scope), -1);
    desk_resume(S.d);
    ck_assert_int_eq(code(ATTACKER, running), OK);
    ck_assert_int_eq(code(BYSTANDER, scope), OK);
}
END_TEST

START_TEST(turn_of_connections_is_round_robin)
{
    /* A client that fills its line does not run before one that sent a single request later. */
    char order[32];
    desk_open(S.d, 3);
    (void)served_start_forward(&S, 3, 0);
    for (unsigned i = 0; i < 5; i++)
        (void)served_forward(&S, ATTACKER, NULL, 0);
    for (unsigned i = 0; i < 2; i++)
        (void)served_forward(&S, BYSTANDER, NULL, 0);
    (void)served_forward(&S, 3, NULL, 0);
    desk_resume(S.d);
    take_order(order, sizeof order);
    ck_assert_str_eq(order, "312312111");
    desk_close(S.d, 3);
}
END_TEST

START_TEST(turn_of_computing_requests_is_one_at_a_time)
{
    /* While one computes, computing requests of others wait, and requests that only look after
     * tensors go on. */
    uint64_t running = served_start_forward(&S, ATTACKER, 0);
    uint64_t waits = served_forward(&S, BYSTANDER, NULL, 0);
    desk_open(S.d, 3);
    ck_assert_int_eq(code(3, send_free(3, 77)), NOT_FOUND);
    ck_assert_int_eq(code(BYSTANDER, waits), -1);
    Fp8d__V1__StatusReply *r = served_status(&S, 3);
    ck_assert_uint_eq(r->running, 1);
    ck_assert_uint_eq(r->queued, 1);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    desk_resume(S.d);
    ck_assert_int_eq(code(ATTACKER, running), OK);
    ck_assert_int_eq(code(BYSTANDER, waits), OK);
    desk_close(S.d, 3);
}
END_TEST

START_TEST(turn_in_flight_cap_still_hears_cancel)
{
    /* Request 65 is refused at once with a hint, its payload discarded; Cancel, Ping and the other
     * client are heard; a freed place can be used again. */
    Fp8d__V1__CancelRequest c = FP8D__V1__CANCEL_REQUEST__INIT;
    Fp8d__V1__PingRequest p = FP8D__V1__PING_REQUEST__INIT;
    uint64_t ids[64];
    ids[0] = served_start_forward(&S, ATTACKER, 0);
    for (unsigned i = 1; i < 64; i++)
        ids[i] = served_forward(&S, ATTACKER, NULL, 0);
    for (unsigned i = 0; i < 200; i++) {
        uint64_t id = served_forward(&S, ATTACKER, NULL, 0);
        struct desk_frame *f = desk_peek(S.d, ATTACKER, id);
        ck_assert(f != NULL);
        Fp8d__V1__ErrorReply *r = desk_head(f);
        ck_assert_uint_eq(r->head->code, RESOURCE_EXHAUSTED);
        ck_assert_uint_gt(r->head->retry_after_ms, 0);
        ck_assert_uint_eq(r->head->stage, FP8D__V1__STAGE__STAGE_QUEUE);
        ck_assert(strstr(r->head->message, "the cap is 64"));
        fp8d__v1__error_reply__free_unpacked(r, NULL);
        desk_frame_free(f);
    }
    ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_PING, &p.base, NULL, 0, NULL, text), OK);
    for (unsigned i = 1; i < 64; i++) {
        c.id = ids[i];
        ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_CANCEL, &c.base, NULL, 0, NULL, text),
                          OK);
        ck_assert_int_eq(code(ATTACKER, ids[i]), CANCELLED);
    }
    uint64_t again = served_forward(&S, ATTACKER, NULL, 0);
    desk_resume(S.d);
    ck_assert_int_eq(code(ATTACKER, ids[0]), OK);
    ck_assert_int_eq(code(ATTACKER, again), OK);
}
END_TEST

/* --- leaving --- */

/* A guest does something and leaves; nothing of it may be left. */
static void guest_leaves(void (*act)(uint64_t conn))
{
    struct picture p;
    picture_take(&S, &p);
    uint64_t before = served_forwards_done(&S);
    desk_open(S.d, 3);
    act(3);
    desk_close(S.d, 3);
    desk_resume(S.d);
    desk_release(S.d);
    char order[256];
    take_order(order, sizeof order);
    ck_assert_uint_le(served_forwards_done(&S), before + 1);
    picture_same(&S, &p);
    Fp8d__V1__StatusReply *r = served_status(&S, BYSTANDER);
    ck_assert_uint_eq(r->queued + r->running + r->contexts + r->scopes, 0);
    ck_assert_uint_eq(r->connections, 2);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    picture_fini(&p);
}

static void act_nothing(uint64_t conn)
{
    (void)conn;
}

static void act_queued(uint64_t conn)
{
    (void)served_start_forward(&S, BYSTANDER, 0);
    for (unsigned i = 0; i < 10; i++)
        (void)served_forward(&S, conn, NULL, 40 + i);
}

static void act_running(uint64_t conn)
{
    (void)served_start_forward(&S, conn, 0);
    (void)served_forward(&S, conn, NULL, 9);
    (void)send_put(conn, 8);
}

static void act_unheard(uint64_t conn)
{
    desk_hold(S.d);
    (void)send_put(conn, 8);
    (void)served_forward(&S, conn, NULL, 0);
    (void)send_scaling(conn, false);
}

static void act_tensors(uint64_t conn)
{
    for (unsigned i = 1; i < 20; i++)
        ck_assert_int_eq(code(conn, send_put(conn, i)), OK);
}

static void act_scope(uint64_t conn)
{
    ck_assert_int_eq(code(conn, send_scope(conn, 1)), OK);
    ck_assert_int_eq(code(conn, served_forward(&S, conn, NULL, 6)), OK);
}

START_TEST(leave_at_every_state)
{
    /* Idle, queued, running, not yet heard, with tensors, with an open scope and its contexts: all
     * of it ends with the connection, and what it fed to a scope is dropped. */
    guest_leaves(act_nothing);
    guest_leaves(act_queued);
    guest_leaves(act_running);
    guest_leaves(act_unheard);
    guest_leaves(act_tensors);
    guest_leaves(act_scope);
}
END_TEST

START_TEST(leave_frees_the_scope_for_others)
{
    /* Another client cannot train while a scope is open, and can as soon as its owner is gone. */
    desk_open(S.d, 3);
    ck_assert_int_eq(code(3, send_scope(3, 1)), OK);
    ck_assert_int_eq(code(BYSTANDER, served_forward(&S, BYSTANDER, NULL, 5)), FAILED_PRECONDITION);
    ck_assert_msg(strstr(text, "connection 3") && strstr(text, "scope 1"), "%s", text);
    desk_close(S.d, 3);
    ck_assert_int_eq(code(BYSTANDER, served_forward(&S, BYSTANDER, NULL, 5)), OK);
}
END_TEST

/* --- drain --- */

static unsigned drained_calls;

static void on_drained(void *arg)
{
    ck_assert_ptr_eq(arg, &S);
    drained_calls++;
}

START_TEST(drain_finishes_running_and_refuses_queued)
{
    /* Queued and new requests are UNAVAILABLE and not executed, the running one finishes, questions
     * are answered, and `drained` comes once, after it. */
    drained_calls = 0;
    uint64_t running = served_start_forward(&S, ATTACKER, 0);
    uint64_t behind = served_forward(&S, ATTACKER, NULL, 0);
    uint64_t queued = served_forward(&S, BYSTANDER, NULL, 0);
    uint64_t before = served_forwards_done(&S);
    rpc_drain(S.d->rpc, on_drained, &S);
    desk_pump(S.d);
    ck_assert_int_eq(code(BYSTANDER, queued), UNAVAILABLE);
    ck_assert_msg(strstr(text, "not executed"), "%s", text);
    uint64_t fresh = served_forward(&S, BYSTANDER, NULL, 0);
    ck_assert_int_eq(code(BYSTANDER, fresh), UNAVAILABLE);
    Fp8d__V1__StatusReply *r = served_status(&S, BYSTANDER);
    ck_assert(r->draining);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    ck_assert_uint_eq(drained_calls, 0);
    desk_resume(S.d);
    ck_assert_int_eq(code(ATTACKER, running), OK);
    ck_assert_int_eq(code(ATTACKER, behind), UNAVAILABLE);
    ck_assert_uint_eq(drained_calls, 1);
    ck_assert_int_eq(code(ATTACKER, served_forward(&S, ATTACKER, NULL, 0)), UNAVAILABLE);
    ck_assert_uint_eq(drained_calls, 1);
    ck_assert_uint_eq(served_forwards_done(&S), before + 1);
}
END_TEST

START_TEST(drain_of_an_idle_server_is_at_once)
{
    /* Nothing runs: drained without waiting for anything. */
    drained_calls = 0;
    rpc_drain(S.d->rpc, on_drained, &S);
    desk_pump(S.d);
    ck_assert_uint_eq(drained_calls, 1);
}
END_TEST

START_TEST(drain_when_the_running_client_leaves)
{
    /* The running request's client goes, with more in its line: drained comes all the same. */
    drained_calls = 0;
    desk_open(S.d, 3);
    (void)served_start_forward(&S, 3, 0);
    (void)served_forward(&S, 3, NULL, 0);
    rpc_drain(S.d->rpc, on_drained, &S);
    desk_pump(S.d);
    desk_close(S.d, 3);
    ck_assert_uint_eq(drained_calls, 0);
    desk_resume(S.d);
    ck_assert_uint_eq(drained_calls, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_turns");
    TCase *t = tcase_create("turns");
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, turn_question_is_answered_while_compute_runs);
    tcase_add_test(t, turn_ordered_question_waits_in_line);
    tcase_add_test(t, turn_scope_does_not_begin_beside_a_change);
    tcase_add_test(t, turn_of_connections_is_round_robin);
    tcase_add_test(t, turn_of_computing_requests_is_one_at_a_time);
    tcase_add_test(t, turn_in_flight_cap_still_hears_cancel);
    tcase_add_test(t, leave_at_every_state);
    tcase_add_test(t, leave_frees_the_scope_for_others);
    tcase_add_test(t, drain_finishes_running_and_refuses_queued);
    tcase_add_test(t, drain_of_an_idle_server_is_at_once);
    tcase_add_test(t, drain_when_the_running_client_leaves);
    suite_add_tcase(s, t);
    return run_suite(s);
}
