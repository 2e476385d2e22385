/* Two requests under way at once, of which one fails, lacks memory, or loses its client: each hears
 * what it would have heard had it waited, and nothing is left of it. */
#include "base/mem.h"
#include "daemon/engine/model.h"
#include "tests/scenario/saboteur.h"
#include "tests/scenario/sides.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

/* The code. Who is refused in line has seen no model. */
static unsigned answer(struct side *s, unsigned i, const char *needle)
{
    struct desk_frame *f = desk_take(s->desk, 1, s->ids[i]);
    ck_assert_ptr_nonnull(f);
    Fp8d__V1__ErrorReply *r = desk_head(f);
    unsigned code = r->head->code;
    if (code == ASK_ABORTED || code == ASK_UNAVAILABLE)
        ck_assert(!r->head->incarnation && !r->head->weight_version);
    ck_assert_msg(strstr(r->head->message, needle) != NULL, "%u: %s", i, r->head->message);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
    return code;
}

/* From here on the note after `at` good ones reports a failure (-1: none does), and requests wait
 * in the desk. */
static void side_break(struct side *s, int at)
{
    saboteur_open(s->desk->backend);
    saboteur_arm(SABOTEUR_NOTES, at);
    desk_hold(s->desk);
}

static void side_mend(struct side *s)
{
    saboteur_close(s->desk->backend);
    side_close(s);
}

/* A forward that fails takes its context along; the backward that had begun behind it hears what it
 * would have heard without. */
START_TEST(ahead_of_a_forward_that_fails)
{
    struct side s;
    side_open(&s);
    side_break(&s, 0);
    side_forward(&s, false, 1, 0, 1, 0);
    side_backward(&s, false, 1, 2, 0, 0);
    desk_release(s.desk);
    ck_assert_uint_eq(s.desk->rpc->begun_ahead, 1);
    ck_assert_uint_eq(answer(&s, 0, saboteur_words(SABOTEUR_NOTES)), ASK_INTERNAL);
    ck_assert_uint_eq(answer(&s, 1, "context_id 1 is no context"), ASK_NOT_FOUND);
    side_mend(&s);
}
END_TEST

/* A step that needs the backward before it begins ahead all the same; where that fails, it is what
 * `needs` says: aborted. */
START_TEST(ahead_of_what_it_needs)
{
    struct side s;
    Fp8d__V1__StepRequest m = FP8D__V1__STEP_REQUEST__INIT;
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    side_open(&s);
    side_forward(&s, false, 1, 0, 1, 0);
    side_break(&s, _i ? 0 : -1);
    side_backward(&s, false, 1, 2, 0, 0);
    head.n_needs = 1;
    head.needs = &s.ids[1];
    m.head = &head;
    m.model = (char *)(uintptr_t) "m";
    m.step = 1;
    s.a.sent = desk_send(s.desk, 1, REQUEST_STEP, &m.base, NULL, 0, NULL, 0);
    side_sent(&s);
    desk_release(s.desk);
    ck_assert_uint_eq(s.desk->rpc->begun_ahead, 1);
    ck_assert_uint_eq(answer(&s, 1, _i ? saboteur_words(SABOTEUR_NOTES) : ""),
                      _i ? ASK_INTERNAL : ASK_OK);
    ck_assert_uint_eq(answer(&s, 2, _i ? "head.needs: request " : ""), _i ? ASK_ABORTED : ASK_OK);
    side_mend(&s);
}
END_TEST

