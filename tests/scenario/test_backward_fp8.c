/* Backward where weight or input came as FP8: numbers that mean whole ones under their factors, so
 * that every gradient is known. And what has no product for its backward is refused in the forward.
 */
#include "tests/oracle/codes.h"
#include "tests/scenario/stash.h"
#include "tests/scenario/wholes.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 7

#define E4M3 FP8D__V1__DTYPE__DTYPE_F8_E4M3
#define E5M2 FP8D__V1__DTYPE__DTYPE_F8_E5M2

enum weight_kind { FROM_F32, FROM_FP8, CAST_AT_LOAD, FROM_E5M2 };

/* --- fixture: layer l of whole numbers, of which weight and input may be FP8 with a factor --- */

struct fp8 {
    struct desk *desk;
    struct ask a;
    float unit; /* the weight is whole numbers times this */
};

/* 2 units are 1.75, for which a cast at the load takes the scale 256. */
static float unit_of(enum weight_kind kind)
{
    return kind == CAST_AT_LOAD ? 0.875f : 1.0f;
}

/* The code that means v / factor; a factor is a power of two, and the quotient exact. */
static uint8_t code_of(float v, float factor, bool e5m2)
{
    for (unsigned c = 0; c < 256; c++)
        if (fp8_value((uint8_t)c, e5m2) == (double)(v / factor))
            return (uint8_t)c;
    ck_abort_msg("%g over %g is no code", (double)v, (double)factor);
    return 0;
}

static uint8_t *codes_of(uint64_t seed, uint64_t n, float factor, bool e5m2)
{
    uint8_t *c = malloc(n);
    ck_assert_ptr_nonnull(c);
    for (uint64_t i = 0; i < n; i++)
        c[i] = code_of((float)whole(seed, i), factor, e5m2);
    return c;
}

static struct blob model_file(enum weight_kind kind)
{
    struct stash s = {0};
    float factor = kind == FROM_E5M2 ? 0x1p-9f : 0x1p-3f, *bias = wholes(B, OUT),
          *w = wholes(W, OUT * IN);
    bool fp8 = kind == FROM_FP8 || kind == FROM_E5M2;
    for (int i = 0; i < OUT * IN; i++)
        w[i] *= unit_of(kind);
    uint8_t *codes = codes_of(W, OUT * IN, factor, kind == FROM_E5M2);
    if (fp8) {
        stash_put(&s, "l.weight", kind == FROM_E5M2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, 2, OUT, IN,
                  codes);
        stash_put(&s, "l.weight_scale", DTYPE_F32, 0, 1, 1, &factor);
    } else {
        stash_put(&s, "l.weight", DTYPE_F32, 2, OUT, IN, w);
    }
    stash_put(&s, "l.bias", DTYPE_F32, 1, OUT, 1, bias);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    free(codes);
    free(bias);
    free(w);
    return b;
}

/* A scope is open all along: no scale moves. */
static void fp8_open(struct fp8 *f, enum weight_kind kind, bool e4m3)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    struct blob file = model_file(kind);
    *f = (struct fp8){.desk = desk_new(NULL, 0), .unit = unit_of(kind)};
    f->a = ask_open(f->desk, 1);
    o.primary_fp8 = kind == CAST_AT_LOAD;
    recipe.fp8_format = e4m3 ? FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3 : 0;
    o.recipe = &recipe;
    ck_assert_msg(!stash_load(&f->a, "m", &file, &o, NULL), "%s", f->a.text);
    ck_assert(!ask_scope_begin(&f->a, 1, "m"));
    blob_free(&file);
}

static void fp8_close(struct fp8 *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
}

/* F32, or FP8 of that dtype with a factor. */
static unsigned forward(struct fp8 *f, uint64_t seed, Fp8d__V1__DType dtype, uint64_t context)
{
    bool e5m2 = dtype == E5M2;
    float factor = e5m2 ? 0x1p4f : 0x1p-2f, *x = wholes(X + seed, TOKENS * IN);
    uint8_t *codes = codes_of(X + seed, TOKENS * IN, factor, e5m2);
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, TOKENS, IN),
                            .output_dtype = FP8D__V1__DTYPE__DTYPE_F32,
                            .context_id = context};
    if (dtype) {
        r.x.dtype = dtype;
        r.x.data = codes;
        r.x.factor = factor;
    }
    unsigned code = ask_forward(&f->a, &r);
    ask_forward_free(&r);
    free(codes);
    free(x);
    return code;
}

static long wsum(uint64_t seed, uint64_t o, uint64_t i)
{
    long sum = 0;
    for (uint64_t t = 0; t < TOKENS; t++)
        sum += whole(DY + seed, t * OUT + o) * whole(X + seed, t * IN + i);
    return sum;
}

