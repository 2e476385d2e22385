/* Backward under scales that move: random numbers against float64 products of the very codes that
 * were multiplied, whatever happened between a forward and its backward. */
#include "tests/oracle/codes.h"
#include "tests/oracle/cut.h"
#include "tests/scenario/ask_grad.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OUT 48
#define IN 80
#define CPU_BOUND 1e-5 /* of the largest output; the CPU's sums are of float32 products in order */

/* --- fixture --- */

struct fix {
    struct desk *desk;
    struct ask a;
    float *w;
};

static void fix_open(struct fix *f, const Fp8d__V1__Recipe *r)
{
    *f = (struct fix){.desk = desk_new(NULL, 0)};
    f->a = ask_open(f->desk, 1);
    f->w = draw_normal(1, OUT * IN, 0.05);
    struct desk_layer layer = {"l", OUT, IN, f->w, NULL};
    ck_assert(!desk_load(f->desk, 1, "m", &layer, 1, r, NULL));
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
    free(f->w);
}

/* --- one forward and its backward --- */

/* What a forward said of its casts. */
struct pass {
    uint64_t context, tokens;
    float *x, *dy;
    float x_scale, x_inv, w_scale, w_inv;
    bool e4m3; /* of the gradient */
};

static struct pass forward(struct fix *f, uint64_t context, uint64_t tokens, double spread)
{
    struct pass p = {.context = context, .tokens = tokens};
    p.x = draw_normal(100 + context, tokens * IN, spread);
    p.dy = draw_normal(200 + context, tokens * OUT, 1e-3 * spread);
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(p.x, tokens, IN),
                            .context_id = context};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    p.x_scale = r.reply->input->scale;
    p.x_inv = r.reply->input->scale_inv;
    p.w_scale = r.reply->weight->scale;
    p.w_inv = r.reply->weight->scale_inv;
    ask_forward_free(&r);
    return p;
}

static void pass_free(struct pass *p)
{
    free(p->x);
    free(p->dy);
}

/* The FP8 value nearest to v, by looking at all of them: ties go to the even code, and what is
 * beyond the largest to the largest. */
static double nearest(double v, bool e5m2)
{
    double best = 0, least = INFINITY;
    for (unsigned c = 0; c < 0x80; c++) {
        double value = fp8_value((uint8_t)c, e5m2);
        double off = fabs(fabs(v) - value);
        if (!isfinite(value) || off > least || (off == least && c % 2))
            continue;
        least = off;
        best = value;
    }
    return copysign(best, v);
}

/* What a cast's codes stand for, without the factor. */
static float *decoded(const float *v, uint64_t n, float scale, bool e5m2)
{
    float *out = malloc((n + 1) * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        float scaled = v[i] * scale;
        out[i] = (float)nearest((double)scaled, e5m2);
    }
    return out;
}

/* y[rows, cols] is the sum over k of a(row, k) * b(col, k) times factor. */
struct product {
    const float *a, *b;
    uint64_t rows, cols, k;
    uint64_t a_row, a_k, b_col, b_k; /* strides */
    double factor;
    bool a_e5m2;
};

static void compare(const struct product *p, const float *y, const char *what)
{
    double most = 0;
    struct cut *all = calloc(p->rows * p->cols + 1, sizeof *all);
    float *ra = malloc(p->k * sizeof *ra), *rb = malloc(p->k * sizeof *rb);
    for (uint64_t i = 0; i < p->rows * p->cols; i++) {
        for (uint64_t k = 0; k < p->k; k++) {
            ra[k] = p->a[i / p->cols * p->a_row + k * p->a_k];
            rb[k] = p->b[i % p->cols * p->b_col + k * p->b_k];
        }
        all[i] = cut_of(ra, rb, p->k, cut_least(p->a_e5m2), cut_least(false));
        cut_scale(&all[i], p->factor);
        most = fmax(most, fabs(all[i].sum));
    }
    for (uint64_t i = 0; i < p->rows * p->cols; i++) {
        double bound = rig_cuda() ? all[i].precise + fabs(all[i].sum) * 0x1p-21 : CPU_BOUND * most;
        double off = fabs((double)y[i] - all[i].sum);
        ck_assert_msg(off <= bound, "%s: %lu is %g, needed %g +- %g", what, i, (double)y[i],
                      all[i].sum, bound);
    }
    free(all);
    free(ra);
    free(rb);
}

/* dx against the forward's own weight codes; returns the scale that grad_output was cast with. */
static float backward(struct fix *f, const struct pass *p)
{
    struct ask_backward b = {.context_id = p->context, .dy = ask_f32(p->dy, p->tokens, OUT)};
    ck_assert_msg(!ask_backward(&f->a, &b), "%s", f->a.text);
    const Fp8d__V1__CastInfo *g = b.reply->grad_output;
    bool e5m2 = g->fp8_dtype == FP8D__V1__DTYPE__DTYPE_F8_E5M2;
    float *dy = decoded(p->dy, p->tokens * OUT, g->scale, e5m2);
    float *w = decoded(f->w, OUT * IN, p->w_scale, false);
    struct product dx = {.a = dy,
                         .b = w,
                         .rows = p->tokens,
                         .cols = IN,
                         .k = OUT,
                         .a_row = OUT,
                         .a_k = 1,
                         .b_col = 1,
                         .b_k = IN,
                         .factor = (double)g->scale_inv * (double)p->w_inv,
                         .a_e5m2 = e5m2};
    float scale = g->scale;
    compare(&dx, b.dx, "dx");
    free(dy);
    free(w);
    ask_backward_free(&b);
    return scale;
}

