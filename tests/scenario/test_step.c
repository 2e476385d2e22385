/* Steps: numbers by hand where whole numbers make them exact; what is skipped, repeated, refused. */
#include "tests/scenario/steps.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- cases --- */

/* SGD with rate 1 takes the gradient off; all layers that hold one; the norm is over all of them. */
START_TEST(step_takes_the_gradient_off)
{
    struct steps f;
    steps_open(&f);
    microbatch(&f, "a", 2.0f, 1.0f); /* 8 in column 0, 4 in the bias */
    microbatch(&f, "b", 1.0f, -1.0f); /* -4 */
    struct ask_step s = step_gets(&f, 1, APPLIED);
    ck_assert(s.reply->grad_norm == sqrt(16.0 * 64 + 16.0 * 16 + 16.0 * 16));
    ck_assert(s.reply->clip == 1.0 && s.reply->layers == 2);
    ck_assert(s.reply->step == 2 && s.reply->updates == 1);
    ask_step_free(&s);
    moved_by(&f, "a", -8.0f, -4.0f);
    moved_by(&f, "b", 4.0f, 0.0f);
    steps_close(&f);
}
END_TEST

/* A step that is sent again is answered, not taken again; any other number is refused. */
START_TEST(step_is_taken_once)
{
    struct steps f;
    struct ask_step bad = {.step = 3};
    steps_open(&f);
    microbatch(&f, "a", 2.0f, 1.0f);
    ck_assert_uint_eq(ask_step(&f.a, "m", &bad), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "step is 3, needed 1: model m has taken 0"));
    step(&f, 1, APPLIED);
    microbatch(&f, "a", 2.0f, 1.0f);
    step(&f, 1, REPEATED);
    moved_by(&f, "a", -8.0f, -4.0f);
    step(&f, 2, APPLIED);
    moved_by(&f, "a", -16.0f, -8.0f);
    bad.step = 1;
    ck_assert_uint_eq(ask_step(&f.a, "m", &bad), ASK_FAILED_PRECONDITION);
    bad.step = 3;
    ck_assert_uint_eq(ask_step(&f.a, "m", &bad), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "no layer of model m holds a gradient"));
    steps_close(&f);
}
END_TEST

/* Anything that is not finite skips the step whole, says where, and forgets the gradients. */
START_TEST(step_is_skipped_whole)
{
    struct steps f;
    steps_open(&f);
    microbatch(&f, "a", 2.0f, 1.0f);
    microbatch(&f, "b", 1.0f, INFINITY);
    struct ask_step s = step_gets(&f, 1, SKIPPED);
    ck_assert_uint_ge(s.reply->n_problems, 1);
    const Fp8d__V1__StepProblem *p = s.reply->problems[s.reply->n_problems - 1];
    ck_assert_str_eq(p->layer, "b");
    ck_assert_str_eq(p->tensor, "grad_output");
    ck_assert_uint_eq(p->nonfinite, TOKENS * OUT);
    ck_assert(s.reply->step == 2 && s.reply->updates == 0 && s.reply->layers == 0);
    ask_step_free(&s);
    moved_by(&f, "a", 0.0f, 0.0f);
    moved_by(&f, "b", 0.0f, 0.0f);
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&f.a, "m", "a", false, &g), ASK_FAILED_PRECONDITION);
    step(&f, 1, REPEATED);
    microbatch(&f, "a", 2.0f, 1.0f);
    step(&f, 2, APPLIED);
    moved_by(&f, "a", -8.0f, -4.0f);
    steps_close(&f);
}
END_TEST

/* Loss scale divides, the norm is what is left, and clipping scales all gradients to max_norm: here
 * by a power of two, so that every number is exact but for the 1e-6 beside the norm. */
START_TEST(step_scales_and_clips)
{
    struct steps f;
    float w[OUT * IN], bias[OUT];
    steps_open(&f);
    microbatch(&f, "b", 1.0f, 16.0f); /* 64 in 16 elements: norm 256 */
    struct ask_step s = {.step = 1, .loss_scale = 4.0, .max_norm = 16.0};
    ck_assert_msg(!ask_step(&f.a, "m", &s), "%s", f.a.text);
    ck_assert(s.reply->grad_norm == 64.0);
    ck_assert(fabs(s.reply->clip - 0.25) < 1e-8);
    ask_step_free(&s);
    read_layer(&f, "b", w, bias);
    for (int o = 0; o < OUT; o++)
        ck_assert(fabsf(w[o * IN] - (f.w[o * IN] - 4.0f)) < 1e-5f);
    s = (struct ask_step){.step = 2, .loss_scale = -1.0};
    ck_assert_uint_eq(ask_step(&f.a, "m", &s), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.a.text, "loss_scale is -1, needed a number above 0 and at most"));
    s = (struct ask_step){.step = 2, .max_norm = NAN};
    ck_assert_uint_eq(ask_step(&f.a, "m", &s), ASK_INVALID_ARGUMENT);
    steps_close(&f);
}
END_TEST

