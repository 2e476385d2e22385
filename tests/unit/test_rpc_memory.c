/* test_rpc_memory.c - each allocation of each request fails once: a clean error, nothing changed,
 * nothing left. */
#include "base/mem.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- fixture --- */

static struct served S;
static char text[1024];
static int file; /* made beforehand: making one allocates */

static void open_served(void)
{
    file = served_file(3);
    served_open(&S, NULL, 0);
}

static void close_served(void)
{
    served_close(&S);
    close(file);
}

/* --- helpers: requests as functions that give their code --- */

static unsigned call(uint16_t type, const ProtobufCMessage *m)
{
    return served_call(&S, ATTACKER, type, m, NULL, 0, NULL, 0, text);
}

static unsigned put(bool fp8)
{
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    uint64_t dims[] = {3, 32};
    float factor = 0.5f;
    m.tensor_id = 1;
    m.tensor = &ref;
    ref.dtype = fp8 ? FP8D__V1__DTYPE__DTYPE_F8_E4M3 : FP8D__V1__DTYPE__DTYPE_F32;
    ref.n_scale_inv = fp8;
    ref.scale_inv = &factor;
    ref.n_dims = 2;
    ref.dims = dims;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = fp8 ? 96 : 384;
    return served_call(&S, ATTACKER, REQUEST_PUT_TENSOR, &m.base, S.x, place.length, NULL, 0, text);
}

static unsigned put_f32(void)
{
    return put(false);
}

static unsigned put_fp8(void)
{
    return put(true);
}

static unsigned get(void)
{
    Fp8d__V1__GetTensorRequest m = FP8D__V1__GET_TENSOR_REQUEST__INIT;
    m.tensor_id = 1;
    return call(REQUEST_GET_TENSOR, &m.base);
}

static unsigned free_tensor(void)
{
    Fp8d__V1__FreeTensorRequest m = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    m.tensor_id = 1;
    return call(REQUEST_FREE_TENSOR, &m.base);
}

/* On resident tensor 1, so that the request itself is what allocates. */
static unsigned forward(Fp8d__V1__Mode mode, uint64_t output_id, uint64_t context_id)
{
    Fp8d__V1__ForwardRequest m = FP8D__V1__FORWARD_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    m.model = str("m");
    m.layer = str("a");
    m.mode = mode;
    m.output_id = output_id;
    m.context_id = context_id;
    m.input = &ref;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    ref.tensor_id = 1;
    return call(REQUEST_FORWARD, &m.base);
}

static unsigned forward_eval(void)
{
    return forward(FP8D__V1__MODE__MODE_EVAL, 0, 0);
}

static unsigned forward_kept(void)
{
    return forward(FP8D__V1__MODE__MODE_EVAL, 2, 0);
}

static unsigned forward_train(void)
{
    return forward(FP8D__V1__MODE__MODE_TRAIN, 0, 0);
}

static unsigned forward_context(void)
{
    return forward(FP8D__V1__MODE__MODE_TRAIN, 2, 3);
}

static unsigned forward_calibrate(void)
{
    return forward(FP8D__V1__MODE__MODE_CALIBRATE, 0, 0);
}

static unsigned drop_kept(void)
{
    Fp8d__V1__FreeTensorRequest t = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    Fp8d__V1__DropContextRequest c = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    t.tensor_id = 2;
    c.context_id = 3;
    (void)call(REQUEST_DROP_CONTEXT, &c.base);
    return call(REQUEST_FREE_TENSOR, &t.base);
}

static unsigned check(void)
{
    Fp8d__V1__CheckNumericsRequest m = FP8D__V1__CHECK_NUMERICS_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    m.model = str("m");
    m.layer = str("a");
    m.input = &ref;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    ref.tensor_id = 1;
    return call(REQUEST_CHECK_NUMERICS, &m.base);
}

static unsigned begin_scope(void)
{
    Fp8d__V1__BeginScopeRequest m = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    m.model = str("m");
    m.scope_id = 4;
    return call(REQUEST_BEGIN_SCOPE, &m.base);
}

static unsigned end_scope(void)
{
    Fp8d__V1__EndScopeRequest m = FP8D__V1__END_SCOPE_REQUEST__INIT;
    m.scope_id = 4;
    return call(REQUEST_END_SCOPE, &m.base);
}

static unsigned finish(Fp8d__V1__CalibrationAction action)
{
    Fp8d__V1__FinishCalibrationRequest m = FP8D__V1__FINISH_CALIBRATION_REQUEST__INIT;
    m.model = str("m");
    m.action = action;
    return call(REQUEST_FINISH_CALIBRATION, &m.base);
}

static unsigned finish_calibration(void)
{
    return finish(FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_FINISH);
}

static unsigned abort_calibration(void)
{
    return finish(FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_ABORT);
}

static unsigned edit(void)
{
    Fp8d__V1__EditWeightRequest m = FP8D__V1__EDIT_WEIGHT_REQUEST__INIT;
    Fp8d__V1__TensorRef w = FP8D__V1__TENSOR_REF__INIT, b = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace pw = FP8D__V1__INLINE_PLACE__INIT, pb = FP8D__V1__INLINE_PLACE__INIT;
    static float values[SERVED_OUT * SERVED_IN + SERVED_OUT];
    uint64_t dw[] = {SERVED_OUT, SERVED_IN}, db[] = {SERVED_OUT};
    m.model = str("m");
    m.layer = str("a");
    m.weight = &w;
    m.bias = &b;
    w.dtype = b.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    w.n_dims = 2;
    w.dims = dw;
    b.n_dims = 1;
    b.dims = db;
    w.place_case = b.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    w.inline_bytes = &pw;
    b.inline_bytes = &pb;
    pw.length = pb.offset = sizeof S.wa;
    pb.length = sizeof S.bias;
    return served_call(&S, ATTACKER, REQUEST_EDIT_WEIGHT, &m.base, values, sizeof values, NULL, 0,
                       text);
}