/* A backward that fails leaves the gradient as it was, and the step behind it takes that. */
START_TEST(ahead_of_a_backward_that_fails)
{
    struct side s;
    side_open(&s);
    if (_i) { /* another contributed before */
        side_forward(&s, false, 1, 0, 1, 0);
        side_backward(&s, false, 1, 2, 0, 0);
    }
    side_forward(&s, false, 3, 0, 2, 0);
    unsigned first = s.sent;
    side_break(&s, 0);
    side_backward(&s, false, 2, 4, 0, 0);
    side_step(&s, 1);
    desk_release(s.desk);
    ck_assert_uint_eq(s.desk->rpc->begun_ahead, 1);
    ck_assert_uint_eq(answer(&s, first, saboteur_words(SABOTEUR_NOTES)), ASK_INTERNAL);
    ck_assert_uint_eq(answer(&s, first + 1, _i ? "" : "no layer of model m holds a gradient"),
                      _i ? ASK_OK : ASK_FAILED_PRECONDITION);
    ck_assert(!s.desk->engine->models[0]->layers[0].gradient.coming);
    side_mend(&s);
}
END_TEST

/* Three in a row, of which the first fails: the third had begun behind the second, which had begun
 * behind the first, and both begin again, in their order. */
START_TEST(ahead_begins_again_in_order)
{
    struct side s;
    side_open(&s);
    side_forward(&s, false, 1, 0, 1, 0);
    side_break(&s, 0);
    side_backward(&s, false, 1, 2, 0, 0);
    side_forward(&s, false, 3, 0, 2, 0);
    side_backward(&s, false, 2, 4, 0, 0);
    desk_release(s.desk);
    ck_assert_uint_eq(s.desk->rpc->begun_ahead, 2);
    ck_assert_uint_eq(answer(&s, 1, saboteur_words(SABOTEUR_NOTES)), ASK_INTERNAL);
    ck_assert_uint_eq(answer(&s, 2, ""), ASK_OK);
    ck_assert_uint_eq(answer(&s, 3, ""), ASK_OK);
    ck_assert(!s.desk->rpc->ahead && !s.desk->rpc->running && !s.desk->rpc->queued);
    side_mend(&s);
}
END_TEST

/* Between the end of the second, which begins again, and that of the third: nobody else begins, and
 * if the client goes or the daemon is to stop, both end. */
static void three_in_a_row(struct side *s, bool lost)
{
    side_open(s);
    side_forward(s, false, 1, 0, 1, 0);
    side_break(s, 0);
    side_backward(s, false, 1, 2, 0, 0);
    side_forward(s, false, 3, 0, 2, 0);
    side_backward(s, false, 2, 4, 0, 0);
    for (int i = 0; i < 5; i++) { /* three beginnings, and the ends of the first two */
        if (lost && i == 3)
            saboteur_leave_out_with(FP8D_EINTERNAL); /* the third's */
        ck_assert(desk_step(s->desk));
    }
    ck_assert(s->desk->rpc->ahead == 1 && !s->desk->rpc->running && s->desk->rpc->queued == 1);
}

static void drained(void *arg)
{
    *(bool *)arg = true;
}

static Fp8d__V1__CancelOutcome cancel(struct side *s, uint64_t id)
{
    Fp8d__V1__CancelRequest m = FP8D__V1__CANCEL_REQUEST__INIT;
    struct desk_frame *f;
    m.id = id;
    ck_assert_uint_eq(desk_call(s->desk, 1, REQUEST_CANCEL, &m.base, NULL, 0, &f, NULL), 0);
    Fp8d__V1__CancelReply *c = fp8d__v1__cancel_reply__unpack(NULL, f->meta_len, f->meta);
    Fp8d__V1__CancelOutcome outcome = c->outcome;
    fp8d__v1__cancel_reply__free_unpacked(c, NULL);
    desk_frame_free(f);
    return outcome;
}

