/* What the engine keeps goes when it is let go, and resident tensors are what was put. */
#include "tests/scenario/ask.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 6

/* --- fixture --- */

struct fix {
    struct desk *desk;
    struct ask a;
    float *w, *bias, *x;
};

static void load(struct fix *f)
{
    struct desk_layer layer = {"l", OUT, IN, f->w, f->bias};
    ck_assert_msg(!desk_load(f->desk, f->a.conn, "m", &layer, 1, NULL, f->a.text), "%s",
                  f->a.text);
}

static void fix_open(struct fix *f)
{
    f->desk = desk_new(NULL, 0);
    f->a = ask_open(f->desk, 1);
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->bias = draw_normal(2, OUT, 1.0);
    f->x = draw_normal(3, TOKENS * IN, 2.0);
    load(f);
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
    free(f->w);
    free(f->bias);
    free(f->x);
}

/* --- helpers --- */

static struct ask_forward forward(struct fix *f, struct ask_tensor x, Fp8d__V1__Mode mode,
                                  uint64_t output_id, uint64_t context_id)
{
    struct ask_forward r = {.model = "m", .layer = "l", .x = x, .mode = mode,
                            .output_id = output_id, .context_id = context_id};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    return r;
}

/* Everything that a client can leave behind, taken back in order, or not at all. */
static void cycle(struct fix *f, bool take_back)
{
    struct ask_tensor x = ask_f32(f->x, TOKENS, IN), from = {.id = 1}, w = ask_f32(f->w, OUT, IN);
    struct ask_forward r;
    ck_assert(!ask_put(&f->a, 1, &x) && !ask_scope_begin(&f->a, 1, "m"));
    r = forward(f, from, FP8D__V1__MODE__MODE_TRAIN, 2, 1);
    ask_forward_free(&r);
    r = forward(f, x, FP8D__V1__MODE__MODE_EVAL, 3, 0);
    ask_forward_free(&r);
    r = forward(f, x, FP8D__V1__MODE__MODE_CALIBRATE, 0, 0);
    ask_forward_free(&r);
    ck_assert(!ask_check(&f->a, "m", "l", &x, NULL));
    if (!take_back)
        return;
    ck_assert(!ask_scope_end(&f->a, 1, false, NULL) && !ask_drop_context(&f->a, 1));
    ck_assert(!ask_edit(&f->a, "m", "l", &w, NULL, NULL, NULL) && !ask_finish(&f->a, "m", NULL));
    for (uint64_t id = 1; id <= 3; id++)
        ck_assert(!ask_free(&f->a, id));
}

/* --- memory --- */

/* A thousand cycles of put, scope, train, eval, calibrate, check, edit and their ends stay flat. */
START_TEST(memory_stays_flat_over_cycles)
{
    struct fix f;
    fix_open(&f);
    cycle(&f, true);
    uint64_t used = ledger_used(&f.desk->ledger);
    int64_t blocks = desk_blocks();
    for (int i = 0; i < (getenv("FP8D_TEST_SMALL") ? 100 : 1000); i++) {
        cycle(&f, true);
        ck_assert_uint_eq(ledger_used(&f.desk->ledger), used);
        ck_assert_int_eq(desk_blocks(), blocks);
    }
    fix_close(&f);
}
END_TEST

/* Loads that replace, and unloads, stay flat too. */
START_TEST(memory_stays_flat_over_loads)
{
    struct fix f;
    fix_open(&f);
    cycle(&f, true);
    load(&f);
    uint64_t used = ledger_used(&f.desk->ledger);
    int64_t blocks = desk_blocks();
    for (int i = 0; i < (getenv("FP8D_TEST_SMALL") ? 20 : 200); i++) {
        cycle(&f, true);
        if (i & 1)
            ck_assert(!ask_drop_model(&f.a, "m", NULL) && ledger_used(&f.desk->ledger) == 0);
        load(&f);
        ck_assert_uint_eq(ledger_used(&f.desk->ledger), used);
        ck_assert_int_eq(desk_blocks(), blocks);
    }
    fix_close(&f);
}
END_TEST