static unsigned questions(void)
{
    Fp8d__V1__ListModelsRequest l = FP8D__V1__LIST_MODELS_REQUEST__INIT;
    Fp8d__V1__DescribeModelRequest d = FP8D__V1__DESCRIBE_MODEL_REQUEST__INIT;
    Fp8d__V1__QueryScalingRequest q = FP8D__V1__QUERY_SCALING_REQUEST__INIT;
    Fp8d__V1__StatusRequest s = FP8D__V1__STATUS_REQUEST__INIT;
    Fp8d__V1__PingRequest p = FP8D__V1__PING_REQUEST__INIT;
    d.model = q.model = str("m");
    q.history = true;
    unsigned code = call(REQUEST_LIST_MODELS, &l.base);
    code = code ? code : call(REQUEST_DESCRIBE_MODEL, &d.base);
    code = code ? code : call(REQUEST_QUERY_SCALING, &q.base);
    code = code ? code : call(REQUEST_STATUS, &s.base);
    return code ? code : call(REQUEST_PING, &p.base);
}

/* A whole load by a guest, whose end drops what is left of it. */
static uint64_t guest = 100;

static unsigned load(void)
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadAttachRequest a = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    char *name = str("l*");
    int fd = dup(file);
    b.load_id = a.load_id = c.load_id = 6;
    b.model = str("m2");
    b.options = &o;
    a.n_names = o.n_only = 1;
    a.names = o.only = &name;
    c.progress = true;
    unsigned code = served_call(&S, guest, REQUEST_LOAD_BEGIN, &b.base, NULL, 0, NULL, 0, text);
    if (code)
        close(fd);
    else
        code = served_call(&S, guest, REQUEST_LOAD_ATTACH, &a.base, NULL, 0, &fd, 1, text);
    return code ? code
                : served_call(&S, guest, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, 0, text);
}

/* --- the rows --- */

struct step {
    const char *name;
    unsigned (*before)(void); /* made once, must succeed; may be NULL */
    unsigned (*run)(void);
    unsigned (*undo)(void); /* after a success that is not the last; may be NULL */
    bool leaves;            /* the last success is left alone: no undo needed */
};

static const struct step steps[] = {
    {"put", NULL, put_f32, free_tensor, false},
    {"get", put_f32, get, NULL, false},
    {"forward eval", NULL, forward_eval, NULL, false},
    {"forward kept", NULL, forward_kept, drop_kept, false},
    {"forward train", NULL, forward_train, NULL, false},
    {"forward with context", NULL, forward_context, drop_kept, false},
    {"check", NULL, check, NULL, false},
    {"begin scope", NULL, begin_scope, end_scope, false},
    {"train in a scope", begin_scope, forward_train, NULL, false},
    {"end scope", NULL, end_scope, begin_scope, true},
    {"calibrate", NULL, forward_calibrate, NULL, false},
    {"finish calibration", NULL, finish_calibration, forward_calibrate, true},
    {"abort calibration", forward_calibrate, abort_calibration, forward_calibrate, true},
    {"edit", NULL, edit, NULL, false},
    {"questions", NULL, questions, NULL, false},
    {"free", NULL, free_tensor, put_f32, true},
    {"put fp8", NULL, put_fp8, free_tensor, false},
    {"get fp8", put_fp8, get, NULL, false},
    {"forward fp8", NULL, forward_train, NULL, false},
};

static bool unknown(void)
{
    return strstr(text, "whether the request was executed is not known") != NULL;
}

/* Fail allocation n of the step. False: it has fewer. */
static bool fail_at(const struct step *s, int64_t n)
{
    struct picture p;
    picture_take(&S, &p);
    mem_fault_arm(n, false);
    unsigned code = s->run();
    bool fired = mem_fault_fired();
    mem_fault_arm(-1, false);
    bool certain = code != OK && !unknown();
    ck_assert_msg(fired || code == OK, "%s without a failure: %u, %s", s->name, code, text);
    ck_assert_msg(code == OK || code == RESOURCE_EXHAUSTED, "%s, allocation %lld: code %u, %s",
                  s->name, (long long)n, code, text);
    ck_assert_msg(code == OK || text[0], "%s: no sentence", s->name);
    if (certain)
        picture_same(&S, &p);
    else if (s->undo && (fired || !s->leaves))
        (void)s->undo();
    picture_fini(&p);
    return fired;
}

START_TEST(memory_fails_once_at_every_allocation)
{
    /* RESOURCE_EXHAUSTED and an unchanged state each time, until the step succeeds; only where the
     * reply itself could not be built is the outcome unknown, and said to be. */
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int64_t n = 0;
        ck_assert(!steps[i].before || steps[i].before() == OK);
        while (fail_at(&steps[i], n))
            ck_assert_int_lt(++n, 500);
        ck_assert_msg(n > 0, "%s allocates nothing", steps[i].name);
    }
}
END_TEST

START_TEST(memory_fails_once_at_every_allocation_of_a_load)
{
    /* The same for begin, attach and commit together, on the loader's thread too. */
    const struct step step = {"load", NULL, load, NULL, true};
    bool fired = true;
    int64_t n = 0;
    for (; fired; n++) {
        desk_open(S.d, ++guest);
        fired = fail_at(&step, n);
        desk_close(S.d, guest);
    }
    ck_assert_int_gt(n, 30);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_memory");
    TCase *t = tcase_create("memory");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, memory_fails_once_at_every_allocation);
    tcase_add_test(t, memory_fails_once_at_every_allocation_of_a_load);
    suite_add_tcase(s, t);
    return run_suite(s);
}