/* A layer's own rate, and one that is frozen: its gradient is forgotten all the same. */
START_TEST(step_heeds_layers)
{
    struct steps f;
    Fp8d__V1__OptimizerOptions o = sgd(1.0);
    Fp8d__V1__LayerOptions a = FP8D__V1__LAYER_OPTIONS__INIT, b = a, *both[2] = {&a, &b};
    steps_open(&f);
    a.layer = (char *)(uintptr_t)"a";
    a.rate = 0.5;
    b.layer = (char *)(uintptr_t)"b";
    b.frozen = true;
    ck_assert(!ask_optimizer(&f.a, "m", &o, both, 2));
    microbatch(&f, "a", 2.0f, 1.0f);
    microbatch(&f, "b", 2.0f, 1.0f);
    step(&f, 1, APPLIED);
    moved_by(&f, "a", -4.0f, -2.0f);
    moved_by(&f, "b", 0.0f, 0.0f);
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&f.a, "m", "b", false, &g), ASK_FAILED_PRECONDITION);
    b.layer = a.layer;
    ck_assert_uint_eq(ask_optimizer(&f.a, "m", &o, both, 2), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.a.text, "layers[1].layer a is there twice"));
    b.layer = (char *)(uintptr_t)"c";
    ck_assert_uint_eq(ask_optimizer(&f.a, "m", &o, both, 2), ASK_NOT_FOUND);
    o.rate = -1.0;
    ck_assert_uint_eq(ask_optimizer(&f.a, "m", &o, NULL, 0), ASK_INVALID_ARGUMENT);
    steps_close(&f);
}
END_TEST

/* The weight has another version; its training copy is made by the step, reused by the next forward,
 * and what its cast saw waits in row 0 until a scope ends. */
START_TEST(step_makes_the_training_copy)
{
    struct steps f;
    unsigned counts[2];
    steps_open(&f);
    microbatch(&f, "a", 2.0f, 1.0f);
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.a, "m");
    step(&f, 1, APPLIED);
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.a, "m");
    ck_assert_uint_eq(after->head->weight_version, before->head->weight_version + 1);
    const Fp8d__V1__SiteState *s = ask_site(after, "a", "weight");
    ck_assert(s->collecting == 10.0f); /* -2 - 8 */
    ck_assert_uint_eq(s->updates, ask_site(before, "a", "weight")->updates);
    ask_state_free(before);
    ask_state_free(after);
    float x[IN] = {1.0f};
    struct ask_forward r = {.model = "m",
                            .layer = "a",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .first = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO,
                            .x = ask_f32(x, 1, IN),
                            .context_id = 2};
    ck_assert(!ask_forward(&f.a, &r));
    ck_assert_int_eq(r.reply->weight_copy, FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_REUSED);
    for (int o = 0; o < OUT; o++) /* whole numbers: the copy is exact */
        ck_assert(((float *)r.y)[o] == f.w[o * IN] - 8.0f + f.bias[o] - 4.0f);
    ask_forward_free(&r);
    /* And so is its transposed form: the row of one output feature. */
    float dy[OUT] = {[3] = 1.0f};
    struct ask_backward b = {.context_id = 2, .dy = ask_f32(dy, 1, OUT)};
    ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
    ck_assert_uint_eq(b.dx_bytes, IN * sizeof(float));
    for (int i = 0; i < IN; i++)
        ck_assert(((float *)b.dx)[i] == f.w[3 * IN + i] - (i ? 0.0f : 8.0f));
    ask_backward_free(&b);
    ck_assert(!ask_scope_end(&f.a, 1, false, counts));
    after = ask_state(&f.a, "m");
    ck_assert(ask_site(after, "a", "weight")->scale == 448.0f / 10.0f);
    ask_state_free(after);
    steps_close(&f);
}
END_TEST

/* A weight that is replaced is what the next step moves, whatever master was there before: with BF16
 * the master is memory of its own. */
START_TEST(step_moves_an_edited_weight)
{
    struct steps f;
    uint16_t bf16[OUT * IN];
    float w[OUT * IN], bias[OUT];
    steps_open(&f);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < OUT * IN; i++)
            bf16[i] = round ? 0x40a0 : 0x3f80; /* 5, 1 */
        struct ask_tensor t = {.dtype = FP8D__V1__DTYPE__DTYPE_BF16,
                               .rank = 2,
                               .dims = {OUT, IN},
                               .data = bf16};
        ck_assert_msg(!ask_edit(&f.a, "m", "b", &t, NULL, NULL, NULL), "%s", f.a.text);
        microbatch(&f, "b", 0.25f, 1.0f); /* 1 in column 0 */
        step(&f, (uint64_t)round + 1, APPLIED);
        read_layer(&f, "b", w, bias);
        for (int i = 0; i < OUT * IN; i++)
            ck_assert(w[i] == (round ? 5.0f : 1.0f) - (i % IN ? 0.0f : 1.0f));
    }
    steps_close(&f);
}
END_TEST