/* A connection that ends gives back all it held; the model it loaded stays. */
START_TEST(memory_returns_when_a_connection_ends)
{
    struct fix f;
    fix_open(&f);
    cycle(&f, true);
    struct ask mine = f.a;
    struct ask_forward r;
    r = forward(&f, ask_f32(f.x, TOKENS, IN), FP8D__V1__MODE__MODE_TRAIN, 0, 0);
    ask_forward_free(&r);
    r = forward(&f, ask_f32(f.x, TOKENS, IN), FP8D__V1__MODE__MODE_EVAL, 0, 0);
    ask_forward_free(&r);
    uint64_t used = ledger_used(&f.desk->ledger);
    int64_t blocks = desk_blocks();
    for (int i = 0; i < 3; i++) {
        f.a = ask_open(f.desk, 10 + (uint64_t)i);
        cycle(&f, false);
        ck_assert(ledger_used(&f.desk->ledger) > used);
        ask_close(&f.a);
        ck_assert_uint_eq(ledger_used(&f.desk->ledger), used);
        ck_assert_int_eq(desk_blocks(), blocks);
    }
    f.a = mine;
    fix_close(&f);
}
END_TEST

static void whole_life(void)
{
    struct fix f;
    fix_open(&f);
    cycle(&f, true);
    for (unsigned i = 0; i < 20; i++) {
        cycle(&f, true);
        load(&f);
    }
    cycle(&f, false);
    ck_assert(!ask_drop_model(&f.a, "m", NULL));
    ask_close(&f.a);
    ck_assert_uint_eq(ledger_used(&f.desk->ledger), 0);
    f.a = ask_open(f.desk, 2);
    fix_close(&f);
}

/* After the last thing is dropped and the daemon is closed, nothing is charged and no block
 * lives. A GPU's backend stays open between desks, with the GEMM plans of its first. */
START_TEST(memory_returns_to_the_start)
{
    if (rig_cuda())
        whole_life();
    int64_t blocks = mem_live_blocks();
    whole_life();
    ck_assert_int_eq(mem_live_blocks(), blocks);
}
END_TEST

/* A scope whose model was unloaded holds nothing of it: the memory is back at once, and orphans do
 * not pile up. */
START_TEST(memory_of_a_model_under_an_open_scope)
{
    struct fix f;
    fix_open(&f);
    struct ask_forward r;
    for (uint64_t id = 1; id <= 3; id++) {
        ck_assert(!ask_scope_begin(&f.a, id, "m"));
        r = forward(&f, ask_f32(f.x, TOKENS, IN), FP8D__V1__MODE__MODE_TRAIN, 0, 0);
        ask_forward_free(&r);
        ck_assert(!ask_drop_model(&f.a, "m", NULL));
        ck_assert_uint_eq(ledger_used(&f.desk->ledger), 0);
        load(&f);
    }
    ck_assert_uint_eq(ask_scope_end(&f.a, 2, false, NULL), ASK_FAILED_PRECONDITION);
    fix_close(&f);
}
END_TEST

/* A device with an account of its own: a model that does not fit there is refused with the numbers,
 * whatever the host has, and nothing moved; one that does is charged there. */
START_TEST(memory_of_a_device_has_its_own_account)
{
    struct fix f;
    struct ledger device;
    fix_open(&f);
    struct desk_layer layer = {"l", OUT, IN, f.w, f.bias};
    struct desk_frame *before = desk_scaling(f.desk, 1, "m");
    uint64_t used = ledger_used(&f.desk->ledger);
    ledger_init(&device, OUT * IN * 4 - 1);
    device.name = "device memory";
    f.desk->ledger.device = &device;
    ck_assert_uint_eq(desk_load(f.desk, 1, "n", &layer, 1, NULL, f.a.text), 8);
    ck_assert_msg(strstr(f.a.text, " of the device memory of 6143 are in use"), "%s", f.a.text);
    ck_assert(ledger_used(&device) == 0 && ledger_used(&f.desk->ledger) == used);
    struct desk_frame *after = desk_scaling(f.desk, 1, "m");
    ck_assert(before->meta_len == after->meta_len);
    device.cap = 1u << 20;
    ck_assert_msg(!desk_load(f.desk, 1, "n", &layer, 1, NULL, f.a.text), "%s", f.a.text);
    ck_assert_uint_ge(ledger_used(&device), OUT * IN * 4);
    ck_assert(!ask_drop_model(&f.a, "n", NULL));
    ck_assert(ledger_used(&device) == 0 && ledger_used(&f.desk->ledger) == used);
    f.desk->ledger.device = NULL;
    desk_frame_free(before);
    desk_frame_free(after);
    fix_close(&f);
}
END_TEST

/* --- resident tensors --- */

