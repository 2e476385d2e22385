/* Dtypes, ranks and places of inputs and outputs of a forward. Codes are made and read by
 * tests/oracle/codes; sums by the float64 emulation. */
#include "tests/oracle/codes.h"
#include "tests/scenario/pair.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 12

#define F32 FP8D__V1__DTYPE__DTYPE_F32
#define BF16 FP8D__V1__DTYPE__DTYPE_BF16
#define F16 FP8D__V1__DTYPE__DTYPE_F16
#define E4M3 FP8D__V1__DTYPE__DTYPE_F8_E4M3
#define E5M2 FP8D__V1__DTYPE__DTYPE_F8_E5M2

/* --- fixture --- */

struct fix {
    struct pair p;
    float *w, *bias, *x;
};

static void fix_open(struct fix *f)
{
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->bias = draw_normal(2, OUT, 1.0);
    f->x = draw_normal(3, TOKENS * IN, 2.0);
    pair_open(&f->p, OUT, IN, &(struct oracle_recipe){.history_len = 4}, f->w, f->bias);
}

static void fix_close(struct fix *f)
{
    pair_close(&f->p);
    free(f->w);
    free(f->bias);
    free(f->x);
}

/* --- helpers --- */

static struct ask_forward eval(struct fix *f, struct ask_tensor x, Fp8d__V1__DType out)
{
    struct ask_forward r = {.model = PAIR_MODEL, .layer = PAIR_LAYER, .x = x, .output_dtype = out,
                            .mode = FP8D__V1__MODE__MODE_EVAL};
    ck_assert_msg(!ask_forward(&f->p.a, &r), "%s", f->p.a.text);
    return r;
}

/* Numbers to halves; the numbers become what the halves mean. */
static uint16_t *halve(float *x, size_t n, bool bf16)
{
    uint16_t *h = malloc(n * sizeof *h);
    ck_assert_ptr_nonnull(h);
    for (size_t i = 0; i < n; i++) {
        h[i] = half_code((double)x[i], bf16);
        x[i] = (float)half_value(h[i], bf16);
    }
    return h;
}

/* y of FP8 codes and their factor, the weight cast with its own scale as eval of an unset site. */
static struct bound expect_fp8(const struct fix *f, const uint8_t *codes, bool e5m2, float factor)
{
    struct bound b = bound_new(IN, TOKENS * OUT);
    float amax = 0;
    for (size_t i = 0; i < OUT * IN; i++)
        amax = fmaxf(amax, fabsf(f->w[i]));
    float scale = (float)(448.0 / (double)amax), inverse = (float)(1.0 / (double)scale);
    float x[TOKENS * IN], w[OUT * IN];
    for (size_t i = 0; i < TOKENS * IN; i++)
        x[i] = (float)fp8_value(codes[i], e5m2);
    for (size_t i = 0; i < OUT * IN; i++)
        w[i] = (float)oracle_fp8((double)(f->w[i] * scale), false);
    for (size_t i = 0; i < b.count; i++) {
        b.cut[i] = cut_of(x + i / OUT * IN, w + i % OUT * IN, IN, cut_least(e5m2), cut_least(false));
        cut_scale(&b.cut[i], (double)factor * (double)inverse);
        b.want[i] = b.cut[i].sum + (double)f->bias[i % OUT];
    }
    return b;
}

/* Finite codes of all magnitudes. */
static void finite_codes(uint8_t *codes, bool e5m2)
{
    uint64_t at = 11;
    for (size_t i = 0; i < TOKENS * IN; i++)
        do
            codes[i] = (uint8_t)draw(&at, 256);
        while (!isfinite(fp8_value(codes[i], e5m2)));
}

static struct ask_tensor fp8_tensor(const uint8_t *codes, bool e5m2, float factor)
{
    return (struct ask_tensor){.dtype = e5m2 ? E5M2 : E4M3, .rank = 2, .dims = {TOKENS, IN},
                               .data = codes, .factor = factor};
}