/* The weight's gradient of this pass alone, which is what is held. */
static void holds(struct fix *f, const struct pass *p, float dy_scale)
{
    struct ask_gradient g;
    bool e5m2 = !p->e4m3;
    float *dy = decoded(p->dy, p->tokens * OUT, dy_scale, e5m2);
    float *x = decoded(p->x, p->tokens * IN, p->x_scale, false);
    ck_assert(!ask_gradient(&f->a, "m", "l", false, &g));
    ck_assert_uint_eq(g.contributions, 1);
    struct product dw = {.a = dy,
                         .b = x,
                         .rows = OUT,
                         .cols = IN,
                         .k = p->tokens,
                         .a_row = 1,
                         .a_k = OUT,
                         .b_col = 1,
                         .b_k = IN,
                         .factor = 1.0 / (double)dy_scale * (double)p->x_inv,
                         .a_e5m2 = e5m2};
    compare(&dw, g.data, "dw");
    free(g.data);
    free(dy);
    free(x);
}

static void finish(struct fix *f, struct pass *p)
{
    float scale = backward(f, p);
    holds(f, p, scale);
    ck_assert(!ask_zero_grad(&f->a, "m", NULL));
    pass_free(p);
}

/* --- cases --- */

/* forward 1, forward 2, backward 1, backward 2, and the other way round, with every scale moving in
 * between by orders of magnitude: each gradient is the one of its context alone. */
START_TEST(pipeline_in_either_order)
{
    struct fix f;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    r.amax_history_len = 2;
    r.fp8_format = _i / 2 ? FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3
                          : FP8D__V1__FP8_FORMAT__FP8_FORMAT_HYBRID;
    fix_open(&f, &r);
    for (int round = 0; round < 3; round++) {
        struct pass one = forward(&f, 1, 33, 1.0), two = forward(&f, 2, 7, 300.0);
        one.e4m3 = two.e4m3 = _i / 2;
        ck_assert(one.x_scale != two.x_scale);
        finish(&f, _i % 2 ? &two : &one);
        struct pass three = forward(&f, 3, 16, 0.01); /* moves them again */
        three.e4m3 = _i / 2;
        finish(&f, _i % 2 ? &one : &two);
        finish(&f, &three);
    }
    fix_close(&f);
}
END_TEST

/* Recipe current: every cast by its own tensor; no site moves. */
START_TEST(current_scaling_of_gradients)
{
    struct fix f;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    r.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    fix_open(&f, &r);
    struct pass p = forward(&f, 1, 20, 5.0);
    float most = 0;
    for (uint64_t i = 0; i < 20 * OUT; i++)
        most = fmaxf(most, fabsf(p.dy[i]));
    float scale = backward(&f, &p);
    ck_assert(scale == 57344.0f / most);
    holds(&f, &p, scale);
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.a, "m");
    ck_assert(!ask_site(s, "l", "grad_output")->set);
    ask_state_free(s);
    pass_free(&p);
    fix_close(&f);
}
END_TEST

/* A copy that an earlier forward made without a context has one form alone: it is turned when the
 * gradient is computed, and gives the same. */
START_TEST(copy_without_second_form)
{
    struct fix f;
    fix_open(&f, NULL);
    float *x = draw_normal(9, 16 * IN, 1.0);
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .first = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_YES,
                            .x = ask_f32(x, 16, IN)};
    ck_assert(!ask_forward(&f.a, &r));
    float made_with = r.reply->weight->scale;
    ask_forward_free(&r);
    r.first = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO;
    r.context_id = 1;
    ck_assert(!ask_forward(&f.a, &r));
    ck_assert_int_eq(r.reply->weight_copy, FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_REUSED);
    ck_assert(r.reply->weight->scale == made_with);
    struct pass p = {.context = 1,
                     .tokens = 16,
                     .x = x,
                     .dy = draw_normal(10, 16 * OUT, 1e-3),
                     .x_scale = r.reply->input->scale,
                     .x_inv = r.reply->input->scale_inv,
                     .w_scale = r.reply->weight->scale,
                     .w_inv = r.reply->weight->scale_inv};
    ask_forward_free(&r);
    finish(&f, &p);
    fix_close(&f);
}
END_TEST

/* The same requests give the same bits. */
START_TEST(gradients_repeat_to_the_bit)
{
    struct ask_gradient g[2];
    void *dx[2];
    for (int i = 0; i < 2; i++) {
        struct fix f;
        fix_open(&f, NULL);
        struct pass one = forward(&f, 1, 33, 40.0), two = forward(&f, 2, 9, 1.0);
        (void)backward(&f, &two);
        struct ask_backward b = {.context_id = 1, .dy = ask_f32(one.dy, 33, OUT)};
        ck_assert(!ask_backward(&f.a, &b));
        dx[i] = b.dx;
        b.dx = NULL;
        ask_backward_free(&b);
        ck_assert(!ask_gradient(&f.a, "m", "l", false, &g[i]));
        ck_assert_uint_eq(g[i].contributions, 2);
        pass_free(&one);
        pass_free(&two);
        fix_close(&f);
    }
    ck_assert_mem_eq(dx[0], dx[1], 33 * IN * sizeof(float));
    ck_assert_mem_eq(g[0].data, g[1].data, OUT * IN * sizeof(float));
    for (int i = 0; i < 2; i++) {
        free(dx[i]);
        free(g[i].data);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("backward_scales");
    TCase *c = tcase_create("backward_scales");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, pipeline_in_either_order, 0, 4);
    tcase_add_test(c, current_scaling_of_gradients);
    tcase_add_test(c, copy_without_second_form);
    tcase_add_test(c, gradients_repeat_to_the_bit);
    suite_add_tcase(s, c);
    return run_suite(s);
}