/* Also where the second is taken out of the line, so that nothing of its client is in one. */
START_TEST(ahead_alone_and_nobody_begins)
{
    struct side s;
    float x[TOKENS * B_IN] = {1.0f};
    struct ask_forward f = {.model = "m",
                            .layer = "b",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, B_IN)};
    three_in_a_row(&s, false);
    desk_set_aside(s.desk);
    desk_release(s.desk);
    struct ask other = ask_open(s.desk, 2);
    if (_i)
        ck_assert_int_eq(cancel(&s, s.ids[2]), FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_REMOVED);
    other.later = true;
    ck_assert_uint_eq(ask_forward(&other, &f), ASK_LATER);
    ck_assert_uint_eq(ask_put(&s.a, 50, &f.x), ASK_LATER); /* which takes no turns */
    ck_assert(!s.desk->rpc->running && s.desk->rpc->queued == (_i ? 2 : 3));
    ck_assert_ptr_null(desk_peek(s.desk, 1, s.a.sent));
    desk_resume(s.desk);
    ck_assert_uint_eq(ask_take(&other, other.sent), ASK_OK);
    ck_assert_uint_eq(ask_take(&s.a, s.a.sent), ASK_OK);
    /* The third is a backward of the second's context. */
    ck_assert_uint_eq(answer(&s, 3, ""), _i ? ASK_NOT_FOUND : ASK_OK);
    ask_close(&other);
    side_mend(&s);
}
END_TEST

START_TEST(ahead_alone_when_the_client_goes)
{
    struct side s;
    three_in_a_row(&s, false);
    desk_set_aside(s.desk);
    desk_release(s.desk);
    struct ask other = ask_open(s.desk, 2);
    s.a.later = false;
    ask_close(&s.a);
    ck_assert_uint_eq(s.desk->rpc->ahead, 1);
    desk_resume(s.desk);
    saboteur_close(s.desk->backend);
    Fp8d__V1__StatusReply *r = ask_status(&other);
    ck_assert(r->contexts == 0 && r->running == 0 && r->queued == 0 && r->connections == 1);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    ask_close(&other);
    desk_free(s.desk);
}
END_TEST

/* The third fails by itself, as where the device is lost: it has its answer, and the second begins.
 */
START_TEST(ahead_alone_and_failed_itself)
{
    struct side s;
    three_in_a_row(&s, true);
    desk_release(s.desk);
    ck_assert_uint_eq(answer(&s, 2, ""), ASK_OK);
    ck_assert_uint_eq(answer(&s, 3, saboteur_left_out()), ASK_INTERNAL);
    ck_assert(!s.desk->rpc->ahead && !s.desk->rpc->running && !s.desk->rpc->queued);
    side_mend(&s);
}
END_TEST

/* Likewise. */
START_TEST(ahead_alone_when_the_daemon_stops)
{
    struct side s;
    bool all = false;
    three_in_a_row(&s, false);
    desk_set_aside(s.desk);
    desk_release(s.desk);
    if (_i)
        ck_assert_int_eq(cancel(&s, s.ids[2]), FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_REMOVED);
    rpc_drain(s.desk->rpc, drained, &all);
    desk_pump(s.desk);
    ck_assert(!all); /* the third is under way */
    desk_resume(s.desk);
    ck_assert(all);
    ck_assert_uint_eq(answer(&s, 1, saboteur_words(SABOTEUR_NOTES)), ASK_INTERNAL);
    ck_assert_uint_eq(answer(&s, 2, _i ? "cancelled in line" : "the server is stopping"),
                      _i ? ASK_CANCELLED : ASK_UNAVAILABLE);
    ck_assert_uint_eq(answer(&s, 3, "the server is stopping"), ASK_UNAVAILABLE);
    side_mend(&s);
}
END_TEST

/* What fails by itself, and not for what it follows, is told: it may have been done in part. */
START_TEST(ahead_and_failed_itself)
{
    struct side s;
    side_open(&s);
    side_break(&s, 1);
    side_forward(&s, false, 1, 0, 1, 0);
    side_backward(&s, false, 1, 2, 0, 0);
    desk_release(s.desk);
    ck_assert_uint_eq(s.desk->rpc->begun_ahead, 1);
    ck_assert_uint_eq(answer(&s, 0, ""), ASK_OK);
    ck_assert_uint_eq(answer(&s, 1, saboteur_words(SABOTEUR_NOTES)), ASK_INTERNAL);
    side_mend(&s);
}
END_TEST

