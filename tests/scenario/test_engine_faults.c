/* Memory runs out at every allocation of a request in turn: an error leaves scaling state,
 * versions, ids and the ledger as they were. */
#include "tests/scenario/ask.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 6
#define ID 7 /* of the output and the context that are asked for */

/* --- fixture --- */

enum kind { TRAIN, TRAIN_UNSET, TRAIN_IN_SCOPE, TRAIN_TIMED, EVAL, CALIBRATE, CHECK, EDIT, FINISH, KINDS };

struct fix {
    struct desk *desk;
    struct ask a;
    float *w, *x;
    bool time_compute; /* of forwards */
};

static unsigned forward(struct fix *f, Fp8d__V1__Mode mode, Fp8d__V1__FirstMicrobatch first)
{
    bool train = mode == FP8D__V1__MODE__MODE_TRAIN;
    struct ask_forward r = {.model = "m", .layer = "l", .mode = mode, .first = first,
                            .output_id = ID, .context_id = train ? ID : 0,
                            .time_compute = f->time_compute,
                            .x = ask_f32(f->x, TOKENS, IN)};
    unsigned code = ask_forward(&f->a, &r);
    ask_forward_free(&r);
    return code;
}

static void take_back(struct fix *f)
{
    (void)ask_free(&f->a, ID);
    (void)ask_drop_context(&f->a, ID);
}

/* All tables of ids have their size, the sites are set, and both copies are made. */
static void fix_open(struct fix *f, enum kind kind)
{
    *f = (struct fix){.desk = desk_new(NULL, 0)};
    f->a = ask_open(f->desk, 1);
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->x = draw_normal(2, TOKENS * IN, 2.0);
    struct desk_layer layer = {"l", OUT, IN, f->w, NULL};
    ck_assert(!desk_load(f->desk, 1, "m", &layer, 1, NULL, NULL));
    ck_assert(!forward(f, FP8D__V1__MODE__MODE_TRAIN, 0));
    take_back(f);
    ck_assert(!forward(f, FP8D__V1__MODE__MODE_EVAL, 0));
    take_back(f);
    if (kind == FINISH)
        ck_assert(!forward(f, FP8D__V1__MODE__MODE_CALIBRATE, 0));
    take_back(f);
    if (kind == TRAIN_IN_SCOPE)
        ck_assert(!ask_scope_begin(&f->a, 1, "m"));
    f->time_compute = kind == TRAIN_TIMED;
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
    free(f->w);
    free(f->x);
}

/* --- helpers --- */

static unsigned request(struct fix *f, enum kind kind)
{
    struct ask_tensor x = ask_f32(f->x, TOKENS, IN), w = ask_f32(f->w, OUT, IN);
    switch (kind) {
    case EVAL:
        return forward(f, FP8D__V1__MODE__MODE_EVAL, 0);
    case CALIBRATE:
        return forward(f, FP8D__V1__MODE__MODE_CALIBRATE, 0);
    case CHECK:
        return ask_check(&f->a, "m", "l", &x, NULL);
    case EDIT:
        return ask_edit(&f->a, "m", "l", &w, NULL, NULL, NULL);
    case FINISH:
        return ask_finish(&f->a, "m", NULL);
    default:
        return forward(f, FP8D__V1__MODE__MODE_TRAIN,
                       kind == TRAIN ? FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_YES
                                     : FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_UNSPECIFIED);
    }
}

/* Let the n-th allocation of the request fail. False once none did: the request went well. Counts
 * those that were refused. */
static bool try(struct fix *f, enum kind kind, int64_t n, unsigned *refused)
{
    Fp8d__V1__QueryScalingReply *before = ask_state(&f->a, "m");
    uint64_t used = ledger_used(&f->desk->ledger);
    mem_fault_arm(n, false);
    unsigned code = request(f, kind);
    bool fired = mem_fault_fired();
    mem_fault_arm(-1, false);
    if (code && !strstr(f->a.text, "was executed")) {
        ++*refused;
        ck_assert_msg(code == ASK_RESOURCE_EXHAUSTED, "fault %lld: code %u, %s", (long long)n,
                      code, f->a.text);
        Fp8d__V1__QueryScalingReply *after = ask_state(&f->a, "m");
        ask_states_equal(before, after, true);
        ck_assert(before->calibrating == after->calibrating);
        ask_state_free(after);
        ck_assert_uint_eq(ledger_used(&f->desk->ledger), used);
        ck_assert_uint_eq(ask_free(&f->a, ID), ASK_NOT_FOUND);
        ck_assert_uint_eq(ask_drop_context(&f->a, ID), ASK_NOT_FOUND);
    }
    take_back(f);
    ask_state_free(before);
    ck_assert_msg(fired || !code, "no fault, but: %s", f->a.text);
    return fired;
}

/* --- cases --- */

/* One request of each kind, over all its allocations. */
START_TEST(faults_leave_the_state_alone)
{
    int64_t n = 0;
    unsigned refused = 0;
    for (;; n++) {
        struct fix f;
        fix_open(&f, (enum kind)_i);
        bool fired = try(&f, (enum kind)_i, n, &refused);
        fix_close(&f);
        if (!fired)
            break;
        ck_assert_int_lt(n, 1000);
    }
    ck_assert_int_gt(n, 2);
    ck_assert_uint_gt(refused, 2);
}
END_TEST

/* A request that failed for memory can be made again: what it gives is what it would have given. */
START_TEST(faults_do_not_change_the_next_request)
{
    struct ask_forward want = {.model = "m", .layer = "l", .mode = FP8D__V1__MODE__MODE_TRAIN};
    unsigned repeated = 0;
    for (int64_t n = -1;; n++) {
        struct fix f;
        fix_open(&f, TRAIN_UNSET);
        struct ask_forward r = {.model = "m", .layer = "l", .mode = FP8D__V1__MODE__MODE_TRAIN,
                                .x = ask_f32(f.x, TOKENS, IN)};
        mem_fault_arm(n, false);
        unsigned code = ask_forward(&f.a, &r);
        bool done = !code || strstr(f.a.text, "was executed") != NULL;
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        if (!done) {
            repeated++;
            ck_assert(!ask_forward(&f.a, &r));
        }
        if (n < 0) {
            want.y = r.y;
            want.y_bytes = r.y_bytes;
            ck_assert_uint_eq(want.y_bytes, (uint64_t)TOKENS * OUT * sizeof(float));
            r.y = NULL;
        } else if (r.y) {
            ck_assert_uint_eq(r.y_bytes, want.y_bytes);
            ck_assert_mem_eq(r.y, want.y, want.y_bytes);
        }
        ask_forward_free(&r);
        fix_close(&f);
        if (n >= 0 && !fired)
            break;
    }
    ck_assert_uint_gt(repeated, 2);
    ask_forward_free(&want);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine_faults");
    TCase *c = tcase_create("engine_faults");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, faults_leave_the_state_alone, 0, KINDS);
    tcase_add_test(c, faults_do_not_change_the_next_request);
    suite_add_tcase(s, c);
    return run_suite(s);
}
