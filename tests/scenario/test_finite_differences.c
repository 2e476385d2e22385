/* Gradients against finite differences of what the service itself computes: no formula of a gradient
 * is in here.
 *
 * The loss is sum(dy * y), y being the layer's output in high precision (a calibrate forward). It is
 * linear in each parameter and each input alone, and all numbers are small whole ones, so that the
 * central difference over a step of 1 is the derivative, without any error in float64; the same
 * numbers are exact in FP8 under scale 1. */
#include "tests/scenario/wholes.h"
#include "tests/unit/run.h"

#include <stdlib.h>

#define OUT 16
#define IN 32
#define TOKENS 3
#define SEED 1

struct point {
    struct fix f;
    float *x, *dy;
    float *dx, *dw, *db; /* as the service says; dw and db are those of Backward, fetched */
};

static double loss(struct point *p)
{
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_CALIBRATE,
                            .x = ask_f32(p->x, TOKENS, IN)};
    double sum = 0;
    ck_assert_msg(!ask_forward(&p->f.a, &r), "%s", p->f.a.text);
    ck_assert_uint_eq(r.y_bytes, TOKENS * OUT * sizeof(float));
    for (int i = 0; i < TOKENS * OUT; i++)
        sum += (double)p->dy[i] * (double)((float *)r.y)[i];
    ask_forward_free(&r);
    return sum;
}

static void edit(struct point *p)
{
    struct ask_tensor w = ask_f32(p->f.w, OUT, IN), bias = ask_f32(p->f.bias, 1, OUT);
    bias.rank = 1;
    bias.dims[0] = OUT;
    ck_assert_msg(!ask_edit(&p->f.a, "m", "l", &w, &bias, NULL, NULL), "%s", p->f.a.text);
}

/* Moves *v, a parameter (then it is sent) or an element of the input. */
static double difference(struct point *p, float *v, bool parameter)
{
    static const float moves[2] = {1.0f, -2.0f};
    double l[2];
    for (int i = 0; i < 2; i++) {
        *v += moves[i];
        if (parameter)
            edit(p);
        l[i] = loss(p);
    }
    *v += 1.0f;
    return (l[0] - l[1]) / 2;
}

static void all_equal(struct point *p, const char *what, float *values, const float *got, int n,
                      bool parameter)
{
    int other_than_0 = 0;
    for (int i = 0; i < n; i++) {
        double want = difference(p, &values[i], parameter);
        ck_assert_msg((double)got[i] == want, "%s[%d] is %g, the difference %g", what, i,
                      (double)got[i], want);
        other_than_0 += want != 0;
    }
    ck_assert_int_gt(other_than_0, n / 2);
}

static void open_point(struct point *p)
{
    struct ask_gradient w, b;
    fix_open(&p->f, OUT, IN, true);
    p->x = wholes(X + SEED, TOKENS * IN);
    p->dy = wholes(DY + SEED, TOKENS * OUT);
    forward_wholes(&p->f, SEED, TOKENS, 5);
    struct ask_backward r = {.context_id = 5, .dy = ask_f32(p->dy, TOKENS, OUT)};
    ck_assert_msg(!ask_backward(&p->f.a, &r), "%s", p->f.a.text);
    ck_assert_uint_eq(r.dx_bytes, TOKENS * IN * sizeof(float));
    p->dx = r.dx;
    r.dx = NULL;
    ask_backward_free(&r);
    ck_assert(!ask_gradient(&p->f.a, "m", "l", false, &w) && w.count == OUT * IN);
    ck_assert(!ask_gradient(&p->f.a, "m", "l", true, &b) && b.count == OUT);
    p->dw = w.data;
    p->db = b.data;
}

static void close_point(struct point *p)
{
    free(p->x);
    free(p->dy);
    free(p->dx);
    free(p->dw);
    free(p->db);
    fix_close(&p->f);
}

START_TEST(differences_of_every_weight)
{
    struct point p;
    open_point(&p);
    all_equal(&p, "dw", p.f.w, p.dw, OUT * IN, true);
    close_point(&p);
}
END_TEST

START_TEST(differences_of_every_bias_and_input)
{
    struct point p;
    open_point(&p);
    all_equal(&p, "db", p.f.bias, p.db, OUT, true);
    all_equal(&p, "dx", p.x, p.dx, TOKENS * IN, false);
    close_point(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("finite_differences");
    TCase *c = tcase_create("differences");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, differences_of_every_weight);
    tcase_add_test(c, differences_of_every_bias_and_input);
    suite_add_tcase(s, c);
    return run_suite(s);
}