/* An input that was put, and an output that was kept, are to the bit what travels inline. */
START_TEST(resident_equals_inline)
{
    static const Fp8d__V1__DType types[] = {
        FP8D__V1__DTYPE__DTYPE_F32, FP8D__V1__DTYPE__DTYPE_BF16, FP8D__V1__DTYPE__DTYPE_F16,
        FP8D__V1__DTYPE__DTYPE_F8_E4M3, FP8D__V1__DTYPE__DTYPE_F8_E5M2};
    struct fix f;
    uint8_t bytes[TOKENS * IN * 2];
    uint64_t at = 1;
    fix_open(&f);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(draw(&at, 100) + (i & 1 ? 0 : 20)); /* finite in every dtype */
    struct ask_tensor x = {.dtype = types[_i], .rank = 3, .dims = {2, TOKENS / 2, IN},
                           .data = _i ? (const void *)bytes : f.x, .factor = 0.5f};
    struct ask_forward in = forward(&f, x, FP8D__V1__MODE__MODE_EVAL, 0, 0), kept, again;
    ck_assert(!ask_put(&f.a, 4, &x));
    again = forward(&f, (struct ask_tensor){.id = 4}, FP8D__V1__MODE__MODE_EVAL, 0, 0);
    ck_assert(again.y_bytes == in.y_bytes && !memcmp(again.y, in.y, in.y_bytes));
    kept = forward(&f, (struct ask_tensor){.id = 4}, FP8D__V1__MODE__MODE_EVAL, 5, 0);
    ck_assert(kept.y_bytes == 0 && kept.reply->output->tensor_id == 5);
    struct desk_frame *frame;
    Fp8d__V1__GetTensorReply *got;
    ck_assert(!ask_get(&f.a, 5, &frame, &got));
    ck_assert(frame->payload_len == in.y_bytes && !memcmp(frame->payload, in.y, in.y_bytes));
    ck_assert(got->tensor->dtype == in.reply->output->dtype && got->tensor->n_dims == 3);
    ck_assert(got->tensor->dims[0] == 2 && got->tensor->dims[2] == OUT);
    fp8d__v1__get_tensor_reply__free_unpacked(got, NULL);
    desk_frame_free(frame);
    ck_assert(!ask_get(&f.a, 4, &frame, &got)); /* the input comes back as it was put */
    ck_assert(!memcmp(frame->payload, x.data, frame->payload_len));
    ck_assert(got->tensor->dtype == x.dtype && got->tensor->n_scale_inv == (_i > 2));
    ck_assert(_i <= 2 || got->tensor->scale_inv[0] == 0.5f);
    fp8d__v1__get_tensor_reply__free_unpacked(got, NULL);
    desk_frame_free(frame);
    ask_forward_free(&in);
    ask_forward_free(&again);
    ask_forward_free(&kept);
    fix_close(&f);
}
END_TEST

/* A refused forward leaves no tensor under its output id. */
START_TEST(resident_output_of_a_refused_forward)
{
    struct fix f;
    fix_open(&f);
    struct ask_forward r = {.model = "m", .layer = "l", .x = ask_f32(f.x, TOKENS, IN),
                            .mode = FP8D__V1__MODE__MODE_TRAIN, .output_id = 6, .context_id = 1};
    struct ask_forward first = forward(&f, r.x, FP8D__V1__MODE__MODE_TRAIN, 0, 1);
    uint64_t used = ledger_used(&f.desk->ledger);
    ck_assert_uint_eq(ask_forward(&f.a, &r), ASK_ALREADY_EXISTS); /* the context */
    ck_assert_uint_eq(ask_free(&f.a, 6), ASK_NOT_FOUND);
    r.context_id = 2;
    ck_assert(!ask_put(&f.a, 6, &r.x));
    ck_assert_uint_eq(ask_forward(&f.a, &r), ASK_ALREADY_EXISTS); /* the output */
    ck_assert_uint_eq(ask_drop_context(&f.a, 2), ASK_NOT_FOUND);
    ck_assert(!ask_free(&f.a, 6) && ledger_used(&f.desk->ledger) == used);
    ask_forward_free(&first);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine_memory");
    TCase *c = tcase_create("engine_memory");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, memory_stays_flat_over_cycles);
    tcase_add_test(c, memory_stays_flat_over_loads);
    tcase_add_test(c, memory_returns_when_a_connection_ends);
    tcase_add_test(c, memory_returns_to_the_start);
    tcase_add_test(c, memory_of_a_model_under_an_open_scope);
    tcase_add_test(c, memory_of_a_device_has_its_own_account);
    tcase_add_loop_test(c, resident_equals_inline, 0, 5);
    tcase_add_test(c, resident_output_of_a_refused_forward);
    suite_add_tcase(s, c);
    return run_suite(s);
}
