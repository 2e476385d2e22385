/* What runs while its model leaves its name or its connection ends: each request is held between
 * its compute and its completion, where everything it uses must still be there. */
#include "tests/scenario/ask.h"
#include "tests/unit/run.h"

#include <stdlib.h>

#define OUT 32
#define IN 48
#define TOKENS 6

/* --- fixture --- */

struct fix {
    struct desk *desk;
    struct ask a, other;
    float *w, *x;
    uint64_t used; /* ledger and blocks when nothing is loaded */
    int64_t blocks;
};

static void load(struct fix *f)
{
    struct desk_layer layer = {"l", OUT, IN, f->w, NULL};
    ck_assert_msg(!desk_load(f->desk, 2, "m", &layer, 1, NULL, f->other.text), "%s",
                  f->other.text);
}

static unsigned forward(struct fix *f, Fp8d__V1__Mode mode, uint64_t output, uint64_t context)
{
    struct ask_forward r = {.model = "m", .layer = "l", .mode = mode, .output_id = output,
                            .context_id = context, .x = ask_f32(f->x, TOKENS, IN)};
    unsigned code = ask_forward(&f->a, &r);
    ask_forward_free(&r);
    return code;
}

/* Tables of ids have grown to their size before the blocks are counted. */
static void fix_open(struct fix *f)
{
    *f = (struct fix){.desk = desk_new(NULL, 0)};
    f->a = ask_open(f->desk, 1);
    f->other = ask_open(f->desk, 2);
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->x = draw_normal(2, TOKENS * IN, 2.0);
    load(f);
    ck_assert(!forward(f, FP8D__V1__MODE__MODE_TRAIN, 1, 1));
    ck_assert(!ask_free(&f->a, 1) && !ask_drop_context(&f->a, 1));
    ck_assert(!ask_scope_begin(&f->a, 1, "m") && !ask_scope_end(&f->a, 1, true, NULL));
    ck_assert(!ask_drop_model(&f->a, "m", NULL));
    f->used = ledger_used(&f->desk->ledger);
    f->blocks = desk_blocks();
    load(f);
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    ask_close(&f->other);
    desk_free(f->desk);
    free(f->w);
    free(f->x);
}

/* --- helpers --- */

/* From here on requests wait: with what was sent, and a drop of the model by the other connection,
 * in line. The drop runs between the start and the completion of what came before it. */
static uint64_t drop_behind(struct fix *f)
{
    uint64_t id = f->a.sent;
    f->other.later = true;
    ck_assert(ask_drop_model(&f->other, "m", NULL) == ASK_LATER);
    f->other.later = false;
    desk_release(f->desk);
    ck_assert(!ask_take(&f->other, f->other.sent));
    return id;
}

static void hold(struct fix *f)
{
    desk_hold(f->desk);
    f->a.later = true;
}

static unsigned answer(struct fix *f, uint64_t id)
{
    f->a.later = false;
    return ask_take(&f->a, id);
}

static void nothing_is_left(struct fix *f)
{
    ck_assert_uint_eq(ledger_used(&f->desk->ledger), f->used);
    ck_assert_int_eq(desk_blocks(), f->blocks);
    Fp8d__V1__StatusReply *s = ask_status(&f->other);
    ck_assert(s->contexts == 0 && s->scopes == 0 && s->models == 0 && s->running == 0);
    fp8d__v1__status_reply__free_unpacked(s, NULL);
}

/* --- the model goes --- */

/* A forward of each mode finishes on the model that it began with. */
START_TEST(flight_forward_over_an_unload)
{
    static const Fp8d__V1__Mode modes[] = {FP8D__V1__MODE__MODE_EVAL, FP8D__V1__MODE__MODE_TRAIN,
                                           FP8D__V1__MODE__MODE_CALIBRATE};
    struct fix f;
    fix_open(&f);
    hold(&f);
    ck_assert_uint_eq(forward(&f, modes[_i], 0, 0), ASK_LATER);
    ck_assert(!answer(&f, drop_behind(&f)));
    nothing_is_left(&f);
    load(&f); /* nothing of it is in the model that comes */
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.a, "m");
    ck_assert(!s->calibrating && ask_site(s, "l", "input")->updates == 0);
    ck_assert(s->layers[0]->cached_version == 0);
    ask_state_free(s);
    fix_close(&f);
}
END_TEST

/* What it kept can be got and dropped afterwards, and is the last to go. */
START_TEST(flight_context_over_an_unload)
{
    struct fix f;
    fix_open(&f);
    hold(&f);
    ck_assert_uint_eq(forward(&f, FP8D__V1__MODE__MODE_TRAIN, 5, 6), ASK_LATER);
    ck_assert(!answer(&f, drop_behind(&f)));
    struct desk_frame *frame;
    ck_assert(!ask_get(&f.a, 5, &frame, NULL));
    ck_assert_uint_eq(frame->payload_len, TOKENS * OUT * 4);
    desk_frame_free(frame);
    ck_assert(!ask_free(&f.a, 5) && ledger_used(&f.desk->ledger) > f.used);
    ck_assert(!ask_drop_context(&f.a, 6));
    nothing_is_left(&f);
    fix_close(&f);
}
END_TEST

