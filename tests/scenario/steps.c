#include "tests/scenario/steps.h"

#include <math.h>
#include <stdlib.h>

static float whole(uint64_t seed, uint64_t i)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
    return (float)((int)((h ^ h >> 29) % 5) - 2);
}

Fp8d__V1__OptimizerOptions sgd(double rate)
{
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_SGD;
    o.rate = rate;
    return o;
}

void steps_open(struct steps *f)
{
    steps_open_with(f, NULL);
}

void steps_open_with(struct steps *f, const struct engine_options *options)
{
    *f = (struct steps){.desk = desk_new(options, 0)};
    f->a = ask_open(f->desk, 1);
    for (int i = 0; i < OUT * IN; i++)
        f->w[i] = whole(1, (uint64_t)i);
    for (int i = 0; i < OUT; i++)
        f->bias[i] = whole(2, (uint64_t)i);
    struct desk_layer layers[2] = {{"a", OUT, IN, f->w, f->bias}, {"b", OUT, IN, f->w, NULL}};
    ck_assert(!desk_load(f->desk, 1, "m", layers, 2, NULL, NULL));
    Fp8d__V1__OptimizerOptions o = sgd(1.0);
    ck_assert_msg(!ask_optimizer(&f->a, "m", &o, NULL, 0), "%s", f->a.text);
    ck_assert(!ask_scope_begin(&f->a, 1, "m")); /* open all along: no scale moves */
}

void steps_close(struct steps *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
}

void microbatch(struct steps *f, const char *layer, float x0, float dy0)
{
    float x[TOKENS * IN] = {0}, dy[TOKENS * OUT];
    for (int t = 0; t < TOKENS; t++)
        x[t * IN] = x0;
    for (int i = 0; i < TOKENS * OUT; i++)
        dy[i] = dy0;
    struct ask_forward r = {.model = "m",
                            .layer = layer,
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, IN),
                            .context_id = 1};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    ask_forward_free(&r);
    struct ask_backward b = {
        .context_id = 1, .dy = ask_f32(dy, TOKENS, OUT), .no_grad_input = true};
    ck_assert_msg(!ask_backward(&f->a, &b), "%s", f->a.text);
    ask_backward_free(&b);
}

void read_layer(struct steps *f, const char *layer, float *w, float *bias)
{
    float x[(IN + 1) * IN] = {0};
    for (int i = 0; i < IN; i++)
        x[i * IN + i] = 1.0f;
    struct ask_forward r = {.model = "m",
                            .layer = layer,
                            .mode = FP8D__V1__MODE__MODE_CALIBRATE,
                            .x = ask_f32(x, IN + 1, IN)};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    const float *y = r.y;
    for (int o = 0; o < OUT; o++) {
        bias[o] = y[IN * OUT + o];
        for (int i = 0; i < IN; i++)
            w[o * IN + i] = y[i * OUT + o] - bias[o];
    }
    ask_forward_free(&r);
}

void moved_by(struct steps *f, const char *layer, float dw, float db)
{
    float w[OUT * IN], bias[OUT];
    bool has_bias = layer[0] == 'a';
    read_layer(f, layer, w, bias);
    for (int o = 0; o < OUT; o++) {
        float want = (has_bias ? f->bias[o] : 0.0f) + (has_bias ? db : 0.0f);
        ck_assert_msg(bias[o] == want, "bias %d is %g, needed %g", o, (double)bias[o],
                      (double)want);
        for (int i = 0; i < IN; i++) {
            want = f->w[o * IN + i] + (i ? 0.0f : dw);
            ck_assert_msg(w[o * IN + i] == want, "%s: [%d, %d] is %g, needed %g", layer, o, i,
                          (double)w[o * IN + i], (double)want);
        }
    }
}

struct ask_step step_gets(struct steps *f, uint64_t number, int outcome)
{
    struct ask_step s = {.step = number};
    ck_assert_msg(!ask_step(&f->a, "m", &s), "%s", f->a.text);
    ck_assert_int_eq(s.reply->outcome, outcome);
    return s;
}

void step(struct steps *f, uint64_t number, int outcome)
{
    struct ask_step s = step_gets(f, number, outcome);
    ask_step_free(&s);
}