/* --- inputs --- */

/* Halves are cast from the stored dtype: output and amax are those of the numbers they mean, and
 * the output has their dtype unless asked. */
START_TEST(dtype_half_inputs)
{
    struct fix f;
    enum oracle_copy copy;
    fix_open(&f);
    uint16_t *h = halve(f.x, TOKENS * IN, _i);
    struct ask_tensor x = {.dtype = _i ? BF16 : F16, .rank = 2, .dims = {TOKENS, IN}, .data = h};
    struct ask_forward r = eval(&f, x, F32);
    struct bound want = pair_emulate(&f.p, ORACLE_EVAL, ORACLE_UNSET, f.x, TOKENS, &copy);
    bound_check(&want, r.y);
    ask_forward_free(&r);
    r = eval(&f, x, 0);
    ck_assert(r.reply->output->dtype == x.dtype && r.y_bytes == TOKENS * OUT * 2);
    ask_forward_free(&r);
    r.mode = FP8D__V1__MODE__MODE_TRAIN;
    ck_assert(!ask_forward(&f.p.a, &r));
    oracle_forward(f.p.oracle, ORACLE_TRAIN, ORACLE_UNSET, f.x, TOKENS, want.want);
    bound_free(&want);
    pair_check_state(&f.p);
    ask_forward_free(&r);
    fix_close(&f);
    free(h);
}
END_TEST

/* Weights edited in as halves. */
START_TEST(dtype_half_weights)
{
    struct fix f;
    fix_open(&f);
    uint16_t *h = halve(f.w, OUT * IN, _i);
    struct ask_tensor w = {.dtype = _i ? BF16 : F16, .rank = 2, .dims = {OUT, IN}, .data = h};
    ck_assert(!ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &w, NULL, NULL, NULL));
    oracle_set_weight(f.p.oracle, f.w);
    pair_forward(&f.p, &f.p.a, ORACLE_EVAL, ORACLE_UNSET, f.x, TOKENS);
    pair_forward(&f.p, &f.p.a, ORACLE_TRAIN, ORACLE_TRUE, f.x, TOKENS);
    pair_forward(&f.p, &f.p.a, ORACLE_CALIBRATE, ORACLE_UNSET, f.x, TOKENS);
    fix_close(&f);
    free(h);
}
END_TEST

/* FP8 inputs carry their factor; the output is bf16 unless asked; the input's site sees nothing. */
START_TEST(dtype_fp8_inputs)
{
    struct fix f;
    uint8_t codes[TOKENS * IN];
    unsigned counts[2];
    bool e5m2 = _i;
    float factor = e5m2 ? 0.0003f : 0.02f;
    fix_open(&f);
    finite_codes(codes, e5m2);
    struct ask_tensor x = fp8_tensor(codes, e5m2, factor);
    struct ask_forward r = eval(&f, x, F32);
    struct bound want = expect_fp8(&f, codes, e5m2, factor);
    bound_check(&want, r.y);
    bound_free(&want);
    ck_assert_ptr_null(r.reply->input);
    ask_forward_free(&r);
    r = eval(&f, x, 0);
    ck_assert(r.reply->output->dtype == BF16 && r.y_bytes == TOKENS * OUT * 2);
    ask_forward_free(&r);
    r.mode = FP8D__V1__MODE__MODE_TRAIN;
    ck_assert(!ask_scope_begin(&f.p.a, 1, PAIR_MODEL) && !ask_forward(&f.p.a, &r));
    ck_assert(!ask_scope_end(&f.p.a, 1, false, counts) && counts[0] == 1 && counts[1] == 1);
    ask_forward_free(&r);
    Fp8d__V1__QueryScalingReply *s = ask_state(&f.p.a, PAIR_MODEL);
    ck_assert(!ask_site(s, PAIR_LAYER, "input")->set && ask_site(s, PAIR_LAYER, "weight")->set);
    ask_state_free(s);
    fix_close(&f);
}
END_TEST