/* A forward in a scope: the scope is an orphan when it comes back. */
START_TEST(flight_scoped_forward_over_an_unload)
{
    struct fix f;
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m") && !forward(&f, FP8D__V1__MODE__MODE_TRAIN, 0, 0));
    hold(&f);
    ck_assert_uint_eq(forward(&f, FP8D__V1__MODE__MODE_TRAIN, 0, 0), ASK_LATER);
    ck_assert(!answer(&f, drop_behind(&f)));
    ck_assert_uint_eq(ask_scope_end(&f.a, 1, false, NULL), ASK_FAILED_PRECONDITION);
    nothing_is_left(&f);
    fix_close(&f);
}
END_TEST

/* An end that is under way comes to an end, and says that nothing was updated. */
START_TEST(flight_scope_end_over_an_unload)
{
    struct fix f;
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m") && !forward(&f, FP8D__V1__MODE__MODE_TRAIN, 0, 0));
    hold(&f);
    ck_assert_uint_eq(ask_scope_end(&f.a, 1, false, NULL), ASK_LATER);
    ck_assert_uint_eq(answer(&f, drop_behind(&f)), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(ask_scope_end(&f.a, 1, false, NULL), ASK_NOT_FOUND);
    nothing_is_left(&f);
    fix_close(&f);
}
END_TEST

/* A check finishes on the model that it began with; the end of a calibration, whose scales would be
 * those of no model, says so (FAILED_PRECONDITION, 9). */
START_TEST(flight_finish_and_check_over_an_unload)
{
    struct fix f;
    fix_open(&f);
    struct ask_tensor x = ask_f32(f.x, TOKENS, IN);
    ck_assert(!forward(&f, FP8D__V1__MODE__MODE_CALIBRATE, 0, 0));
    hold(&f);
    if (_i)
        ck_assert_uint_eq(ask_check(&f.a, "m", "l", &x, NULL), ASK_LATER);
    else
        ck_assert_uint_eq(ask_finish(&f.a, "m", NULL), ASK_LATER);
    ck_assert_uint_eq(answer(&f, drop_behind(&f)), _i ? 0 : 9);
    nothing_is_left(&f);
    fix_close(&f);
}
END_TEST

/* --- the connection goes --- */

/* Whatever a connection has running and waiting when it ends: the running request finishes, the
 * rest is not executed, and all that it held is gone. */
START_TEST(flight_over_a_connections_end)
{
    struct fix f;
    fix_open(&f);
    struct ask_tensor x = ask_f32(f.x, TOKENS, IN);
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.other, "m");
    ck_assert(!ask_scope_begin(&f.a, 1, "m") && !forward(&f, FP8D__V1__MODE__MODE_TRAIN, 1, 1));
    hold(&f);
    if (_i == 0)
        (void)forward(&f, FP8D__V1__MODE__MODE_TRAIN, 2, 2);
    else
        (void)ask_check(&f.a, "m", "l", &x, NULL);
    (void)ask_scope_end(&f.a, 1, false, NULL);
    ask_close(&f.a);
    desk_release(f.desk);
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.other, "m");
    ask_states_equal(before, after, false);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert(!ask_drop_model(&f.other, "m", NULL));
    ck_assert_uint_eq(ledger_used(&f.desk->ledger), f.used);
    f.a = ask_open(f.desk, 3);
    fix_close(&f);
}
END_TEST

/* An end of a scope that runs when its connection ends is an end: the update is made. */
START_TEST(flight_scope_end_over_its_connections_end)
{
    struct fix f;
    fix_open(&f);
    ck_assert(!ask_scope_begin(&f.a, 1, "m") && !forward(&f, FP8D__V1__MODE__MODE_TRAIN, 0, 0));
    hold(&f);
    (void)ask_scope_end(&f.a, 1, false, NULL);
    ask_close(&f.a);
    desk_release(f.desk);
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.other, "m");
    ck_assert(!s->scope_open && ask_site(s, "l", "input")->updates == 1);
    ask_state_free(s);
    f.a = ask_open(f.desk, 3);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("in_flight");
    TCase *c = tcase_create("in_flight");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, flight_forward_over_an_unload, 0, 3);
    tcase_add_test(c, flight_context_over_an_unload);
    tcase_add_test(c, flight_scoped_forward_over_an_unload);
    tcase_add_test(c, flight_scope_end_over_an_unload);
    tcase_add_loop_test(c, flight_finish_and_check_over_an_unload, 0, 2);
    tcase_add_loop_test(c, flight_over_a_connections_end, 0, 2);
    tcase_add_test(c, flight_scope_end_over_its_connections_end);
    suite_add_tcase(s, c);
    return run_suite(s);
}
