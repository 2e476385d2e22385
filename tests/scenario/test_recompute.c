/* Recompute: a context's forward again gives the first forward's bits, whatever became of
 * everything else, and feeds nothing. */
#include "base/mem.h"
#include "tests/scenario/stash.h"
#include "tests/scenario/wholes.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 5

/* --- fixture: the pair of stash.h, with a context 1 on layer a and what its forward gave --- */

struct past {
    struct desk *desk;
    struct ask a;
    float *x;
    struct ask_forward first;
};

static struct ask_forward forward(struct past *p, uint64_t seed, Fp8d__V1__DType dtype,
                                  uint64_t context)
{
    float *x = draw_normal(seed, (size_t)ROWS * STASH_A_IN, 1.0 + (double)seed);
    struct ask_forward f = {.model = "m",
                            .layer = "a",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, ROWS, STASH_A_IN),
                            .output_dtype = dtype,
                            .context_id = context};
    ck_assert_msg(!ask_forward(&p->a, &f), "%s", p->a.text);
    free(x);
    return f;
}

static void edit_other(struct past *p)
{
    float *w = draw_normal(5, (size_t)STASH_B_OUT * STASH_B_IN, 1.0);
    struct ask_tensor weight = ask_f32(w, STASH_B_OUT, STASH_B_IN);
    ck_assert_msg(!ask_edit(&p->a, "m", "b-c", &weight, NULL, NULL, NULL), "%s", p->a.text);
    free(w);
}

static void past_open(struct past *p, Fp8d__V1__DType dtype)
{
    struct blob file = stash_pair();
    *p = (struct past){.desk = desk_new(NULL, 0)};
    p->a = ask_open(p->desk, 1);
    ck_assert_msg(!stash_load(&p->a, "m", &file, NULL, NULL), "%s", p->a.text);
    struct ask_forward earlier = forward(p, 1, 0, 0); /* sets the scales */
    ask_forward_free(&earlier);
    edit_other(p); /* the model's version is another than layer a's */
    p->first = forward(p, 2, dtype, 1);
    blob_free(&file);
}

static void past_close(struct past *p)
{
    ask_forward_free(&p->first);
    ask_close(&p->a);
    desk_free(p->desk);
}

/* The output, its form, and the version that it says, are those of the first forward. */
static void again(struct past *p, const char *when)
{
    struct ask_recompute r = {.context_id = 1};
    const Fp8d__V1__ForwardReply *first = p->first.reply;
    ck_assert_msg(!ask_recompute(&p->a, &r), "%s: %s", when, p->a.text);
    ck_assert_uint_eq(r.y_bytes, p->first.y_bytes);
    ck_assert_msg(!memcmp(r.y, p->first.y, r.y_bytes), "%s: other bits", when);
    ck_assert_int_eq(r.reply->output->dtype, first->output->dtype);
    ck_assert(r.reply->output->n_dims == 2 && r.reply->output->dims[0] == ROWS &&
              r.reply->output->dims[1] == STASH_A_OUT);
    ck_assert_msg(r.reply->head->incarnation == first->head->incarnation &&
                      r.reply->head->weight_version == first->head->weight_version,
                  "%s: another version", when);
    ask_recompute_free(&r);
}

static void backward(struct past *p)
{
    float *dy = draw_normal(7, (size_t)ROWS * STASH_A_OUT, 0.1);
    struct ask_backward b = {
        .context_id = 1, .dy = ask_f32(dy, ROWS, STASH_A_OUT), .no_grad_input = true};
    ck_assert_msg(!ask_backward(&p->a, &b), "%s", p->a.text);
    ask_backward_free(&b);
    free(dy);
}

