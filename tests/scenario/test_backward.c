/* Backward: gradients of whole numbers, exact in FP8 and in every accumulator, against sums of
 * integers; order, accumulation, scopes, and what a context keeps. */
#include "tests/scenario/ask_grad.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers --- */

/* -2 to 2, by seed and place: exact under scale 1 in both formats. */
static int whole(uint64_t seed, uint64_t i)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
    return (int)((h ^ h >> 29) % 5) - 2;
}

static float *wholes(uint64_t seed, uint64_t n)
{
    float *v = malloc((n + 1) * sizeof *v);
    for (uint64_t i = 0; i < n; i++)
        v[i] = (float)whole(seed, i);
    return v;
}

/* --- fixture: one layer of whole numbers, recipe with unset sites: casts with 1 until an update --- */

struct fix {
    struct desk *desk;
    struct ask a;
    uint64_t out, in;
    float *w, *bias;
};

enum seeds { W = 1, B = 2, X = 10, DY = 30 };

/* The scale stays 1: each site's amax is 448 or 57344 whenever something is applied. */
static void fix_open(struct fix *f, uint64_t out, uint64_t in, bool with_bias)
{
    *f = (struct fix){.desk = desk_new(NULL, 0), .out = out, .in = in};
    f->a = ask_open(f->desk, 1);
    f->w = wholes(W, out * in);
    f->bias = with_bias ? wholes(B, out) : NULL;
    struct desk_layer layer = {"l", out, in, f->w, f->bias};
    ck_assert(!desk_load(f->desk, 1, "m", &layer, 1, NULL, NULL));
    ck_assert(!ask_scope_begin(&f->a, 1, "m")); /* open all along: no scale moves */
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
    free(f->w);
    free(f->bias);
}

static void forward(struct fix *f, uint64_t seed, uint64_t tokens, uint64_t context)
{
    float *x = wholes(X + seed, tokens * f->in);
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, tokens, f->in),
                            .context_id = context};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    ask_forward_free(&r);
    free(x);
}

/* Of the forward with the same seed; dx is checked. */
static struct ask_backward backward(struct fix *f, uint64_t seed, uint64_t tokens,
                                    uint64_t context)
{
    float *dy = wholes(DY + seed, tokens * f->out);
    struct ask_backward b = {.context_id = context, .dy = ask_f32(dy, tokens, f->out)};
    ck_assert_msg(!ask_backward(&f->a, &b), "%s", f->a.text);
    free(dy);
    ck_assert_uint_eq(b.dx_bytes, tokens * f->in * sizeof(float));
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t i = 0; i < f->in; i++) {
            long sum = 0;
            for (uint64_t o = 0; o < f->out; o++)
                sum += whole(DY + seed, t * f->out + o) * whole(W, o * f->in + i);
            ck_assert_msg(((float *)b.dx)[t * f->in + i] == (float)sum, "dx [%lu, %lu]", t, i);
        }
    return b;
}

static void run_backward(struct fix *f, uint64_t seed, uint64_t tokens, uint64_t context)
{
    struct ask_backward b = backward(f, seed, tokens, context);
    ask_backward_free(&b);
}

static long weight_sum(const struct fix *f, uint64_t seed, uint64_t tokens, uint64_t o, uint64_t i)
{
    long sum = 0;
    for (uint64_t t = 0; t < tokens; t++)
        sum += whole(DY + seed, t * f->out + o) * whole(X + seed, t * f->in + i);
    return sum;
}

/* What is held is the sum over the seeds of these runs. */
struct part {
    uint64_t seed, tokens;
};

static void holds(struct fix *f, const struct part *parts, size_t n)
{
    struct ask_gradient g, b;
    ck_assert_msg(!ask_gradient(&f->a, "m", "l", false, &g), "%s", f->a.text);
    ck_assert_uint_eq(g.count, f->out * f->in);
    ck_assert_uint_eq(g.contributions, n);
    for (uint64_t k = 0; k < g.count; k++) {
        long want = 0;
        for (size_t p = 0; p < n; p++)
            want += weight_sum(f, parts[p].seed, parts[p].tokens, k / f->in, k % f->in);
        ck_assert_msg(g.data[k] == (float)want, "dw %lu is %g, needed %ld", k, (double)g.data[k],
                      want);
    }
    free(g.data);
    if (!f->bias)
        return;
    ck_assert_msg(!ask_gradient(&f->a, "m", "l", true, &b), "%s", f->a.text);
    ck_assert_uint_eq(b.count, f->out);
    for (uint64_t o = 0; o < f->out; o++) {
        long want = 0;
        for (size_t p = 0; p < n; p++)
            for (uint64_t t = 0; t < parts[p].tokens; t++)
                want += whole(DY + parts[p].seed, t * f->out + o);
        ck_assert_msg(b.data[o] == (float)want, "db %lu is %g, needed %ld", o, (double)b.data[o],
                      want);
    }
    free(b.data);
}