/* A bias that an edit gives to a layer which holds a gradient without one: its own begins with the next
 * Backward, and a step before that leaves it alone. */
START_TEST(step_with_a_bias_that_came_later)
{
    struct steps f;
    float w[OUT * IN], bias[OUT];
    steps_open(&f);
    for (int round = 0; round < 2; round++) {
        const char *layer = round ? "c" : "b";
        struct ask_gradient g;
        struct desk_layer bare = {layer, OUT, IN, f.w, NULL};
        if (round) {
            ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
            ck_assert(!desk_load(f.desk, 1, "m", &bare, 1, NULL, NULL));
            Fp8d__V1__OptimizerOptions o = sgd(1.0);
            ck_assert(!ask_optimizer(&f.a, "m", &o, NULL, 0));
            ck_assert(!ask_scope_begin(&f.a, 1, "m"));
        }
        microbatch(&f, layer, 2.0f, 1.0f); /* 8 in column 0 */
        struct ask_tensor t = ask_f32(f.w, OUT, IN), b = ask_f32(f.bias, 1, OUT);
        b.rank = 1;
        b.dims[0] = OUT;
        ck_assert_msg(!ask_edit(&f.a, "m", layer, &t, &b, NULL, NULL), "%s", f.a.text);
        ck_assert_uint_eq(ask_gradient(&f.a, "m", layer, true, &g), ASK_FAILED_PRECONDITION);
        if (round)
            microbatch(&f, layer, 2.0f, 1.0f); /* 8 more, and 4 in the bias */
        step(&f, 1, APPLIED);
        read_layer(&f, layer, w, bias);
        for (int i = 0; i < OUT * IN; i++)
            ck_assert(w[i] == f.w[i] - (i % IN ? 0.0f : round ? 16.0f : 8.0f));
        for (int o = 0; o < OUT; o++)
            ck_assert(bias[o] == f.bias[o] - (round ? 4.0f : 0.0f));
    }
    steps_close(&f);
}
END_TEST

/* The master keeps what BF16 rounds away: 1 - 2^-10 is 1 in BF16, 1 - 2 * 2^-10 is a tie and stays,
 * 1 - 3 * 2^-10 is not. */
START_TEST(step_keeps_a_float32_master)
{
    static const float want[4] = {1.0f, 1.0f, 0.99609375f, 0.99609375f};
    struct steps f;
    uint16_t bf16[OUT * IN];
    float w[OUT * IN], bias[OUT];
    Fp8d__V1__OptimizerOptions o = sgd(0x1p-10);
    steps_open(&f);
    for (int i = 0; i < OUT * IN; i++)
        bf16[i] = 0x3f80;
    struct ask_tensor t = {
        .dtype = FP8D__V1__DTYPE__DTYPE_BF16, .rank = 2, .dims = {OUT, IN}, .data = bf16};
    ck_assert(!ask_edit(&f.a, "m", "b", &t, NULL, NULL, NULL));
    ck_assert(!ask_optimizer(&f.a, "m", &o, NULL, 0));
    for (int k = 0; k < 4; k++) {
        microbatch(&f, "b", 0.25f, 1.0f);
        step(&f, (uint64_t)k + 1, APPLIED);
        read_layer(&f, "b", w, bias);
        ck_assert_msg(w[0] == want[k], "after step %d: %.9g", k + 1, (double)w[0]);
        ck_assert(w[1] == 1.0f);
    }
    steps_close(&f);
}
END_TEST

/* Every allocation refused in turn: the step was not taken, gradient and weight are what they were,
 * and the same number works afterwards. */
START_TEST(step_is_whole_for_every_allocation)
{
    struct steps f;
    unsigned refused = 0;
    bool fired = true;
    steps_open(&f);
    microbatch(&f, "a", 2.0f, 1.0f);
    for (int64_t n = 0; fired; n++) {
        struct ask_step s = {.step = 1};
        mem_fault_arm(n, false);
        unsigned code = ask_step(&f.a, "m", &s);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ask_step_free(&s);
        if (!code || strstr(f.a.text, "was executed"))
            break;
        refused++;
        ck_assert_msg(code == ASK_RESOURCE_EXHAUSTED, "%u: %s", code, f.a.text);
        moved_by(&f, "a", 0.0f, 0.0f);
        struct ask_gradient g;
        ck_assert(!ask_gradient(&f.a, "m", "a", false, &g));
        free(g.data);
    }
    ck_assert_uint_gt(refused, 3);
    step(&f, 1, REPEATED);
    moved_by(&f, "a", -8.0f, -4.0f);
    steps_close(&f);
}
END_TEST

