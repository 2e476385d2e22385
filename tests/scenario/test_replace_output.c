/* replace_output: an output takes the place of a resident tensor once its request has succeeded. */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 6
#define ID 7

/* --- fixture --- */

struct fix {
    struct pair p;
    float *w, *x, *x2;
};

static void fix_open(struct fix *f)
{
    static const struct oracle_recipe recipe = {.history_len = 4};
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->x = draw_normal(2, TOKENS * IN, 3.0);
    f->x2 = draw_normal(3, TOKENS * IN, 3.0);
    pair_open(&f->p, OUT, IN, &recipe, f->w, NULL);
}

static void fix_close(struct fix *f)
{
    pair_close(&f->p);
    free(f->w);
    free(f->x);
    free(f->x2);
}

/* --- helpers --- */

static unsigned keep(struct fix *f, const struct ask_tensor *x, bool replace)
{
    struct ask_forward r = {.model = PAIR_MODEL,
                            .layer = PAIR_LAYER,
                            .mode = FP8D__V1__MODE__MODE_EVAL,
                            .x = *x,
                            .output_id = ID,
                            .replace_output = replace};
    unsigned code = ask_forward(&f->p.a, &r);
    ask_forward_free(&r);
    return code;
}

/* The resident tensor has the bytes that the same forward sends inline. */
static void holds_output_of(struct fix *f, const float *x, uint64_t tokens)
{
    struct ask_forward r = {.model = PAIR_MODEL,
                            .layer = PAIR_LAYER,
                            .mode = FP8D__V1__MODE__MODE_EVAL,
                            .x = ask_f32(x, tokens, IN)};
    struct desk_frame *frame;
    Fp8d__V1__GetTensorReply *reply;
    ck_assert(!ask_forward(&f->p.a, &r));
    ck_assert_msg(!ask_get(&f->p.a, ID, &frame, &reply), "%s", f->p.a.text);
    ck_assert_uint_eq(frame->payload_len, tokens * OUT * sizeof(float));
    ck_assert_uint_eq(r.y_bytes, frame->payload_len);
    ck_assert_mem_eq(r.y, frame->payload, r.y_bytes);
    ck_assert(reply->tensor->n_dims == 2 && reply->tensor->dims[0] == tokens);
    ask_forward_free(&r);
    fp8d__v1__get_tensor_reply__free_unpacked(reply, NULL);
    desk_frame_free(frame);
}

/* --- cases --- */

/* The id names the later output, whatever its size, and the one before it is let go. */
START_TEST(replace_names_the_later_output)
{
    struct fix f;
    struct ask_tensor a, b, few;
    fix_open(&f);
    a = ask_f32(f.x, TOKENS, IN), b = ask_f32(f.x2, TOKENS, IN), few = ask_f32(f.x2, 1, IN);
    ck_assert(!keep(&f, &a, true)); /* of an id that is free: as without the flag */
    holds_output_of(&f, f.x, TOKENS);
    uint64_t used = ledger_used(&f.p.desk->ledger);
    for (int i = 0; i < 20; i++)
        ck_assert(!keep(&f, i % 2 ? &a : &b, true));
    ck_assert_uint_eq(ledger_used(&f.p.desk->ledger), used);
    ck_assert(!keep(&f, &b, true));
    holds_output_of(&f, f.x2, TOKENS);
    ck_assert(!keep(&f, &few, true));
    holds_output_of(&f, f.x2, 1);
    ck_assert(!ask_free(&f.p.a, ID));
    ck_assert_uint_eq(ask_free(&f.p.a, ID), ASK_NOT_FOUND);
    fix_close(&f);
}
END_TEST

/* In place: the input's own id. */
START_TEST(replace_of_the_input)
{
    struct fix f;
    struct ask_tensor x, by_id = {.id = ID};
    fix_open(&f);
    x = ask_f32(f.x, TOKENS, IN);
    ck_assert(!ask_put(&f.p.a, ID, &x));
    ck_assert_msg(!keep(&f, &by_id, true), "%s", f.p.a.text);
    holds_output_of(&f, f.x, TOKENS);
    fix_close(&f);
}
END_TEST

/* Refused, with and without the flag: what was there stays. */
START_TEST(replace_keeps_what_was_there_on_failure)
{
    struct fix f;
    struct ask_tensor a, wrong;
    fix_open(&f);
    a = ask_f32(f.x, TOKENS, IN), wrong = ask_f32(f.x, TOKENS, IN - 16);
    ck_assert(!keep(&f, &a, true));
    uint64_t used = ledger_used(&f.p.desk->ledger);
    ck_assert_uint_eq(keep(&f, &a, false), ASK_ALREADY_EXISTS);
    ck_assert_uint_eq(keep(&f, &wrong, true), ASK_INVALID_ARGUMENT);
    ck_assert_uint_eq(ledger_used(&f.p.desk->ledger), used);
    holds_output_of(&f, f.x, TOKENS);
    fix_close(&f);
}
END_TEST

/* Every allocation refused in turn: the request fails whole, and the tensor is the old one; where
 * none is refused it is the new one. */
START_TEST(replace_is_whole_for_every_allocation)
{
    struct fix f;
    struct ask_tensor a, b;
    unsigned refused = 0;
    bool fired = true;
    fix_open(&f);
    a = ask_f32(f.x, TOKENS, IN), b = ask_f32(f.x2, TOKENS, IN);
    ck_assert(!keep(&f, &a, true) && !keep(&f, &b, true));
    for (int64_t n = 0; fired; n++) {
        ck_assert(!keep(&f, &a, true));
        mem_fault_arm(n, false);
        unsigned code = keep(&f, &b, true);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        if (!code || strstr(f.p.a.text, "was executed")) /* the reply alone had no memory */
            continue;
        refused++;
        ck_assert_uint_eq(code, ASK_RESOURCE_EXHAUSTED);
        holds_output_of(&f, f.x, TOKENS);
    }
    ck_assert_uint_gt(refused, 0);
    holds_output_of(&f, f.x2, TOKENS);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("replace");
    TCase *c = tcase_create("replace");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, replace_names_the_later_output);
    tcase_add_test(c, replace_of_the_input);
    tcase_add_test(c, replace_keeps_what_was_there_on_failure);
    tcase_add_test(c, replace_is_whole_for_every_allocation);
    suite_add_tcase(s, c);
    return run_suite(s);
}