/* --- cases: the numbers --- */

static const uint64_t shapes[][3] = {{1, 16, 16}, {7, 48, 16},  {16, 16, 48},
                                     {100, 48, 64}, {33, 64, 112}, {129, 16, 32}};

/* dx, dw and db of one microbatch, tokens that are no multiple of 16 among them. */
START_TEST(backward_of_whole_numbers)
{
    struct fix f;
    uint64_t tokens = shapes[_i % 6][0];
    fix_open(&f, shapes[_i % 6][2], shapes[_i % 6][1], _i >= 6);
    forward(&f, 1, tokens, 5);
    run_backward(&f, 1, tokens, 5);
    holds(&f, &(struct part){1, tokens}, 1);
    fix_close(&f);
}
END_TEST

/* The first backward overwrites, the others add, ZeroGrad makes the next one the first; contexts go
 * in any order. */
START_TEST(backward_accumulates_in_any_order)
{
    struct fix f;
    unsigned layers = 9;
    fix_open(&f, 32, 48, true);
    ck_assert_uint_eq(ask_zero_grad(&f.a, "m", &layers), 0);
    ck_assert_uint_eq(layers, 0);
    for (uint64_t i = 1; i <= 3; i++)
        forward(&f, i, 10 * i, i);
    run_backward(&f, 2, 20, 2);
    run_backward(&f, 3, 30, 3);
    holds(&f, (struct part[]){{2, 20}, {3, 30}}, 2);
    run_backward(&f, 1, 10, 1);
    holds(&f, (struct part[]){{1, 10}, {2, 20}, {3, 30}}, 3);
    ck_assert(!ask_zero_grad(&f.a, "m", &layers));
    ck_assert_uint_eq(layers, 1);
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&f.a, "m", "l", false, &g), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "layer l holds no gradient"));
    forward(&f, 4, 5, 4);
    struct ask_backward b = backward(&f, 4, 5, 4);
    ck_assert(!b.reply->accumulated);
    ask_backward_free(&b);
    holds(&f, &(struct part){4, 5}, 1);
    fix_close(&f);
}
END_TEST

/* A context serves one backward; one that was refused leaves it. */
START_TEST(backward_once_for_a_context)
{
    struct fix f;
    float dy[48] = {0};
    fix_open(&f, 16, 16, false);
    forward(&f, 1, 3, 5);
    struct ask_backward bad = {.context_id = 5, .dy = ask_f32(dy, 2, 16)};
    ck_assert_uint_eq(ask_backward(&f.a, &bad), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.a.text, "grad_output.dims: dimension 0 is 2, context 5 of layer "
                                           "l needed 3"));
    run_backward(&f, 1, 3, 5);
    bad.dy = ask_f32(dy, 3, 16);
    ck_assert_uint_eq(ask_backward(&f.a, &bad), ASK_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(f.a.text, "context_id 5 is no context of this connection"));
    holds(&f, &(struct part){1, 3}, 1);
    fix_close(&f);
}
END_TEST

/* No tokens: an empty grad_input, no cast, nothing held, and the context is used up. */
START_TEST(backward_of_no_tokens)
{
    struct fix f;
    fix_open(&f, 16, 32, true);
    forward(&f, 1, 0, 5);
    struct ask_backward b = backward(&f, 1, 0, 5);
    ck_assert(!b.reply->grad_output && b.reply->grad_input->dims[1] == 32);
    ask_backward_free(&b);
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&f.a, "m", "l", false, &g), ASK_FAILED_PRECONDITION);
    fix_close(&f);
}
END_TEST

/* The weight of the forward, whatever it is by now: edited, or of a model that is gone. */
START_TEST(backward_keeps_the_forwards_weight)
{
    struct fix f;
    fix_open(&f, 16, 32, true);
    forward(&f, 1, 7, 5);
    float *other = wholes(99, 16 * 32);
    struct ask_tensor w = ask_f32(other, 16, 32);
    ck_assert(!ask_edit(&f.a, "m", "l", &w, NULL, NULL, NULL));
    run_backward(&f, 1, 7, 5);
    holds(&f, &(struct part){1, 7}, 1);
    free(other);
    fix_close(&f);
}
END_TEST