/* What a parameter takes: F32 weight (its own master), two moments, gradient, and the FP8 copy in two
 * forms, 4 + 8 + 4 + 2 bytes, and a little scaling state. Host memory comes in blocks of 2 MiB, which
 * this shape fills. */
START_TEST(step_memory_of_a_parameter)
{
    enum { ROWS = 1008, COLS = 1040 };
    struct steps f;
    steps_open(&f);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    ck_assert_uint_eq(ask_drop_model(&f.a, "m", NULL), ASK_OK);
    float *w = calloc((size_t)ROWS * COLS, sizeof *w), x[COLS] = {1.0f};
    ck_assert_ptr_nonnull(w);
    struct desk_layer layer = {"l", ROWS, COLS, w, NULL};
    ck_assert(!desk_load(f.desk, 1, "big", &layer, 1, NULL, NULL));
    free(w);
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    ck_assert(!ask_optimizer(&f.a, "big", &o, NULL, 0));
    for (uint64_t k = 1; k <= 2; k++) {
        struct ask_forward r = {.model = "big",
                                .layer = "l",
                                .mode = FP8D__V1__MODE__MODE_TRAIN,
                                .x = ask_f32(x, 1, COLS),
                                .context_id = 1};
        struct ask_backward b = {.context_id = 1, .dy = ask_f32(x, 1, ROWS), .no_grad_input = true};
        struct ask_step s = {.step = k};
        ck_assert_msg(!ask_forward(&f.a, &r), "%s", f.a.text);
        ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
        ck_assert_msg(!ask_step(&f.a, "big", &s), "%s", f.a.text);
        ask_forward_free(&r);
        ask_backward_free(&b);
        ask_step_free(&s);
        Fp8d__V1__StatusRequest m = FP8D__V1__STATUS_REQUEST__INIT;
        struct desk_frame *frame = NULL;
        ck_assert(!desk_call(f.desk, 1, REQUEST_STATUS, &m.base, NULL, 0, &frame, NULL));
        Fp8d__V1__StatusReply *st =
            fp8d__v1__status_reply__unpack(NULL, frame->meta_len, frame->meta);
        desk_frame_free(frame);
        ck_assert(st->models == 1 && st->parameters == (uint64_t)ROWS * COLS);
        double each = (double)st->model_bytes / (double)st->parameters;
        ck_assert_msg(each >= 18.0 && each <= 18.1, "%.3f bytes a parameter", each);
        fp8d__v1__status_reply__free_unpacked(st, NULL);
    }
    steps_close(&f);
}
END_TEST

/* Without an optimizer there is no step; another connection's scope keeps it out. */
START_TEST(step_refusals)
{
    struct steps f;
    struct ask_step s = {.step = 1};
    steps_open(&f);
    struct desk_layer layer = {"a", OUT, IN, f.w, f.bias};
    ck_assert(!desk_load(f.desk, 1, "n", &layer, 1, NULL, NULL));
    ck_assert_uint_eq(ask_step(&f.a, "n", &s), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "model n has no optimizer"));
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    ck_assert_uint_eq(ask_optimizer(&f.a, "m", &o, NULL, 0), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.a.text, "options.kind is 0, needed 1 (SGD)"));
    ck_assert_uint_eq(ask_optimizer(&f.a, "m", NULL, NULL, 0), ASK_INVALID_ARGUMENT);
    struct ask other = ask_open(f.desk, 2);
    ck_assert_uint_eq(ask_step(&other, "m", &s), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(other.text, "held by connection 1"));
    ask_close(&other);
    steps_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("step");
    TCase *c = tcase_create("step");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, step_takes_the_gradient_off);
    tcase_add_test(c, step_is_taken_once);
    tcase_add_test(c, step_is_skipped_whole);
    tcase_add_test(c, step_scales_and_clips);
    tcase_add_test(c, step_heeds_layers);
    tcase_add_test(c, step_makes_the_training_copy);
    tcase_add_test(c, step_moves_an_edited_weight);
    tcase_add_test(c, step_with_a_bias_that_came_later);
    tcase_add_test(c, step_keeps_a_float32_master);
    tcase_add_test(c, step_is_whole_for_every_allocation);
    tcase_add_test(c, step_memory_of_a_parameter);
    tcase_add_test(c, step_refusals);
    suite_add_tcase(s, c);
    return run_suite(s);
}
