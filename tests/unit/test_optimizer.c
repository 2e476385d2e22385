/* optimizer.h, and the step that moves a weight: against PyTorch's rules in float64
 * (tests/oracle/optimizer_ref), by hand, and its FP8 bytes against a cast of what it stores. */
#include "tests/oracle/optimizer_ref.h"
#include "tests/unit/run.h"
#include "tests/unit/weights.h"

#include <math.h>

/* --- fixture --- */

static struct rig rig;

static void setup(void)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, false);
}

static void teardown(void)
{
    rig_wait(&rig);
    rig_close(&rig);
}

/* --- helpers --- */

static uint64_t hash(uint64_t seed, uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 27;
}

/* Uniform in [low, high), with either sign. */
static float number(uint64_t seed, uint64_t i, float low, float high)
{
    uint64_t h = hash(seed, i);
    float x = low + (high - low) * ((float)(h >> 40) * 0x1p-24f);
    return h & 1 ? x : -x;
}

static void fill(const struct tensor *t, uint64_t seed, float low, float high)
{
    for (uint64_t i = 0; i < t->rows * t->cols; i++)
        weights_floats(t)[i] = number(seed, i, low, high);
}

static void step(const struct weights *w, const struct optimizer_options *o, uint64_t n,
                 float grad_scale)
{
    struct update u = weights_update(w, o, n, grad_scale);
    ck_assert_msg(!backend_update(rig.q, &u, &rig.f), "%s", rig.f.text);
    rig_wait(&rig);
}

/* Every option that changes the rule, with numbers that make it matter. */
static const struct optimizer_options rules[] = {
    {.kind = OPTIMIZER_SGD, .rate = 0.01},
    {.kind = OPTIMIZER_SGD, .rate = 0.05, .weight_decay = 0.1},
    {.kind = OPTIMIZER_SGD, .rate = 0.01, .momentum = 0.9},
    {.kind = OPTIMIZER_SGD, .rate = 0.02, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.2},
    {.kind = OPTIMIZER_SGD, .rate = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
    {.kind = OPTIMIZER_ADAM, .rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {.kind = OPTIMIZER_ADAM,
     .rate = 0.02,
     .beta1 = 0.3, /* torch.lerp from the other end */
     .beta2 = 0.9,
     .eps = 0.05,
     .weight_decay = 0.2},
    {.kind = OPTIMIZER_ADAM, .rate = 0.01, .beta1 = 0.0, .beta2 = 0.99, .eps = 1e-3},
    {.kind = OPTIMIZER_ADAMW,
     .rate = 0.01,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .eps = 1e-8,
     .weight_decay = 0.01},
    {.kind = OPTIMIZER_ADAMW,
     .rate = 0.03,
     .beta1 = 0.95,
     .beta2 = 0.98,
     .eps = 0.1,
     .weight_decay = 0.5},
};
#define RULES ((int)(sizeof rules / sizeof rules[0]))

static struct optimizer_ref ref_of(const struct optimizer_options *o)
{
    return (struct optimizer_ref){.kind = o->kind == OPTIMIZER_SGD    ? REF_SGD
                                          : o->kind == OPTIMIZER_ADAM ? REF_ADAM
                                                                      : REF_ADAMW,
                                  .lr = o->rate,
                                  .momentum = o->momentum,
                                  .dampening = o->dampening,
                                  .beta1 = o->beta1,
                                  .beta2 = o->beta2,
                                  .eps = o->eps,
                                  .weight_decay = o->weight_decay,
                                  .nesterov = o->nesterov};
}

/* --- cases: what a step computes --- */

#define ELEMENTS (31u * 33u)
#define STEPS 40u
#define GRAD_SCALE 0.0123f

/* What the oracle says of all elements. */
struct course {
    double param[ELEMENTS];
    struct optimizer_ref_state state[ELEMENTS];
    double farthest; /* that a step moved any of them */
};

static void course_step(struct course *c, const struct optimizer_ref *ref, const float *grad)
{
    for (unsigned i = 0; i < ELEMENTS; i++) {
        double next = optimizer_ref_step(ref, &c->state[i], c->param[i],
                                         (double)grad[i] * (double)GRAD_SCALE);
        c->farthest = fmax(c->farthest, fabs(next - c->param[i]));
        c->param[i] = next;
    }
}

/* A rounding is off by at most a unit, 2^-24 of its result. Each of n steps rounds the weight
 * (twice with decay); a step, or what it leaves in a moment, takes up to 8 roundings, and the
 * moments remember n steps: the weight is off by at most n units of 2 |param| + 8 n |step|, a
 * moment by 8 n of its largest. Gradients are between 0.5 and 2, so that no moment is small against
 * them. */
static void compare_course(const struct course *c, const struct weights *w, bool sgd, unsigned n)
{
    double param = 0, first = 0, second = 0, worst = 0, unit = n * 0x1p-24;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        const struct optimizer_ref_state *s = &c->state[i];
        param = fmax(param, fabs(c->param[i]));
        first = fmax(first, fabs(sgd ? s->buf : s->exp_avg));
        second = fmax(second, s->exp_avg_sq);
    }
    double bound = unit * (2 * param + 8 * n * c->farthest);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        const struct optimizer_ref_state *s = &c->state[i];
        double off = fabs((double)weights_floats(&w->master)[i] - c->param[i]);
        worst = fmax(worst, off / bound);
        ck_assert_msg(off <= bound, "element %u after %u steps: off by %g, bound %g", i, n, off,
                      bound);
        ck_assert(fabs((double)weights_floats(&w->m)[i] - (sgd ? s->buf : s->exp_avg)) <=
                  8 * unit * first);
        ck_assert(fabs((double)weights_floats(&w->v)[i] - s->exp_avg_sq) <= 8 * unit * second);
    }
    if (n == STEPS)
        (void)fprintf(stderr, "%.2g of the bound %.2g\n", worst, bound);
}