/* A step of another context's gradient: weight and bias move in place. */
static void step(struct past *p)
{
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    struct ask_step s = {.step = 1};
    float *dy = draw_normal(8, (size_t)ROWS * STASH_A_OUT, 1.0);
    struct ask_forward f = forward(p, 4, 0, 2);
    struct ask_backward b = {
        .context_id = 2, .dy = ask_f32(dy, ROWS, STASH_A_OUT), .no_grad_input = true};
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_SGD;
    o.rate = 0.5;
    ck_assert_msg(!ask_optimizer(&p->a, "m", &o, NULL, 0), "%s", p->a.text);
    ck_assert_msg(!ask_backward(&p->a, &b), "%s", p->a.text);
    ck_assert_msg(!ask_step(&p->a, "m", &s), "%s", p->a.text);
    ck_assert_int_eq(s.reply->outcome, FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED);
    ask_step_free(&s);
    ask_backward_free(&b);
    ask_forward_free(&f);
    free(dy);
}

/* --- cases: the same bits --- */

/* Of every output dtype: at once, after the scale moved, after a step, after an edit of weight and
 * bias, after another model took its place, and after the name is gone. */
START_TEST(recompute_gives_the_first_bits)
{
    struct past p;
    static const Fp8d__V1__DType dtypes[] = {0, FP8D__V1__DTYPE__DTYPE_BF16,
                                             FP8D__V1__DTYPE__DTYPE_F16};
    past_open(&p, dtypes[_i]);
    again(&p, "at once");
    struct ask_forward later = forward(&p, 3, 0, 0);
    ask_forward_free(&later);
    again(&p, "after the scales moved");
    step(&p);
    again(&p, "after a step");
    float *w = draw_normal(9, (size_t)STASH_A_OUT * STASH_A_IN, 1.0);
    struct ask_tensor weight = ask_f32(w, STASH_A_OUT, STASH_A_IN);
    struct ask_tensor bias = {
        .dtype = FP8D__V1__DTYPE__DTYPE_F32, .rank = 1, .dims = {STASH_A_OUT}, .data = w};
    ck_assert_msg(!ask_edit(&p.a, "m", "a", &weight, &bias, NULL, NULL), "%s", p.a.text);
    again(&p, "after an edit");
    struct blob file = stash_pair();
    ck_assert_msg(!stash_load(&p.a, "m", &file, NULL, NULL), "%s", p.a.text);
    again(&p, "after a load in its place");
    ck_assert(!ask_drop_model(&p.a, "m", NULL));
    again(&p, "after its name is gone");
    blob_free(&file);
    free(w);
    past_close(&p);
}
END_TEST

/* Whole numbers: what must come out is known, in a dtype of its own and for no tokens, too. */
START_TEST(recompute_of_whole_numbers)
{
    struct fix f;
    struct ask_recompute r = {.context_id = 5, .output_dtype = FP8D__V1__DTYPE__DTYPE_F32};
    uint64_t tokens = _i ? 7 : 0;
    fix_open(&f, 16, 32, true);
    forward_wholes(&f, 1, tokens, 5);
    ck_assert_msg(!ask_recompute(&f.a, &r), "%s", f.a.text);
    ck_assert_uint_eq(r.y_bytes, tokens * 16 * sizeof(float));
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t o = 0; o < 16; o++) {
            long sum = whole(B, o);
            for (uint64_t i = 0; i < 32; i++)
                sum += whole(X + 1, t * 32 + i) * whole(W, o * 32 + i);
            ck_assert_msg(((float *)r.y)[t * 16 + o] == (float)sum, "y [%lu, %lu]", t, o);
        }
    ask_recompute_free(&r);
    run_backward(&f, 1, tokens, 5);
    fix_close(&f);
}
END_TEST

/* --- cases: nothing else --- */

