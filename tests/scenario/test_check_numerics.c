/* CheckNumerics: its numbers against an independent float64 calculation, and that it changes
 * nothing. */
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>

#define OUT 48
#define IN 64
#define TOKENS 7
#define BOUND 1e-6 /* relative, of every number */

/* --- helpers --- */

struct numbers {
    double error, reference, relative;
    uint64_t nonfinite;
    double slack[3]; /* what outputs within their bounds may change of the three above */
};

static struct numbers calculate(const double *low, const double *high, size_t n)
{
    struct numbers r = {0};
    double diff2 = 0, ref2 = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(low[i]) || !isfinite(high[i])) {
            r.nonfinite++;
            continue;
        }
        r.error = fmax(r.error, fabs(low[i] - high[i]));
        r.reference = fmax(r.reference, fabs(high[i]));
        diff2 += (low[i] - high[i]) * (low[i] - high[i]);
        ref2 += high[i] * high[i];
    }
    r.relative = ref2 > 0 ? sqrt(diff2 / ref2) : sqrt(diff2);
    return r;
}

static bool near(double found, double want, double bound)
{
    return fabs(found - want) <= bound * fabs(want);
}

static Fp8d__V1__CheckNumericsReply *check(struct pair *p, const float *x)
{
    struct ask_tensor t = ask_f32(x, TOKENS, IN);
    Fp8d__V1__CheckNumericsReply *r = NULL;
    Fp8d__V1__QueryScalingReply *before = ask_state(&p->a, PAIR_MODEL);
    ck_assert_msg(!ask_check(&p->a, PAIR_MODEL, PAIR_LAYER, &t, &r), "%s", p->a.text);
    Fp8d__V1__QueryScalingReply *after = ask_state(&p->a, PAIR_MODEL);
    ask_states_equal(before, after, true);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert_ptr_nonnull(r);
    ck_assert(r->input_elements == TOKENS * IN && r->weight_elements == OUT * IN);
    return r;
}

static void compare(const Fp8d__V1__CheckNumericsReply *r, const struct numbers *want,
                    double bound)
{
    ck_assert_msg(near(r->max_abs_error, want->error, bound), "max_abs_error %.9g for %.9g",
                  r->max_abs_error, want->error);
    ck_assert_msg(near(r->max_abs_reference, want->reference, bound),
                  "max_abs_reference %.9g for %.9g", r->max_abs_reference, want->reference);
    ck_assert_msg(near(r->relative_error, want->relative, bound), "relative_error %.9g for %.9g",
                  r->relative_error, want->relative);
    ck_assert_uint_eq(r->nonfinite_outputs, want->nonfinite);
}

/* A maximum moves by no more than the largest bound, a norm by no more than that of all bounds; the
 * high-precision outputs, whose own are far smaller, share them. */
static void set_slack(struct numbers *r, const struct bound *low, const double *high)
{
    double most = 0, bounds2 = 0, ref2 = 0;
    for (size_t i = 0; i < TOKENS * OUT; i++) {
        double b = 2 * bound_at(low, i);
        most = fmax(most, b);
        bounds2 += b * b;
        ref2 += high[i] * high[i];
    }
    r->slack[0] = r->slack[1] = most;
    r->slack[2] = 2 * sqrt(bounds2 / ref2);
}

/* What the emulation says of eval against high precision. */
static struct numbers emulate(struct pair *p, const float *x)
{
    double high[TOKENS * OUT];
    enum oracle_copy copy;
    struct bound low = pair_emulate(p, ORACLE_EVAL, ORACLE_UNSET, x, TOKENS, &copy);
    oracle_high(p->oracle, x, TOKENS, high);
    struct numbers r = calculate(low.want, high, TOKENS * OUT);
    set_slack(&r, &low, high);
    bound_free(&low);
    return r;
}

/* The reply is what the emulation says, but for what the bounds of the outputs allow. */
static void compare_roughly(const Fp8d__V1__CheckNumericsReply *r, const struct numbers *want)
{
    ck_assert_double_le(fabs(r->max_abs_error - want->error), want->slack[0]);
    ck_assert_double_le(fabs(r->max_abs_reference - want->reference), want->slack[1]);
    ck_assert_double_le(fabs(r->relative_error - want->relative), want->slack[2]);
}

/* [rows, IN] of whole numbers, 448 among them: the scale is 1, and every sum of products is exact,
 * whatever the order, in float32 and in the 13 bits of a GPU's fast accumulation. In columns 0 and
 * 1 the other operand meets zeros but for its 448, so that no sum passes 64 * 32 * 3. */
static float *whole(uint64_t seed, size_t rows, unsigned most, size_t peak)
{
    float *x = draw_uniform(seed, rows * IN);
    for (size_t i = 0; i < rows * IN; i++)
        x[i] = i % IN < 2 ? 0 : floorf((x[i] * 2 - 1) * (float)most);
    x[peak] = 448;
    return x;
}

static float *whole_weight(void)
{
    return whole(1, OUT, 3, 0);
}