/* A request that has begun ahead runs, for those who ask. */
START_TEST(ahead_counts_as_running)
{
    struct side s;
    side_open(&s);
    struct ask other = ask_open(s.desk, 2);
    desk_hold(s.desk);
    side_forward(&s, false, 1, 0, 1, 0);
    side_backward(&s, false, 1, 2, 0, 0);
    ck_assert(desk_step(s.desk) && desk_step(s.desk));
    desk_set_aside(s.desk);
    desk_release(s.desk);
    Fp8d__V1__StatusReply *r = ask_status(&other);
    ck_assert(r->running == 2 && r->queued == 0);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    ck_assert_int_eq(cancel(&s, s.ids[1]), FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_RUNNING);
    desk_resume(s.desk);
    ck_assert_uint_eq(answer(&s, 1, ""), ASK_OK);
    ask_close(&other);
    side_close(&s);
}
END_TEST

/* Memory that is short while two are under way is not short when one has ended: whichever
 * allocation of the request behind fails, it succeeds in the end. */
START_TEST(ahead_without_memory)
{
    struct side one;
    side_run(&one, side_loop, 1, false);
    bool fired = true;
    int64_t at = 0;
    for (; fired; at += rig_cuda() ? 9 : 1) { /* to open a GPU takes a while */
        struct side all;
        side_open(&all);
        desk_hold(all.desk);
        side_loop(&all, 1);
        ck_assert(desk_step(all.desk)); /* the first forward */
        mem_fault_arm(at, false);
        ck_assert(desk_step(all.desk)); /* the backward, which begins ahead */
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        desk_release(all.desk);
        for (unsigned i = 0; i < all.sent; i++)
            all.frames[i] = desk_take(all.desk, 1, all.ids[i]);
        sides_equal(&one, &all, (uint64_t)at);
        side_close(&all);
    }
    ck_assert_int_gt(at, 10);
    side_close(&one);
}
END_TEST

/* Its client goes while two are under way: both end, the model has what they did, and nothing is
 * left. */
START_TEST(ahead_when_the_client_goes)
{
    struct side s;
    side_open(&s);
    struct ask other = ask_open(s.desk, 2);
    desk_hold(s.desk);
    side_forward(&s, false, 1, 0, 1, 10);
    side_backward(&s, false, 1, 2, 0, 11);
    ck_assert(desk_step(s.desk) && desk_step(s.desk));
    ck_assert_uint_eq(s.desk->rpc->begun_ahead, 1);
    desk_set_aside(s.desk);
    s.a.later = false;
    ask_close(&s.a);
    desk_release(s.desk);
    desk_resume(s.desk);
    Fp8d__V1__StatusReply *r = ask_status(&other);
    ck_assert(r->contexts == 0 && r->running == 0 && r->queued == 0 && r->connections == 1);
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    struct ask_gradient g;
    ck_assert_msg(!ask_gradient(&other, "m", "a", false, &g), "%s", other.text);
    ck_assert_uint_eq(g.contributions, 1);
    free(g.data);
    ask_close(&other);
    desk_free(s.desk);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ahead_faults");
    TCase *c = tcase_create("failures");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, ahead_of_a_forward_that_fails);
    tcase_add_loop_test(c, ahead_of_what_it_needs, 0, 2);
    /* Of one that was there something was added in place, on a GPU where this failure comes last.
     */
    tcase_add_loop_test(c, ahead_of_a_backward_that_fails, 0, rig_cuda() ? 1 : 2);
    tcase_add_test(c, ahead_begins_again_in_order);
    tcase_add_loop_test(c, ahead_alone_and_nobody_begins, 0, 2);
    tcase_add_test(c, ahead_alone_when_the_client_goes);
    tcase_add_loop_test(c, ahead_alone_when_the_daemon_stops, 0, 2);
    if (!rig_cuda()) /* whose queue says by itself what is left out */
        tcase_add_test(c, ahead_alone_and_failed_itself);
    tcase_add_test(c, ahead_and_failed_itself);
    tcase_add_test(c, ahead_counts_as_running);
    tcase_add_test(c, ahead_without_memory);
    tcase_add_test(c, ahead_when_the_client_goes);
    suite_add_tcase(s, c);
    return run_suite(s);
}
