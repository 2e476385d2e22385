/* test_rpc_gone.c - a model leaves its name (dropped, or replaced) while something runs on it,
 * holds it, or waits for it: what runs finishes with the version it began with, and feeds nothing.
 */
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

static uint64_t send(uint64_t conn, uint16_t type, const ProtobufCMessage *m)
{
    return desk_send(S.d, conn, type, m, NULL, 0, NULL, 0);
}

static uint64_t send_begin(uint64_t scope_id)
{
    Fp8d__V1__BeginScopeRequest m = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    m.scope_id = scope_id;
    m.model = str("m");
    return send(ATTACKER, REQUEST_BEGIN_SCOPE, &m.base);
}

static uint64_t send_end(uint64_t scope_id)
{
    Fp8d__V1__EndScopeRequest m = FP8D__V1__END_SCOPE_REQUEST__INIT;
    m.scope_id = scope_id;
    return send(ATTACKER, REQUEST_END_SCOPE, &m.base);
}

static uint64_t send_finish(void)
{
    Fp8d__V1__FinishCalibrationRequest m = FP8D__V1__FINISH_CALIBRATION_REQUEST__INIT;
    m.model = str("m");
    m.action = FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_FINISH;
    return send(ATTACKER, REQUEST_FINISH_CALIBRATION, &m.base);
}

/* On a resident or inline input, layer "a". */
static uint64_t send_inline(uint16_t type, Fp8d__V1__Mode mode)
{
    Fp8d__V1__ForwardRequest f = FP8D__V1__FORWARD_REQUEST__INIT;
    Fp8d__V1__CheckNumericsRequest c = FP8D__V1__CHECK_NUMERICS_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    uint64_t dims[] = {SERVED_TOKENS, SERVED_IN};
    f.model = c.model = str("m");
    f.layer = c.layer = str("a");
    f.mode = mode;
    f.input = c.input = &ref;
    ref.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    ref.n_dims = 2;
    ref.dims = dims;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = sizeof S.x;
    return desk_send(S.d, ATTACKER, type, type == REQUEST_FORWARD ? &f.base : &c.base, S.x,
                     sizeof S.x, NULL, 0);
}

static uint64_t send_train(void)
{
    return send_inline(REQUEST_FORWARD, FP8D__V1__MODE__MODE_TRAIN);
}

static uint64_t send_calibrate(void)
{
    return send_inline(REQUEST_FORWARD, FP8D__V1__MODE__MODE_CALIBRATE);
}

static uint64_t send_check(void)
{
    return send_inline(REQUEST_CHECK_NUMERICS, 0);
}

static uint64_t send_context(void)
{
    return served_forward(&S, ATTACKER, NULL, 9);
}

static uint64_t end_scope_4(void)
{
    return send_end(4);
}

static void must(uint64_t id)
{
    int code = served_code(&S, ATTACKER, id, text);
    ck_assert_msg(code == OK, "code %d: %s", code, text);
}

static void open_scope(void)
{
    must(send_begin(4));
    must(send_train());
}

static void begin_calibration(void)
{
    must(send_calibrate());
}

/* Another "m", or none. */
static void leave_name(bool replace)
{
    const struct desk_layer layer = {"a", SERVED_OUT, SERVED_IN, S.wa, S.bias};
    Fp8d__V1__DropModelRequest d = FP8D__V1__DROP_MODEL_REQUEST__INIT;
    d.model = str("m");
    if (replace)
        ck_assert_uint_eq(desk_load(S.d, BYSTANDER, "m", &layer, 1, NULL, text), OK);
    else
        served_accepts(&S, BYSTANDER, REQUEST_DROP_MODEL, &d.base);
}

struct row {
    const char *name;
    void (*before)(void);
    uint64_t (*send)(void);
    int code; /* of what ran when the model left */
};

static const struct row rows[] = {
    {"train", NULL, send_train, OK},
    {"context", NULL, send_context, OK},
    {"calibrate", NULL, send_calibrate, OK},
    {"check", NULL, send_check, OK},
    {"train in a scope", open_scope, send_train, OK},
    {"end of a scope", open_scope, end_scope_4, FAILED_PRECONDITION},
    {"finish calibration", begin_calibration, send_finish, -1}, /* either */
};