/* A save is the same before and after; so is the gradient that comes of the context. */
START_TEST(recompute_feeds_nothing)
{
    struct past p;
    struct ask_gradient g[2];
    past_open(&p, 0);
    struct blob before = stash_save(&p.a, "m");
    again(&p, "first");
    again(&p, "second");
    struct blob after = stash_save(&p.a, "m");
    blob_equal(&before, &after);
    backward(&p);
    ck_assert(!ask_gradient(&p.a, "m", "a", false, &g[0]));
    ck_assert(!ask_zero_grad(&p.a, "m", NULL));
    past_close(&p);
    past_open(&p, 0);
    backward(&p);
    ck_assert(!ask_gradient(&p.a, "m", "a", false, &g[1]));
    ck_assert(g[0].contributions == 1 && g[0].count == g[1].count);
    ck_assert(!memcmp(g[0].data, g[1].data, g[0].count * sizeof(float)));
    struct ask_recompute r = {.context_id = 1};
    ck_assert_uint_eq(ask_recompute(&p.a, &r), ASK_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(p.a.text, "context_id 1 is no context of this connection"));
    free(g[0].data);
    free(g[1].data);
    blob_free(&before);
    blob_free(&after);
    past_close(&p);
}
END_TEST

/* Another's scope does not keep it out, another's context is not found, and a wrong dtype or an id
 * in use is refused by name. */
START_TEST(recompute_refused)
{
    struct past p;
    past_open(&p, 0);
    struct ask other = ask_open(p.desk, 2);
    struct ask_recompute r = {.context_id = 1};
    ck_assert(!ask_scope_begin(&other, 8, "m"));
    again(&p, "under another's scope");
    ck_assert_uint_eq(ask_recompute(&other, &r), ASK_NOT_FOUND);
    r.output_dtype = FP8D__V1__DTYPE__DTYPE_F8_E4M3;
    ck_assert_uint_eq(ask_recompute(&p.a, &r), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(p.a.text, "output_dtype is F8_E4M3, needed F32, BF16 or F16"));
    r = (struct ask_recompute){.context_id = 1, .output_id = 3};
    ck_assert_msg(!ask_recompute(&p.a, &r), "%s", p.a.text);
    ck_assert(r.y_bytes == 0 && r.reply->output->tensor_id == 3);
    ask_recompute_free(&r);
    ck_assert_uint_eq(ask_recompute(&p.a, &r), ASK_ALREADY_EXISTS);
    ck_assert_ptr_nonnull(strstr(p.a.text, "output_id 3"));
    r.replace_output = true;
    ck_assert_msg(!ask_recompute(&p.a, &r), "%s", p.a.text);
    ask_recompute_free(&r);
    struct desk_frame *frame;
    ck_assert(!ask_get(&p.a, 3, &frame, NULL));
    ck_assert(frame->payload_len == p.first.y_bytes &&
              !memcmp(frame->payload, p.first.y, p.first.y_bytes));
    desk_frame_free(frame);
    ask_close(&other);
    past_close(&p);
}
END_TEST

/* Every allocation refused in turn: the context stays, and memory is as it was. */
START_TEST(recompute_is_whole_for_every_allocation)
{
    struct past p;
    unsigned refused = 0;
    bool fired = true;
    past_open(&p, 0);
    again(&p, "first");
    uint64_t used = ledger_used(&p.desk->ledger);
    for (int64_t n = 0; fired; n++) {
        struct ask_recompute r = {.context_id = 1};
        mem_fault_arm(n, false);
        unsigned code = ask_recompute(&p.a, &r);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        refused += code != 0;
        ck_assert(!code || code == ASK_RESOURCE_EXHAUSTED);
        ask_recompute_free(&r);
        ck_assert_uint_eq(ledger_used(&p.desk->ledger), used);
        again(&p, "after a failure");
    }
    ck_assert_uint_gt(refused, 0);
    past_close(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recompute");
    TCase *c = tcase_create("recompute");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, recompute_gives_the_first_bits, 0, 3);
    tcase_add_loop_test(c, recompute_of_whole_numbers, 0, 2);
    tcase_add_test(c, recompute_feeds_nothing);
    tcase_add_test(c, recompute_refused);
    tcase_add_test(c, recompute_is_whole_for_every_allocation);
    suite_add_tcase(s, c);
    return run_suite(s);
}