/* FP8 has no place in calibrate and check, nor as an output. */
START_TEST(dtype_fp8_is_refused_where_it_cannot_be)
{
    struct fix f;
    uint8_t codes[TOKENS * IN] = {0};
    fix_open(&f);
    struct ask_tensor x = fp8_tensor(codes, false, 1);
    struct ask_forward r = {.model = PAIR_MODEL, .layer = PAIR_LAYER, .x = x,
                            .mode = FP8D__V1__MODE__MODE_CALIBRATE};
    ck_assert_uint_eq(ask_forward(&f.p.a, &r), ASK_INVALID_ARGUMENT);
    ck_assert_uint_eq(ask_check(&f.p.a, PAIR_MODEL, PAIR_LAYER, &x, NULL), ASK_INVALID_ARGUMENT);
    r = (struct ask_forward){.model = PAIR_MODEL, .layer = PAIR_LAYER, .output_dtype = E4M3,
                             .x = ask_f32(f.x, TOKENS, IN)};
    ck_assert_uint_eq(ask_forward(&f.p.a, &r), ASK_INVALID_ARGUMENT);
    ck_assert_uint_eq(ask_abort(&f.p.a, PAIR_MODEL, NULL), ASK_FAILED_PRECONDITION);
    fix_close(&f);
}
END_TEST

/* --- outputs --- */

/* y as halves is what float32 gave, rounded once: to the bit, but for the FP8 GEMM of a GPU, where
 * each output dtype has an algorithm of its own, and each is within its bound. */
static void compare_halves(const uint16_t *y, const float *wide, bool bf16, const struct bound *b)
{
    for (size_t i = 0; i < TOKENS * OUT; i++) {
        double half = half_value(y[i], bf16), step = bf16 ? 0x1p-8 : 0x1p-11;
        if (rig_cuda() && !b->high)
            ck_assert_double_le(fabs(half - (double)wide[i]),
                                2 * bound_at(b, i) + fabs((double)wide[i]) * step);
        else
            ck_assert_uint_eq(y[i], half_code((double)wide[i], bf16));
    }
}

/* A half output is the float32 result of a layer whose bias was rounded to that dtype, rounded
 * once. */
START_TEST(dtype_half_outputs)
{
    struct fix f;
    enum oracle_copy copy;
    bool bf16 = _i & 1, calibrate = _i & 2;
    fix_open(&f);
    struct ask_forward r = {.model = PAIR_MODEL, .layer = PAIR_LAYER,
                            .mode = calibrate ? FP8D__V1__MODE__MODE_CALIBRATE
                                              : FP8D__V1__MODE__MODE_EVAL,
                            .output_dtype = bf16 ? BF16 : F16, .x = ask_f32(f.x, TOKENS, IN)};
    struct ask_forward q = r;
    q.output_dtype = F32;
    ck_assert(!ask_forward(&f.p.a, &r));
    free(halve(f.bias, OUT, bf16));
    pair_load(&f.p, f.w, f.bias);
    ck_assert(!ask_forward(&f.p.a, &q));
    struct bound b = pair_emulate(&f.p, calibrate ? ORACLE_CALIBRATE : ORACLE_EVAL, ORACLE_UNSET,
                                  f.x, TOKENS, &copy);
    compare_halves(r.y, q.y, bf16, &b);
    bound_free(&b);
    ask_forward_free(&r);
    ask_forward_free(&q);
    pair_forward(&f.p, &f.p.a, ORACLE_EVAL, ORACLE_UNSET, f.x, TOKENS);
    fix_close(&f);
}
END_TEST