static float *whole_input(void)
{
    return whole(2, TOKENS, 31, 1);
}

/* The f32 outputs of a forward, as double. */
static void outputs(struct pair *p, Fp8d__V1__Mode mode, const float *x, double *y)
{
    struct ask_forward f = {.model = PAIR_MODEL, .layer = PAIR_LAYER, .mode = mode,
                            .x = ask_f32(x, TOKENS, IN)};
    ck_assert_msg(!ask_forward(&p->a, &f), "%s", p->a.text);
    for (size_t i = 0; i < TOKENS * OUT; i++)
        y[i] = (double)((const float *)f.y)[i];
    ask_forward_free(&f);
}

/* --- cases --- */

/* Numbers that float32 holds exactly: the reply is the emulation's. */
START_TEST(check_numbers_of_whole_numbers)
{
    struct pair p;
    float *w = whole_weight(), *x = whole_input(), *bias = whole(3, 1, 300, 0);
    pair_open(&p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, w, bias);
    for (int i = 0; i < 2; i++) {
        struct numbers want = emulate(&p, x);
        ck_assert(want.error > 1);
        Fp8d__V1__CheckNumericsReply *r = check(&p, x);
        compare(r, &want, BOUND);
        ck_assert(r->input->scale == 1 && r->weight->scale == 1 && r->input->amax == 448);
        ck_assert(r->input->uncalibrated == !i && r->weight->uncalibrated == !i);
        fp8d__v1__check_numerics_reply__free_unpacked(r, NULL);
        pair_forward(&p, &p.a, ORACLE_TRAIN, ORACLE_TRUE, x, TOKENS); /* sets the sites */
    }
    pair_close(&p);
    free(w);
    free(x);
    free(bias);
}
END_TEST

/* Any numbers: the reply is a float64 calculation over the f32 outputs of eval and of calibrate,
 * which are the emulation's by other tests. */
START_TEST(check_numbers_of_any_numbers)
{
    struct pair p;
    double low[TOKENS * OUT], high[TOKENS * OUT];
    float *w = draw_normal(1, OUT * IN, 0.1), *x = draw_normal(2, TOKENS * IN, 3);
    pair_open(&p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, w, NULL);
    for (int i = 0; i < 3; i++) {
        outputs(&p, FP8D__V1__MODE__MODE_EVAL, x, low);
        outputs(&p, FP8D__V1__MODE__MODE_CALIBRATE, x, high);
        struct numbers want = calculate(low, high, TOKENS * OUT), rough = emulate(&p, x);
        Fp8d__V1__CheckNumericsReply *r = check(&p, x);
        compare(r, &want, BOUND);
        compare_roughly(r, &rough);
        fp8d__v1__check_numerics_reply__free_unpacked(r, NULL);
        pair_forward(&p, &p.a, ORACLE_TRAIN, ORACLE_TRUE, x, TOKENS);
    }
    pair_close(&p);
    free(w);
    free(x);
}
END_TEST

/* Non-finite outputs are counted and left out. */
START_TEST(check_leaves_nonfinite_outputs_out)
{
    struct pair p;
    float *w = whole_weight(), *x = whole_input();
    pair_open(&p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, w, NULL);
    x[2 * IN + 3] = NAN;
    struct numbers want = emulate(&p, x);
    ck_assert_uint_eq(want.nonfinite, OUT);
    Fp8d__V1__CheckNumericsReply *r = check(&p, x);
    compare(r, &want, BOUND);
    ck_assert_uint_eq(r->input->nonfinite, 1);
    fp8d__v1__check_numerics_reply__free_unpacked(r, NULL);
    pair_close(&p);
    free(w);
    free(x);
}
END_TEST

/* Zeros, and no tokens at all: no error, and no division by zero. */
START_TEST(check_of_nothing)
{
    struct pair p;
    float *w = draw_normal(1, OUT * IN, 0.1), *x = calloc(TOKENS * IN, sizeof *x);
    Fp8d__V1__CheckNumericsReply *r = NULL;
    pair_open(&p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, w, NULL);
    r = check(&p, x);
    ck_assert(r->max_abs_error == 0 && r->relative_error == 0 && r->max_abs_reference == 0);
    fp8d__v1__check_numerics_reply__free_unpacked(r, NULL);
    struct ask_tensor none = ask_f32(x, 0, IN);
    ck_assert_msg(!ask_check(&p.a, PAIR_MODEL, PAIR_LAYER, &none, &r), "%s", p.a.text);
    ck_assert(r->max_abs_error == 0 && r->relative_error == 0 && r->input_elements == 0);
    fp8d__v1__check_numerics_reply__free_unpacked(r, NULL);
    pair_close(&p);
    free(w);
    free(x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("check_numerics");
    TCase *c = tcase_create("check_numerics");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, check_numbers_of_whole_numbers);
    tcase_add_test(c, check_numbers_of_any_numbers);
    tcase_add_test(c, check_leaves_nonfinite_outputs_out);
    tcase_add_test(c, check_of_nothing);
    suite_add_tcase(s, c);
    return run_suite(s);
}