/* 40 steps of every rule stay by PyTorch's in float64; moments that a kind lacks stay zero. */
START_TEST(optimizer_follows_pytorch)
{
    static struct course c;
    struct optimizer_ref ref = ref_of(&rules[_i]);
    struct weights w = weights_new(&rig, 31, 33, DTYPE_F32, 0);
    memset(&c, 0, sizeof c);
    fill(&w.master, 1, 0.0f, 1.0f);
    for (unsigned i = 0; i < ELEMENTS; i++)
        c.param[i] = (double)weights_floats(&w.master)[i];
    for (unsigned n = 1; n <= STEPS; n++) {
        fill(&w.grad, 100 + n, 0.5f / GRAD_SCALE, 2.0f / GRAD_SCALE);
        course_step(&c, &ref, weights_floats(&w.grad));
        step(&w, &rules[_i], n, GRAD_SCALE);
        compare_course(&c, &w, rules[_i].kind == OPTIMIZER_SGD, n);
    }
    weights_free(&w);
}
END_TEST

/* Two steps of gradients 0.5 and 1 from 1, in numbers that float32 holds exactly. */
START_TEST(optimizer_sgd_by_hand)
{
    static const struct {
        double momentum, dampening, decay;
        bool nesterov;
        float first, second;
    } rows[] = {
        {0, 0, 0, false, 0.875f, 0.625f},
        {0.5, 0, 0, false, 0.875f, 0.5625f},      /* m 0.5, 1.25 */
        {0.5, 0.5, 0, false, 0.875f, 0.6875f},    /* m 0.5 (the gradient itself), 0.75 */
        {0.5, 0, 0, true, 0.8125f, 0.40625f},     /* 0.5 + 0.25, 1 + 0.625 */
        {0, 0, 0.5, false, 0.75f, 0.40625f},      /* 0.5 + 0.5, 1 + 0.375 */
        {0.5, 0.5, 0.5, false, 0.75f, 0.453125f}, /* m 1, 0.5 + 0.6875 */
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct optimizer_options o = {.kind = OPTIMIZER_SGD,
                                      .rate = 0.25,
                                      .momentum = rows[i].momentum,
                                      .dampening = rows[i].dampening,
                                      .nesterov = rows[i].nesterov,
                                      .weight_decay = rows[i].decay};
        struct weights w = weights_new(&rig, 1, 1, DTYPE_F32, 0);
        *weights_floats(&w.master) = 1.0f;
        *weights_floats(&w.grad) = 0.5f;
        step(&w, &o, 1, 1.0f);
        ck_assert_msg(*weights_floats(&w.master) == rows[i].first, "row %u, step 1", i);
        *weights_floats(&w.grad) = 4.0f;
        step(&w, &o, 2, 0.25f); /* the gradient is 1 once scaled */
        ck_assert_msg(*weights_floats(&w.master) == rows[i].second, "row %u, step 2", i);
        weights_free(&w);
    }
}
END_TEST

/* The first step of Adam moves by the rate against the gradient's sign, whatever its size; AdamW
 * shrinks a weight whose gradients are zero. */