/* What f16 cannot hold becomes infinite, with its sign. */
START_TEST(dtype_f16_output_overflows_to_infinity)
{
    struct fix f;
    enum oracle_copy copy;
    size_t infinite = 0;
    fix_open(&f);
    for (size_t i = 0; i < TOKENS * IN; i++)
        f.x[i] *= 30000;
    struct ask_forward r = eval(&f, ask_f32(f.x, TOKENS, IN), F16);
    struct bound b = pair_emulate(&f.p, ORACLE_EVAL, ORACLE_UNSET, f.x, TOKENS, &copy);
    for (size_t i = 0; i < TOKENS * OUT; i++) {
        unsigned code = ((const uint16_t *)r.y)[i];
        if (fabs(b.want[i]) > 65520 + bound_at(&b, i))
            ck_assert_uint_eq(code, b.want[i] < 0 ? 0xfc00 : 0x7c00);
        else if (fabs(b.want[i]) < 65520 - bound_at(&b, i))
            ck_assert_uint_ne(code & 0x7fff, 0x7c00);
        infinite += (code & 0x7fff) == 0x7c00;
    }
    bound_free(&b);
    ck_assert(infinite > 4 && infinite < TOKENS * OUT);
    ask_forward_free(&r);
    fix_close(&f);
}
END_TEST

/* Ranks 1, 3 and 4 are the same rows: dims [..., out], and the same bits. (On a GPU as far as the
 * rows are as many: another number of them is another GEMM, which is held to its bound.) */
START_TEST(dtype_ranks)
{
    static const struct {
        unsigned rank;
        uint64_t dims[4];
    } shapes[] = {{1, {IN}}, {3, {3, 4, IN}}, {4, {2, 1, 6, IN}}, {3, {2, 0, IN}}};
    struct fix f;
    enum oracle_copy copy;
    fix_open(&f);
    pair_forward(&f.p, &f.p.a, ORACLE_TRAIN, ORACLE_TRUE, f.x, TOKENS); /* scales are set */
    struct ask_forward whole = eval(&f, ask_f32(f.x, TOKENS, IN), F32);
    struct bound b = pair_emulate(&f.p, ORACLE_EVAL, ORACLE_UNSET, f.x, TOKENS, &copy);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        struct ask_tensor x = {.dtype = F32, .rank = shapes[k].rank, .data = f.x};
        uint64_t rows = 1;
        memcpy(x.dims, shapes[k].dims, sizeof shapes[k].dims);
        for (unsigned d = 0; d + 1 < x.rank; d++)
            rows *= x.dims[d];
        struct ask_forward r = eval(&f, x, F32);
        const Fp8d__V1__TensorRef *o = r.reply->output;
        ck_assert(o->n_dims == x.rank && o->dims[x.rank - 1] == OUT);
        ck_assert(!memcmp(o->dims, x.dims, (x.rank - 1) * sizeof x.dims[0]));
        ck_assert_uint_eq(r.y_bytes, rows * OUT * 4);
        if (!rig_cuda() || rows == TOKENS)
            ck_assert(!memcmp(r.y, whole.y, r.y_bytes));
        for (size_t i = 0; i < rows * OUT; i++)
            ck_assert_double_le(fabs((double)((float *)r.y)[i] - b.want[i]), bound_at(&b, i));
        ask_forward_free(&r);
    }
    bound_free(&b);
    ask_forward_free(&whole);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine_dtypes");
    TCase *c = tcase_create("engine_dtypes");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, dtype_half_inputs, 0, 2);
    tcase_add_loop_test(c, dtype_half_weights, 0, 2);
    tcase_add_loop_test(c, dtype_fp8_inputs, 0, 2);
    tcase_add_test(c, dtype_fp8_is_refused_where_it_cannot_be);
    tcase_add_loop_test(c, dtype_half_outputs, 0, 4);
    tcase_add_test(c, dtype_f16_output_overflows_to_infinity);
    tcase_add_test(c, dtype_ranks);
    suite_add_tcase(s, c);
    return run_suite(s);
}
