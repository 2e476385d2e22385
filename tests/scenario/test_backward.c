/* Backward: gradients of whole numbers against sums of integers; order, accumulation, and what a
 * context keeps. */
#include "tests/scenario/wholes.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

/* --- cases: the numbers --- */

static const uint64_t shapes[][3] = {{1, 16, 16}, {7, 48, 16},  {16, 16, 48},
                                     {100, 48, 64}, {33, 64, 112}, {129, 16, 32}};

/* dx, dw and db of one microbatch, tokens that are no multiple of 16 among them. */
START_TEST(backward_of_whole_numbers)
{
    struct fix f;
    uint64_t tokens = shapes[_i % 6][0];
    fix_open(&f, shapes[_i % 6][2], shapes[_i % 6][1], _i >= 6);
    forward_wholes(&f, 1, tokens, 5);
    run_backward(&f, 1, tokens, 5);
    holds_wholes(&f, &(struct part){1, tokens}, 1);
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
        forward_wholes(&f, i, 10 * i, i);
    run_backward(&f, 2, 20, 2);
    run_backward(&f, 3, 30, 3);
    holds_wholes(&f, (struct part[]){{2, 20}, {3, 30}}, 2);
    run_backward(&f, 1, 10, 1);
    holds_wholes(&f, (struct part[]){{1, 10}, {2, 20}, {3, 30}}, 3);
    ck_assert(!ask_zero_grad(&f.a, "m", &layers));
    ck_assert_uint_eq(layers, 1);
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&f.a, "m", "l", false, &g), ASK_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.a.text, "layer l holds no gradient"));
    forward_wholes(&f, 4, 5, 4);
    struct ask_backward b = backward_wholes(&f, 4, 5, 4);
    ck_assert(!b.reply->accumulated);
    ask_backward_free(&b);
    holds_wholes(&f, &(struct part){4, 5}, 1);
    fix_close(&f);
}
END_TEST

/* A context serves one backward; one that was refused leaves it. */
START_TEST(backward_once_for_a_context)
{
    struct fix f;
    float dy[48] = {0};
    fix_open(&f, 16, 16, false);
    forward_wholes(&f, 1, 3, 5);
    struct ask_backward bad = {.context_id = 5, .dy = ask_f32(dy, 2, 16)};
    ck_assert_uint_eq(ask_backward(&f.a, &bad), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.a.text, "grad_output.dims: dimension 0 is 2, context 5 of layer "
                                           "l needed 3"));
    run_backward(&f, 1, 3, 5);
    bad.dy = ask_f32(dy, 3, 16);
    ck_assert_uint_eq(ask_backward(&f.a, &bad), ASK_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(f.a.text, "context_id 5 is no context of this connection"));
    holds_wholes(&f, &(struct part){1, 3}, 1);
    fix_close(&f);
}
END_TEST

/* No tokens: an empty grad_input, no cast, nothing held, and the context is used up. */
START_TEST(backward_of_no_tokens)
{
    struct fix f;
    fix_open(&f, 16, 32, true);
    forward_wholes(&f, 1, 0, 5);
    struct ask_backward b = backward_wholes(&f, 1, 0, 5);
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
    forward_wholes(&f, 1, 7, 5);
    float *other = wholes(99, 16 * 32);
    struct ask_tensor w = ask_f32(other, 16, 32);
    ck_assert(!ask_edit(&f.a, "m", "l", &w, NULL, NULL, NULL));
    run_backward(&f, 1, 7, 5);
    holds_wholes(&f, &(struct part){1, 7}, 1);
    free(other);
    fix_close(&f);
}
END_TEST

START_TEST(backward_after_its_model_is_gone)
{
    struct fix f;
    fix_open(&f, 16, 32, true);
    forward_wholes(&f, 1, 7, 5);
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
        forward_wholes(&f, 1, 4, i);
    struct ask_backward b = {.context_id = 1, .dy = ask_f32(dy, 4, 16), .grad_input_id = 7};
    ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
    ck_assert_uint_eq(b.dx_bytes, 0);
    ask_backward_free(&b);
    b.context_id = 2;
    ck_assert_uint_eq(ask_backward(&f.a, &b), ASK_ALREADY_EXISTS);
    b.replace = true;
    ck_assert_msg(!ask_backward(&f.a, &b), "%s", f.a.text);
    ask_backward_free(&b);
    struct ask_backward inline_ = backward_wholes(&f, 1, 4, 3);
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
    suite_add_tcase(s, c);
    return run_suite(s);
}