START_TEST(optimizer_adam_by_hand)
{
    static const float grads[] = {1e-3f, -1e-3f, 7.0f, -2.5e4f};
    struct optimizer_options o = optimizer_default(OPTIMIZER_ADAM);
    struct weights w = weights_new(&rig, 1, 4, DTYPE_F32, 0);
    for (unsigned i = 0; i < 4; i++) {
        weights_floats(&w.master)[i] = 1.0f;
        weights_floats(&w.grad)[i] = grads[i];
    }
    o.rate = 0x1p-6;
    step(&w, &o, 1, 1.0f);
    for (unsigned i = 0; i < 4; i++) {
        float moved = weights_floats(&w.master)[i], want = grads[i] > 0 ? 1 - 0x1p-6f : 1 + 0x1p-6f;
        /* eps is 1e-5 of the least gradient */
        ck_assert_msg(fabsf(moved - want) < 0x1p-6f * 2e-5f + 0x1p-23f, "%a", (double)moved);
    }
    o = optimizer_default(OPTIMIZER_ADAMW);
    o.rate = 0.25;
    o.weight_decay = 0.5;
    for (unsigned i = 0; i < 4; i++) {
        weights_floats(&w.master)[i] = 1.0f;
        weights_floats(&w.grad)[i] = weights_floats(&w.m)[i] = weights_floats(&w.v)[i] = 0.0f;
    }
    step(&w, &o, 1, 1.0f);
    ck_assert(weights_floats(&w.master)[3] == 0.875f);
    step(&w, &o, 1000000, 1.0f);
    ck_assert(weights_floats(&w.master)[3] == 0.765625f);
    weights_free(&w);
}
END_TEST

/* Whatever NaN comes in or arises, the quiet one is written; an element beside it is not touched.
 */
START_TEST(optimizer_writes_quiet_nans)
{
    static const uint32_t grads[] = {0x7f800001, 0xffc00000, 0xffc12345, 0x3f800000};
    for (int i = 0; i < RULES; i++) {
        struct weights w = weights_new(&rig, 1, 4, DTYPE_BF16, 0);
        memcpy(weights_data(&w.grad), grads, sizeof grads);
        fill(&w.master, 3, 0.5f, 1.0f);
        step(&w, &rules[i], 1, 1.0f);
        for (unsigned k = 0; k < 3; k++) {
            ck_assert_uint_eq(((uint32_t *)weights_data(&w.master))[k], 0x7fc00000);
            ck_assert_uint_eq(((uint16_t *)weights_data(&w.stored))[k], 0x7fc0);
            if (optimizer_moments(&rules[i]))
                ck_assert_uint_eq(((uint32_t *)weights_data(&w.m))[k], 0x7fc00000);
        }
        ck_assert(fp8_finite(weights_floats(&w.master)[3]));
        weights_free(&w);
    }
}
END_TEST

/* --- cases: what is kept of it --- */

