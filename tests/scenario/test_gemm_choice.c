/* Which GEMM a request asks the backend for: its accumulation follows the recipe, and whether its
 * algorithm is reproducible follows the mode and the key `plans`. A spy in the backend's table sees
 * it; on outliers a GPU's sums show it. */
#include "tests/oracle/cut.h"
#include "tests/scenario/ask.h"
#include "tests/unit/rig.h"

#include <math.h>

#define OUT 16
#define IN 4096
#define TOKENS 3
#define MODES 4 /* eval, train, calibrate, check */
#define FAST FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_FAST
#define PRECISE FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_PRECISE

/* --- the spy --- */

static const struct backend_ops *real;
static struct backend_ops spied;
static struct gemm gemm;
static struct gemm_high high;
static unsigned gemms, highs;

static int spy_gemm(struct queue *q, const struct gemm *g, struct fault *f)
{
    gemm = *g;
    gemms++;
    return real->gemm(q, g, f);
}

static int spy_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f)
{
    high = *g;
    highs++;
    return real->gemm_high(q, g, f);
}

/* --- fixture: a layer whose products hold one outlier --- */

static struct desk *D;
static struct ask A;
static float X[TOKENS * IN], W[OUT * IN];

/* 448 * 448, and IN - 1 products of 8, in every row: all of it E4M3 at scale 1, which the amax of
 * 448 gives. */
static void fill(void)
{
    for (unsigned i = 0; i < TOKENS * IN; i++)
        X[i] = i % IN ? 8.0f : 448.0f;
    for (unsigned i = 0; i < OUT * IN; i++)
        W[i] = i % IN ? 1.0f : 448.0f;
}

static void start(enum plans plans)
{
    struct engine_options o = {.plans = plans};
    struct desk_layer l = {.name = "l", .out = OUT, .in = IN, .weight = W};
    fill();
    D = desk_new(&o, 0);
    real = D->backend->ops;
    spied = *real;
    spied.gemm = spy_gemm;
    spied.gemm_high = spy_gemm_high;
    D->backend->ops = &spied;
    A = ask_open(D, 1);
    ck_assert_msg(!desk_load(D, 1, "m", &l, 1, NULL, A.text), "%s", A.text);
}

static void stop(void)
{
    ask_close(&A);
    D->backend->ops = real; /* a GPU's backend is kept for the next case */
    desk_free(D);
}

/* --- helpers --- */

/* `mode` as on the wire, 4 for CheckNumerics; y (may be NULL) is [TOKENS, OUT]. */
static void run(unsigned mode, float *y)
{
    gemms = highs = 0;
    if (mode == 4) {
        struct ask_tensor x = ask_f32(X, TOKENS, IN);
        ck_assert_msg(!ask_check(&A, "m", "l", &x, NULL), "%s", A.text);
        return;
    }
    struct desk_forward f = {.model = "m",
                             .layer = "l",
                             .mode = (Fp8d__V1__Mode)mode,
                             .x = X,
                             .tokens = TOKENS,
                             .in = IN,
                             .out = OUT,
                             .y = y};
    ck_assert_msg(!desk_forward(D, 1, &f, A.text), "%s", A.text);
}

static void accumulate(Fp8d__V1__FpropAccumulation how)
{
    Fp8d__V1__SetRecipeRequest m = FP8D__V1__SET_RECIPE_REQUEST__INIT;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    char name[] = "m";
    m.model = name;
    m.recipe = &r;
    r.fprop_accumulation = how;
    ck_assert_msg(!desk_call(D, 1, REQUEST_SET_RECIPE, &m.base, NULL, 0, NULL, A.text), "%s",
                  A.text);
}

/* What one output may be off; `least` twice, for both are E4M3 and nothing is subnormal. */
static struct cut limits(void)
{
    return cut_of(X, W, IN, cut_least(false), cut_least(false));
}

static double worst(const float *y, double want)
{
    double most = 0;
    for (unsigned i = 0; i < TOKENS * OUT; i++)
        most = fmax(most, fabs((double)y[i] - want));
    return most;
}

/* --- cases --- */

/* auto: all but eval; else all alike. Both products of a check take part. */
START_TEST(choice_of_plans)
{
    static const char *const names[] = {"auto", "timed", "reproducible"};
    static const bool want[3][MODES] = {
        {false, true, true, true}, {false, false, false, false}, {true, true, true, true}};
    start((enum plans)_i);
    Fp8d__V1__StatusReply *s = ask_status(&A);
    ck_assert_str_eq(s->plans, names[_i]);
    fp8d__v1__status_reply__free_unpacked(s, NULL);
    for (unsigned mode = 1; mode <= MODES; mode++) {
        run(mode, NULL);
        ck_assert(gemms == (mode != 3) && highs == (mode >= 3));
        ck_assert_msg(!gemms || gemm.reproducible == want[_i][mode - 1], "mode %u", mode);
        ck_assert_msg(!highs || high.reproducible == want[_i][mode - 1], "mode %u", mode);
    }
    stop();
}
END_TEST

/* Eval, train and check add as the recipe says, which a live model may be told anew. */
START_TEST(choice_of_accumulation)
{
    static const Fp8d__V1__FpropAccumulation steps[] = {0, PRECISE, 0, FAST, 0};
    static const bool want[] = {false, true, true, false, false}; /* 0 keeps what there is */
    start(PLANS_AUTO);
    for (unsigned i = 0; i < 5; i++) {
        accumulate(steps[i]);
        for (unsigned mode = 1; mode <= MODES; mode++) {
            run(mode, NULL);
            ck_assert_msg(!gemms || gemm.precise == want[i], "step %u, mode %u", i, mode);
        }
    }
    stop();
}
END_TEST

/* The sum is 448 * 448 + 4095 * 8 = 233464, a whole number that float32 has. The CPU gives just
 * that either way. A tensor core that adds fast has cut off every 8 beside 200704 (13 bits below
 * 2^17 is 16): within the bound of fast sums, and beyond that of precise ones, which a precise
 * forward and a precise check hold. */
START_TEST(choice_shows_on_outliers)
{
    const double want = 448.0 * 448.0 + 4095.0 * 8.0;
    float fast[TOKENS * OUT], precise[TOKENS * OUT];
    start(PLANS_AUTO);
    const struct cut most = limits();
    ck_assert(most.sum == want && most.precise < 4095.0 * 8.0);
    run(1, fast);
    accumulate(PRECISE);
    run(1, precise);
    (void)fprintf(stderr, "off by %g fast (at most %g), %g precise (at most %g)\n",
                  worst(fast, want), most.fast, worst(precise, want), most.precise);
    ck_assert(worst(fast, want) <= (rig_cuda() ? most.fast : 0));
    ck_assert(worst(precise, want) <= (rig_cuda() ? most.precise : 0));
    ck_assert(!rig_cuda() || worst(fast, want) > most.precise);
    Fp8d__V1__CheckNumericsReply *r = NULL;
    struct ask_tensor x = ask_f32(X, TOKENS, IN);
    ck_assert_msg(!ask_check(&A, "m", "l", &x, &r), "%s", A.text);
    ck_assert(r->max_abs_error <= (rig_cuda() ? most.precise : 0));
    fp8d__v1__check_numerics_reply__free_unpacked(r, NULL);
    stop();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gemm_choice");
    TCase *c = tcase_create("gemm_choice");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, choice_of_plans, 0, 3);
    tcase_add_test(c, choice_of_accumulation);
    tcase_add_test(c, choice_shows_on_outliers);
    suite_add_tcase(s, c);
    return run_suite(s);
}