/* dx of this microbatch, by whole numbers. */
static void backward(struct fp8 *f, uint64_t seed, uint64_t context, bool accumulated)
{
    float *dy = wholes(DY + seed, TOKENS * OUT);
    struct ask_backward b = {.context_id = context, .dy = ask_f32(dy, TOKENS, OUT)};
    ck_assert_msg(!ask_backward(&f->a, &b), "%s", f->a.text);
    ck_assert_int_eq(b.reply->accumulated, accumulated);
    for (uint64_t t = 0; t < TOKENS; t++)
        for (uint64_t i = 0; i < IN; i++) {
            long sum = 0;
            for (uint64_t o = 0; o < OUT; o++)
                sum += whole(DY + seed, t * OUT + o) * whole(W, o * IN + i);
            ck_assert_msg(((float *)b.dx)[t * IN + i] == (float)sum * f->unit,
                          "dx [%lu, %lu] is %g", t, i, (double)((float *)b.dx)[t * IN + i]);
        }
    ask_backward_free(&b);
    free(dy);
}

/* dW and db over two microbatches. */
static void holds(struct fp8 *f)
{
    struct ask_gradient g;
    ck_assert(!ask_gradient(&f->a, "m", "l", false, &g));
    for (uint64_t o = 0; o < OUT; o++)
        for (uint64_t i = 0; i < IN; i++)
            ck_assert_msg(g.data[o * IN + i] == (float)(wsum(1, o, i) + wsum(2, o, i)),
                          "dW [%lu, %lu] is %g", o, i, (double)g.data[o * IN + i]);
    free(g.data);
    ck_assert(!ask_gradient(&f->a, "m", "l", true, &g));
    for (uint64_t o = 0; o < OUT; o++) {
        long sum = 0;
        for (uint64_t t = 0; t < TOKENS; t++)
            sum += whole(DY + 1, t * OUT + o) + whole(DY + 2, t * OUT + o);
        ck_assert_msg(g.data[o] == (float)sum, "db [%lu] is %g", o, (double)g.data[o]);
    }
    free(g.data);
}

/* --- cases --- */

static const struct {
    enum weight_kind weight;
    Fp8d__V1__DType input; /* 0: F32 */
    bool e4m3;
} rows[] = {
    {FROM_F32, E4M3, false}, {FROM_FP8, 0, false},     {FROM_FP8, E4M3, false},
    {FROM_F32, E5M2, true},  {FROM_FP8, E5M2, true},   {FROM_E5M2, 0, true},
    {FROM_E5M2, E4M3, true}, {CAST_AT_LOAD, 0, false}, {CAST_AT_LOAD, E4M3, true},
};
#define ROWS (int)(sizeof rows / sizeof rows[0])

/* Two microbatches, used in the other order. */
START_TEST(backward_of_fp8_operands)
{
    struct fp8 f;
    fp8_open(&f, rows[_i].weight, rows[_i].e4m3);
    ck_assert_msg(!forward(&f, 1, rows[_i].input, 1), "%s", f.a.text);
    ck_assert_msg(!forward(&f, 2, rows[_i].input, 2), "%s", f.a.text);
    backward(&f, 2, 2, false);
    backward(&f, 1, 1, true);
    holds(&f);
    fp8_close(&f);
}
END_TEST

/* F8_E5M2 with F8_E5M2 has no product: neither y (both operands), nor dW under hybrid. Without a
 * context there is no dW. */
START_TEST(backward_that_has_no_product)
{
    struct fp8 f;
    fp8_open(&f, FROM_F32, false);
    ck_assert_uint_eq(forward(&f, 1, E5M2, 1), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.a.text,
                                 "input.dtype is F8_E5M2, and so are gradients under fp8_format "
                                 "hybrid, needed another dtype, no context_id, or fp8_format "
                                 "e4m3"));
    ck_assert_uint_eq(ask_drop_context(&f.a, 1), ASK_NOT_FOUND);
    ck_assert_msg(!forward(&f, 1, E5M2, 0), "%s", f.a.text);
    fp8_close(&f);
    fp8_open(&f, FROM_E5M2, true);
    ck_assert_uint_eq(forward(&f, 1, E5M2, 0), ASK_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(
        strstr(f.a.text, "input.dtype is F8_E5M2, and so is the weight of layer l"));
    fp8_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("backward_fp8");
    TCase *c = tcase_create("backward_fp8");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, backward_of_fp8_operands, 0, ROWS);
    tcase_add_test(c, backward_that_has_no_product);
    suite_add_tcase(s, c);
    return run_suite(s);
}