START_TEST(backward_after_its_model_is_gone)
{
    struct fix f;
    fix_open(&f, 16, 32, true);
    forward(&f, 1, 7, 5);
    ck_assert(!ask_drop_model(&f.a, "m", NULL));
    run_backward(&f, 1, 7, 5);
    struct desk_layer layer = {"l", 16, 32, f.w, f.bias};
    ck_assert(!desk_load(f.desk, 1, "m", &layer, 1, NULL, NULL));
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&f.a, "m", "l", false, &g), ASK_FAILED_PRECONDITION);
    fix_close(&f);
}
END_TEST

/* grad_input stays at the service, replaces one that is there, or is not computed. */
START_TEST(backward_leaves_grad_input_where_it_is_asked)
{
    struct fix f;
    float *dy = wholes(DY + 1, 4 * 16);
    struct desk_frame *frame;
    fix_open(&f, 16, 32, false);
    for (uint64_t i = 1; i <= 4; i++)
        forward(&f, 1, 4, i);
    struct ask_backward b = {.context_id = 1, .dy = ask_f32(dy, 4, 16), .grad_input_id = 7};
    ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
    ck_assert_uint_eq(b.dx_bytes, 0);
    ask_backward_free(&b);
    b.context_id = 2;
    ck_assert_uint_eq(ask_backward(&f.a, &b), ASK_ALREADY_EXISTS);
    b.replace = true;
    ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
    ask_backward_free(&b);
    struct ask_backward inline_ = backward(&f, 1, 4, 3);
    ck_assert(!ask_get(&f.a, 7, &frame, NULL));
    ck_assert_uint_eq(frame->payload_len, inline_.dx_bytes);
    ck_assert_mem_eq(frame->payload, inline_.dx, inline_.dx_bytes);
    ask_backward_free(&inline_);
    desk_frame_free(frame);
    b = (struct ask_backward){.context_id = 4, .dy = ask_f32(dy, 4, 16), .no_grad_input = true};
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert(!b.reply->grad_input && b.dx_bytes == 0);
    ask_backward_free(&b);
    free(dy);
    fix_close(&f);
}
END_TEST

/* --- cases: scaling state --- */

/* Without a scope backward updates its site at once; in one, at its end; the input's and weight's
 * sites see nothing of it. 57344 / 2^-margin over the amax: E5M2 under hybrid. */
START_TEST(backward_updates_the_grad_output_site)
{
    struct fix f;
    unsigned counts[2];
    fix_open(&f, 16, 32, false);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    forward(&f, 1, 7, 5);
    forward(&f, 1, 7, 6);
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.a, "m");
    float dy[7 * 16] = {[3] = -14.0f, [9] = 0.5f};
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, 7, 16)};
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert(b.reply->scales_applied && b.reply->grad_output->amax == 14.0f);
    ck_assert(b.reply->grad_output->scale == 1.0f);
    ck_assert_int_eq(b.reply->grad_output->fp8_dtype, FP8D__V1__DTYPE__DTYPE_F8_E5M2);
    ask_backward_free(&b);
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.a, "m");
    const Fp8d__V1__SiteState *s = ask_site(after, "l", "grad_output");
    ck_assert(s->set && s->scale == 57344.0f / 14.0f && s->updates == 1);
    ck_assert(ask_site(after, "l", "input")->updates == ask_site(before, "l", "input")->updates);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert(!ask_scope_begin(&f.a, 2, "m"));
    b.context_id = 6;
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert(!b.reply->scales_applied && b.reply->grad_output->scale == 57344.0f / 14.0f);
    ask_backward_free(&b);
    ck_assert(!ask_scope_end(&f.a, 2, false, counts));
    ck_assert(counts[0] == 1 && counts[1] == 0);
    fix_close(&f);
}
END_TEST