static const uint64_t shapes[][2] = {{1, 1},    {1, 7},    {3, 5},    {16, 16},   {17, 132},
                                     {64, 128}, {65, 129}, {100, 36}, {130, 260}, {0, 8}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

/* Weights of which some saturate, some become zero and some are no numbers. */
static void fill_hard(struct weights *w, uint64_t seed)
{
    static const float odd[] = {(float)NAN, (float)INFINITY, 1e6f, 1e-9f, -0.0f, 65519.9f, 3e38f};
    fill(&w->master, seed, 0.0f, 30.0f);
    fill(&w->grad, seed + 1, 0.5f, 2.0f);
    fill(&w->m, seed + 2, 0.5f, 2.0f);
    for (uint64_t i = 0; i < w->v.rows * w->v.cols; i++) {
        weights_floats(&w->v)[i] = fabsf(number(seed + 3, i, 0.5f, 2.0f));
        if (i % 11 == 3)
            weights_floats(&w->master)[i] = odd[i / 11 % 7];
    }
    w->site->scale = 27.3f;
    w->site->scale_inv = 0x1.2c1e6p-5f;
    w->site->set = 1;
}

static void same_forms(struct qtensor *a, struct qtensor *b, uint64_t rows, uint64_t cols)
{
    struct weights_forms x = weights_look(&rig, a), y = weights_look(&rig, b);
    ck_assert_mem_eq(x.codes, y.codes, rows * cols);
    ck_assert(x.factor == y.factor && x.pitch == y.pitch && !x.second == !y.second);
    if (x.second)
        ck_assert_mem_eq(x.second, y.second, cols * x.pitch);
    weights_forms_free(&x);
    weights_forms_free(&y);
}

/* The same step twice from the same start: with the cast in one pass (a), and alone, `stored` cast
 * after it (b). Without `keep` a stores nothing. */
static void same_step(const struct optimizer_options *o, const uint64_t shape[2], enum dtype to,
                      enum dtype fmt, bool second, bool keep, unsigned shift)
{
    struct weights a = weights_new(&rig, shape[0], shape[1], to, shift);
    struct weights b = weights_new(&rig, shape[0], shape[1], to, shift);
    struct cast c = {.fmt = fmt, .mode = CAST_SITE, .transposed = second};
    struct qtensor *one = NULL, *two = NULL;
    uint64_t bytes = weights_bytes(&a.master);
    fill_hard(&a, 5);
    fill_hard(&b, 5);
    struct update u = weights_update(&a, o, 3, 0.7f);
    if (!keep)
        u.stored = (struct tensor){0};
    c.site = a.site;
    c.report = a.report;
    ck_assert_msg(!qtensor_update(rig.q, NULL, &u, &c, "w", &one, &rig.f), "%s", rig.f.text);
    step(&b, o, 3, 0.7f);
    c.src = b.stored;
    c.site = b.site;
    c.report = b.report;
    ck_assert_msg(!qtensor_cast(rig.q, NULL, &c, "w", &two, &rig.f), "%s", rig.f.text);
    same_forms(one, two, shape[0], shape[1]);
    ck_assert_mem_eq(a.report, b.report, sizeof *a.report);
    ck_assert_mem_eq(weights_data(&a.master), weights_data(&b.master), bytes);
    ck_assert_mem_eq(weights_data(&a.m), weights_data(&b.m), bytes);
    ck_assert_mem_eq(weights_data(&a.v), weights_data(&b.v), bytes);
    if (keep)
        ck_assert_mem_eq(weights_data(&a.stored), weights_data(&b.stored),
                         weights_bytes(&a.stored));
    qtensor_unref(one);
    qtensor_unref(two);
    weights_free(&a);
    weights_free(&b);
}

/* Codes in both forms, factor and report are those of a cast of `stored`, kept or not, aligned or
 * not, and the rest is the plain step's. */
START_TEST(optimizer_bytes_are_a_cast_of_stored)
{
    unsigned turn = 0;
    for (int r = 0; r < RULES; r++)
        for (int to = DTYPE_F32; to <= DTYPE_F16; to++, turn++)
            same_step(&rules[r], shapes[_i], (enum dtype)to,
                      turn % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, turn % 3 != 0, turn % 4 != 3,
                      turn % 5 == 4);
}
END_TEST

/* x rounded to a float of `bits` significant bits whose least normal is 2^low, by the definition.
 */
static double rounded(double x, int bits, int low)
{
    int exponent;
    (void)frexp(x, &exponent); /* |x| < 2^exponent */
    if (exponent - 1 < low)
        exponent = low + 1;
    return ldexp(rint(ldexp(x, bits - exponent)), exponent - bits);
}

/* `stored` is the new master to nearest, ties to even. */
START_TEST(optimizer_stores_the_master_rounded)
{
    struct optimizer_options o = {.kind = OPTIMIZER_SGD, .rate = 0.5};
    bool bf16 = _i == 0;
    struct weights w = weights_new(&rig, 7, 143, bf16 ? DTYPE_BF16 : DTYPE_F16, 0);
    for (uint64_t i = 0; i < 1001; i++) {
        weights_floats(&w.master)[i] = ldexpf(number(9, i, 1.0f, 2.0f), (int)(i % 36) - 25);
        weights_floats(&w.grad)[i] = ldexpf(number(8, i, 1.0f, 2.0f), (int)(i % 36) - 27);
    }
    weights_floats(&w.master)[0] = 1.0f + 0x1p-8f + 0x1p-11f; /* ties, once 2^-11 is taken off */
    weights_floats(&w.grad)[0] = 0x1p-10f;
    step(&w, &o, 1, 1.0f);
    for (uint64_t i = 0; i < 1001; i++) {
        uint16_t h = ((uint16_t *)weights_data(&w.stored))[i];
        double master = (double)weights_floats(&w.master)[i];
        double got = (double)(bf16 ? bf16_decode(h) : f16_decode(h));
        ck_assert_msg(got == (bf16 ? rounded(master, 8, -126) : rounded(master, 11, -14)),
                      "%a became %a", master, got);
    }
    weights_free(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("optimizer");
    TCase *c = tcase_create("step");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, optimizer_follows_pytorch, 0, RULES);
    tcase_add_test(c, optimizer_sgd_by_hand);
    tcase_add_test(c, optimizer_adam_by_hand);
    tcase_add_test(c, optimizer_writes_quiet_nans);
    tcase_add_loop_test(c, optimizer_bytes_are_a_cast_of_stored, 0, SHAPES);
    tcase_add_loop_test(c, optimizer_stores_the_master_rounded, 0, 2);
    suite_add_tcase(s, c);
    return run_suite(s);
}