static void run_row(const struct row *r, bool replace)
{
    struct picture p;
    if (r->before)
        r->before();
    desk_hold(S.d);
    uint64_t id = r->send();
    ck_assert(desk_step(S.d));
    desk_set_aside(S.d);
    desk_release(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, id, text), -1);
    leave_name(replace);
    if (replace) {
        struct desk_frame *f = desk_scaling(S.d, BYSTANDER, "m");
        p.scaling = f;
    }
    desk_resume(S.d);
    int code = served_code(&S, ATTACKER, id, text);
    ck_assert_msg(code == r->code || (r->code < 0 && (code == OK || code == FAILED_PRECONDITION)),
                  "%s: code %d: %s", r->name, code, text);
    if (replace) {
        struct desk_frame *f = desk_scaling(S.d, BYSTANDER, "m");
        ck_assert_msg(f->meta_len == p.scaling->meta_len &&
                          !memcmp(f->meta, p.scaling->meta, f->meta_len),
                      "%s fed the new model", r->name);
        desk_frame_free(f);
        desk_frame_free(p.scaling);
    }
}

START_TEST(gone_while_it_runs)
{
    /* Dropped and replaced under each computing request: it ends well or says why, the new model of
     * that name sees nothing of it, and at the end nothing is left. */
    const struct row *r = &rows[_i / 2];
    run_row(r, _i % 2);
}
END_TEST

START_TEST(gone_while_requests_wait_for_it)
{
    /* What waits in line finds no model when its turn comes. */
    (void)served_start_forward(&S, BYSTANDER, 0);
    uint64_t train = send_train(), finish = send_finish(), scope = send_begin(1);
    Fp8d__V1__DropModelRequest d = FP8D__V1__DROP_MODEL_REQUEST__INIT;
    d.model = str("m");
    desk_open(S.d, 3);
    served_accepts(&S, 3, REQUEST_DROP_MODEL, &d.base);
    desk_resume(S.d);
    ck_assert_int_eq(served_code(&S, ATTACKER, train, text), NOT_FOUND);
    ck_assert_int_eq(served_code(&S, ATTACKER, finish, text), NOT_FOUND);
    ck_assert_int_eq(served_code(&S, ATTACKER, scope, text), NOT_FOUND);
    desk_close(S.d, 3);
}
END_TEST

START_TEST(gone_with_contexts_and_scopes_of_one_that_left)
{
    /* Contexts and a scope on a dropped model; their owner leaves afterwards, or ends them itself.
     */
    Fp8d__V1__DropContextRequest c = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    open_scope();
    must(send_context());
    leave_name(_i == 1);
    c.context_id = 9;
    if (_i == 2) {
        served_accepts(&S, ATTACKER, REQUEST_DROP_CONTEXT, &c.base);
        ck_assert_int_eq(served_code(&S, ATTACKER, send_end(4), text), FAILED_PRECONDITION);
        ck_assert_msg(strstr(text, "model m was replaced or unloaded"), "%s", text);
        ck_assert_int_eq(served_code(&S, ATTACKER, send_end(4), text), NOT_FOUND);
    }
}
END_TEST

START_TEST(gone_scope_lets_the_next_one_open)
{
    /* The orphan does not hold the new model of that name: its owner opens another scope there. */
    open_scope();
    leave_name(true);
    must(send_begin(5));
    must(send_train());
    must(send_end(5));
    ck_assert_int_eq(served_code(&S, ATTACKER, send_end(4), text), FAILED_PRECONDITION);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_gone");
    TCase *t = tcase_create("gone");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_loop_test(t, gone_while_it_runs, 0, 2 * (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(t, gone_while_requests_wait_for_it);
    tcase_add_loop_test(t, gone_with_contexts_and_scopes_of_one_that_left, 0, 3);
    tcase_add_test(t, gone_scope_lets_the_next_one_open);
    suite_add_tcase(s, t);
    return run_suite(s);
}
