#include "tests/scenario/sides.h"

#include "daemon/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void side_open(struct side *s)
{
    *s = (struct side){.desk = desk_new(NULL, 0)};
    s->desk->engine->next_incarnation = 1; /* replies tell it */
    s->a = ask_open(s->desk, 1);
    float *w = draw_normal(1, (size_t)A_OUT * A_IN, 0.25), *b = draw_normal(2, A_OUT, 0.25);
    struct desk_layer layers[2] = {{"a", A_OUT, A_IN, w, b}, {"b", B_OUT, B_IN, w, NULL}};
    ck_assert(!desk_load(s->desk, 1, "m", layers, 2, NULL, NULL));
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    o.rate = 0.125;
    ck_assert_msg(!ask_optimizer(&s->a, "m", &o, NULL, 0), "%s", s->a.text);
    static const char *const names[MANY] = {"0",  "1",  "2",  "3",  "4",  "5",  "6",
                                            "7",  "8",  "9",  "10", "11", "12", "13",
                                            "14", "15", "16", "17", "18", "19"};
    struct desk_layer many[MANY];
    for (int i = 0; i < MANY; i++)
        many[i] = (struct desk_layer){names[i], A_OUT, A_IN, w, NULL};
    ck_assert(!desk_load(s->desk, 1, "n", many, MANY, NULL, NULL));
    free(w);
    free(b);
    s->a.later = true;
}

void side_close(struct side *s)
{
    for (unsigned i = 0; i < SENT; i++)
        desk_frame_free(s->frames[i]);
    s->a.later = false;
    ask_close(&s->a);
    desk_free(s->desk);
}

/* --- requests --- */

void side_sent(struct side *s)
{
    ck_assert_uint_lt(s->sent, SENT);
    s->ids[s->sent++] = s->a.sent;
}

/* An input from a seed, or a tensor that stays. */
void side_forward(struct side *s, bool b, uint64_t seed, uint64_t x_id, uint64_t context,
                  uint64_t y_id)
{
    float *x = draw_normal(seed, (size_t)TOKENS * A_IN, 1.0 + (double)(seed % 7));
    struct ask_forward f = {.model = "m",
                            .layer = b ? "b" : "a",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, b ? B_IN : A_IN),
                            .output_id = y_id,
                            .replace_output = true,
                            .context_id = context};
    f.x.id = x_id;
    ck_assert_uint_eq(ask_forward(&s->a, &f), ASK_LATER);
    free(x);
    side_sent(s);
}

void side_forward_many(struct side *s, unsigned layer, uint64_t context)
{
    char name[4];
    float *x = draw_normal(layer, (size_t)TOKENS * A_IN, 1.0 + layer);
    (void)snprintf(name, sizeof name, "%u", layer);
    struct ask_forward f = {.model = "n",
                            .layer = name,
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, A_IN),
                            .context_id = context};
    ck_assert_uint_eq(ask_forward(&s->a, &f), ASK_LATER);
    free(x);
    side_sent(s);
}

void side_backward(struct side *s, bool b, uint64_t context, uint64_t seed, uint64_t dy_id,
                   uint64_t dx_id)
{
    float *dy = draw_normal(seed, (size_t)TOKENS * B_OUT, 1.0 + (double)(seed % 5));
    struct ask_backward g = {.context_id = context,
                             .dy = ask_f32(dy, TOKENS, b ? B_OUT : A_OUT),
                             .grad_input_id = dx_id,
                             .replace = true};
    g.dy.id = dy_id;
    ck_assert_uint_eq(ask_backward(&s->a, &g), ASK_LATER);
    free(dy);
    side_sent(s);
}

void side_step(struct side *s, uint64_t number)
{
    struct ask_step p = {.step = number};
    ck_assert_uint_eq(ask_step(&s->a, "m", &p), ASK_LATER);
    side_sent(s);
}

void side_gradient(struct side *s, bool b)
{
    struct ask_gradient g;
    ck_assert_uint_eq(ask_gradient(&s->a, "m", b ? "b" : "a", false, &g), ASK_LATER);
    side_sent(s);
}

void side_eval(struct side *s, bool b)
{
    float *x = draw_normal(99, (size_t)TOKENS * A_IN, 1.0);
    struct ask_forward f = {
        .model = "m", .layer = b ? "b" : "a", .x = ask_f32(x, TOKENS, b ? B_IN : A_IN)};
    f.mode = FP8D__V1__MODE__MODE_EVAL;
    ck_assert_uint_eq(ask_forward(&s->a, &f), ASK_LATER);
    free(x);
    side_sent(s);
}

/* --- the two sides --- */

void side_run(struct side *s, script_cb script, uint64_t seed, bool at_once)
{
    side_open(s);
    if (at_once)
        desk_hold(s->desk);
    script(s, seed);
    desk_release(s->desk);
    for (unsigned i = 0; i < s->sent; i++) {
        s->frames[i] = desk_take(s->desk, 1, s->ids[i]);
        ck_assert_ptr_nonnull(s->frames[i]);
    }
}

static unsigned code_of(const struct desk_frame *f)
{
    Fp8d__V1__ErrorReply *r = desk_head(f);
    unsigned code = r->head->code;
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    return code;
}

void sides_equal(const struct side *one, const struct side *all, uint64_t seed)
{
    ck_assert_uint_eq(one->sent, all->sent);
    for (unsigned i = 0; i < one->sent; i++) {
        const struct desk_frame *a = one->frames[i], *b = all->frames[i];
        ck_assert_msg(a->type == b->type && a->flags == b->flags && a->meta_len == b->meta_len &&
                          a->payload_len == b->payload_len &&
                          !memcmp(a->meta, b->meta, a->meta_len) &&
                          (!a->payload_len || !memcmp(a->payload, b->payload, a->payload_len)),
                      "seed %llu: request %u (type %u, codes %u and %u) was answered otherwise",
                      (unsigned long long)seed, i, a->type, code_of(a), code_of(b));
    }
    for (int i = 0; i < 2; i++) {
        struct desk_frame *x = desk_scaling(one->desk, 1, i ? "n" : "m");
        struct desk_frame *y = desk_scaling(all->desk, 1, i ? "n" : "m");
        ck_assert(x->meta_len == y->meta_len && !memcmp(x->meta, y->meta, x->meta_len));
        desk_frame_free(x);
        desk_frame_free(y);
    }
}

/* How many of the script's requests begin ahead when they are sent at once. */
uint64_t sides_compare(script_cb script, uint64_t seed)
{
    struct side one, all;
    side_run(&one, script, seed, false);
    side_run(&all, script, seed, true);
    sides_equal(&one, &all, seed);
    uint64_t ahead = all.desk->rpc->begun_ahead;
    ck_assert_uint_eq(one.desk->rpc->begun_ahead, 0);
    side_close(&one);
    side_close(&all);
    return ahead;
}

void side_loop(struct side *s, uint64_t seed)
{
    for (uint64_t i = 1; i <= 4; i++) {
        side_forward(s, false, seed + i, 0, i, 0);
        side_backward(s, false, i, seed + 50 + i, 0, 0);
        side_step(s, i);
    }
    side_eval(s, false);
}