/* Non-finite elements are counted with the gradient, and the site's update is left out whole. */
START_TEST(backward_counts_what_is_not_finite)
{
    struct fix f;
    struct ask_gradient g;
    fix_open(&f, 16, 16, false);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    forward(&f, 1, 2, 5);
    float dy[32] = {1.0f, INFINITY, NAN};
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, 2, 16)};
    ck_assert(!ask_backward(&f.a, &b));
    ck_assert_uint_eq(b.reply->grad_output->nonfinite, 2);
    ask_backward_free(&b);
    ck_assert(!ask_gradient(&f.a, "m", "l", false, &g));
    ck_assert_uint_eq(g.nonfinite, 2);
    free(g.data);
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.a, "m");
    ck_assert(!ask_site(s, "l", "grad_output")->set);
    ck_assert_uint_eq(ask_site(s, "l", "grad_output")->skipped_updates, 1);
    ask_state_free(s);
    fix_close(&f);
}
END_TEST

/* A scope of another connection keeps backward out, by name. */
START_TEST(backward_respects_anothers_scope)
{
    struct fix f;
    fix_open(&f, 16, 16, false);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    forward(&f, 1, 2, 5);
    struct ask other = ask_open(f.desk, 2);
    ck_assert(!ask_scope_begin(&other, 8, "m"));
    float dy[32] = {0};
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, 2, 16)};
    ck_assert_uint_eq(ask_backward(&f.a, &b), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "held by connection 2"));
    ask_close(&other);
    ck_assert(!ask_backward(&f.a, &b));
    ask_backward_free(&b);
    fix_close(&f);
}
END_TEST

/* --- cases: memory --- */

/* Every allocation refused in turn: no gradient changes, no site, and the context is still there. */
START_TEST(backward_is_whole_for_every_allocation)
{
    struct fix f;
    unsigned refused = 0;
    bool fired = true;
    fix_open(&f, 16, 32, true);
    forward(&f, 1, 7, 1);
    run_backward(&f, 1, 7, 1);
    for (int64_t n = 0; fired; n++) {
        float *dy = wholes(DY + 2, 5 * 16);
        struct ask_backward b = {.context_id = 2, .dy = ask_f32(dy, 5, 16)};
        forward(&f, 2, 5, 2);
        mem_fault_arm(n, false);
        unsigned code = ask_backward(&f.a, &b);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        bool executed = !code || strstr(f.a.text, "was executed");
        if (!executed) {
            refused++;
            ck_assert_uint_eq(code, ASK_RESOURCE_EXHAUSTED);
            holds(&f, &(struct part){1, 7}, 1);
            ck_assert(!ask_drop_context(&f.a, 2));
        } else if (fired) { /* the reply alone: start over */
            ck_assert(!ask_zero_grad(&f.a, "m", NULL));
            forward(&f, 1, 7, 1);
            run_backward(&f, 1, 7, 1);
        }
        ask_backward_free(&b);
        free(dy);
    }
    ck_assert_uint_gt(refused, 0);
    holds(&f, (struct part[]){{1, 7}, {2, 5}}, 2);
    fix_close(&f);
}
END_TEST

/* A thousand steps' worth of forward, backward and ZeroGrad leave memory as it was. */
START_TEST(backward_memory_stays_flat)
{
    struct fix f;
    uint64_t used = 0;
    int64_t blocks = 0;
    fix_open(&f, 16, 32, true);
    for (int i = 0; i < (rig_small() ? 50 : 1000); i++) {
        forward(&f, 1, 7, 1);
        run_backward(&f, 1, 7, 1);
        ck_assert(!ask_zero_grad(&f.a, "m", NULL));
        if (i == 1) {
            used = ledger_used(&f.desk->ledger);
            blocks = desk_blocks();
        }
    }
    ck_assert_uint_eq(ledger_used(&f.desk->ledger), used);
    ck_assert_int_eq(desk_blocks(), blocks);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("backward");
    TCase *c = tcase_create("backward");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, backward_of_whole_numbers, 0, 12);
    tcase_add_test(c, backward_accumulates_in_any_order);
    tcase_add_test(c, backward_once_for_a_context);
    tcase_add_test(c, backward_of_no_tokens);
    tcase_add_test(c, backward_keeps_the_forwards_weight);
    tcase_add_test(c, backward_after_its_model_is_gone);
    tcase_add_test(c, backward_leaves_grad_input_where_it_is_asked);
    tcase_add_test(c, backward_updates_the_grad_output_site);
    tcase_add_test(c, backward_counts_what_is_not_finite);
    tcase_add_test(c, backward_respects_anothers_scope);
    tcase_add_test(c, backward_is_whole_for_every_allocation);
    tcase_add_test(c, backward_memory_stays_flat);
    suite_add_tcase(s, c);
    return run_suite(s);
}
