/* GEMMs against float64 products of the same operands, within bounds that grow with k; what was
 * measured is printed beside. Outputs hold poison before. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"
#include "tests/parity/product.h"

/* Weights [n, k] of the layers that are tested; features as issue 4 lists them. */
static const uint64_t shapes[][2] = {{16, 16},     {16, 48},      {48, 16},
                                     {768, 768},   {768, 1008},   {1008, 768},
                                     {4096, 4096}, {4096, 14336}, {14336, 4096}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

/* --- operands --- */

/* Codes of roughly normal values, and what they stand for. */
struct operand {
    struct qtensor *q;
    struct product_operand value;
    float factor;
};

static struct operand operand_new(enum dtype fmt, uint64_t rows, uint64_t k, uint64_t seed)
{
    uint64_t n = rows * k;
    float *value = malloc((n + 1) * sizeof *value);
    struct operand o = {.value = {value, fmt}, .factor = 0.013f};
    uint8_t *codes = malloc(n + 1);
    ck_assert(value && codes);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t h = both_hash(seed, i);
        float x = 0;
        for (int j = 0; j < 4; j++)
            x += (float)(h >> 16 * j & 0xffff) * 0x1p-15f - 1.0f;
        codes[i] = fp8_encode(20.0f * x, fmt);
        value[i] = (float)reference_decode(codes[i], fmt == DTYPE_F8_E5M2);
    }
    o.q = rig_adopt(&both.gpu, fmt, rows, k, codes, o.factor);
    free(codes);
    return o;
}

static void operand_free(struct operand *o)
{
    qtensor_unref(o->q);
    free((void *)o->value.value);
}

/* --- running --- */

struct variant {
    enum dtype out, bias; /* DTYPE_NONE: no bias */
    bool precise;
};

static struct tensor bias_tensor(const struct product *p, enum dtype t)
{
    struct tensor b = rig_tensor(&both.gpu, t, 1, p->n, NULL);
    for (uint64_t j = 0; j < p->n; j++)
        if (t == DTYPE_F32)
            ((float *)b.buf->host)[j] = p->bias[j];
        else
            ((uint16_t *)b.buf->host)[j] =
                t == DTYPE_BF16 ? bf16_encode(p->bias[j]) : f16_encode(p->bias[j]);
    return b;
}

/* A bias that was given in a 16-bit dtype is that, not the float32 it came from. */
static void settle_bias(struct product *p, enum dtype t)
{
    for (uint64_t j = 0; j < p->n && t != DTYPE_NONE; j++)
        p->bias[j] = (float)product_bias(p->bias[j], t);
}

static void *run_fp8(const struct product *p, const struct operand *a, const struct operand *b,
                     const struct variant *v, bool to_host)
{
    struct rig *g = &both.gpu;
    uint64_t bytes = p->m * p->n * (dtype_bits(v->out) / 8);
    struct tensor y = {.dtype = v->out, .rows = p->m, .cols = p->n};
    struct tensor bias = {0};
    void *got = malloc(bytes + 1);
    y.buf = to_host ? rig_buffer(g, bytes, NULL) : gpu_poisoned(bytes);
    if (to_host)
        memset(y.buf->host, POISON, bytes);
    if (v->bias != DTYPE_NONE)
        bias = bias_tensor(p, v->bias);
    struct gemm gemm = {
        .a = a->q, .b = b->q, .bias = bias.buf ? &bias : NULL, .out = y, .precise = v->precise};
    ck_assert_msg(!backend_gemm(g->q, &gemm, &g->f), "%s", g->f.text);
    rig_wait(g);
    if (to_host)
        memcpy(got, y.buf->host, bytes);
    else
        gpu_read(y.buf, 0, got, bytes);
    buffer_unref(y.buf);
    buffer_unref(bias.buf);
    return got;
}

/* Measured over one shape. */
struct measured {
    struct product_error fast, precise;
};

static void run_variants(struct product *p, const struct operand *a, const struct operand *b,
                         struct measured *most)
{
    static const struct variant all[] = {
        {DTYPE_F32, DTYPE_NONE, false},  {DTYPE_F32, DTYPE_NONE, true},
        {DTYPE_BF16, DTYPE_NONE, false}, {DTYPE_F16, DTYPE_NONE, true},
        {DTYPE_F32, DTYPE_F32, true},    {DTYPE_F32, DTYPE_F16, false},
        {DTYPE_BF16, DTYPE_F32, false},  {DTYPE_F16, DTYPE_F32, false},
        {DTYPE_F32, DTYPE_BF16, true},   {DTYPE_BF16, DTYPE_BF16, false},
        {DTYPE_F16, DTYPE_F16, true},    {DTYPE_BF16, DTYPE_F16, true}};
    bool large = p->rows < p->m;
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct variant *v = &all[i];
        char what[64];
        if (large && i > 6)
            break;
        settle_bias(p, v->bias);
        void *y = run_fp8(p, a, b, v, !large && i % 3 == 2);
        (void)snprintf(what, sizeof what, "to %s, bias %s, %s", dtype_name(v->out),
                       dtype_name(v->bias), v->precise ? "precise" : "fast");
        struct product_error worst = product_check(
            p, y, v->out, v->bias != DTYPE_NONE, v->precise ? PRODUCT_PRECISE : PRODUCT_FAST, what);
        if (v->out == DTYPE_F32)
            product_worst(v->precise ? &most->precise : &most->fast, worst);
        free(y);
    }
}

/* --- cases --- */

/* Tokens x (n, k) x formats x output x bias x accumulation, against float64. */
START_TEST(parity_gemms)
{
    static const enum dtype formats[][2] = {{DTYPE_F8_E4M3, DTYPE_F8_E4M3},
                                            {DTYPE_F8_E5M2, DTYPE_F8_E4M3},
                                            {DTYPE_F8_E4M3, DTYPE_F8_E5M2}};
    uint64_t n = shapes[_i / 3][0], k = shapes[_i / 3][1];
    const enum dtype *fmt = formats[_i % 3];
    struct measured most = {0};
    if (!both_takes(1, n) || !both_takes(1, k))
        return;
    struct operand b = operand_new(fmt[1], n, k, 31);
    for (int i = 0; i < 6; i++) {
        uint64_t m = both_tokens[i];
        if (!both_takes(m, k) || (_i % 3 && m == 4096 && n * k > 1u << 24))
            continue;
        struct operand a = operand_new(fmt[0], m, k, 32);
        struct product p =
            product_new(m, n, k, a.value, b.value, (double)a.factor * (double)b.factor);
        run_variants(&p, &a, &b, &most);
        product_free(&p);
        operand_free(&a);
    }
    operand_free(&b);
    (void)fprintf(stderr,
                  "gemm n %5lu k %5lu %s x %s: fast %.3f of the bound (%.3f), precise %.3f (%.3f) "
                  "(in 2^-13 of the sum of magnitudes)\n",
                  n, k, dtype_name(fmt[0]), dtype_name(fmt[1]), most.fast.of_bound,
                  most.fast.of_magnitude, most.precise.of_bound, most.precise.of_magnitude);
}
END_TEST

/* k and n that are no multiples of 16, as gradients over any token count have them. */
START_TEST(parity_gemms_of_odd_sizes)
{
    static const uint64_t sizes[][3] = {{3, 5, 1},   {1, 16, 7},    {48, 80, 100}, {17, 36, 33},
                                        {16, 4, 16}, {7, 16, 4097}, {768, 64, 99}};
    uint64_t m = sizes[_i][0], n = sizes[_i][1] / 4 * 4, k = sizes[_i][2];
    struct measured most = {0};
    struct operand a = operand_new(DTYPE_F8_E5M2, m, k, 33), b;
    n = n ? n : 4;
    b = operand_new(DTYPE_F8_E4M3, n, k, 34);
    struct product p = product_new(m, n, k, a.value, b.value, (double)a.factor * (double)b.factor);
    run_variants(&p, &a, &b, &most);
    product_free(&p);
    operand_free(&a);
    operand_free(&b);
}
END_TEST

/* High precision: every pair of dtypes, never TF32. */
START_TEST(parity_gemms_in_high_precision)
{
    static const uint64_t sizes[][3] = {{7, 16, 16}, {100, 768, 1008}, {1, 48, 17}, {33, 20, 4096}};
    enum dtype ta = (enum dtype)(DTYPE_F32 + _i % 3), tb = (enum dtype)(DTYPE_F32 + _i / 3);
    struct product_error most = {0};
    for (int s = 0; s < 4; s++) {
        uint64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        void *da = malloc(m * k * 4), *db = malloc(n * k * 4), *y = malloc(m * n * 4);
        float *va = malloc(m * k * sizeof *va), *vb = malloc(n * k * sizeof *vb);
        both_fill(da, ta, m * k, DATA_TAME, 41);
        both_fill(db, tb, n * k, DATA_TAME, 42);
        for (uint64_t i = 0; i < m * k; i++)
            va[i] = (float)product_output(da, ta, i);
        for (uint64_t i = 0; i < n * k; i++)
            vb[i] = (float)product_output(db, tb, i);
        struct pair a = both_tensor(ta, m, k, da, (uint64_t)s % 2);
        struct pair b = both_tensor(tb, n, k, db, 0);
        struct product p = product_new(m, n, k, (struct product_operand){va, ta},
                                       (struct product_operand){vb, tb}, 1.0);
        struct tensor bias = bias_tensor(&p, DTYPE_F32);
        struct tensor out = {
            .buf = gpu_poisoned(m * n * 4), .dtype = DTYPE_F32, .rows = m, .cols = n};
        struct gemm_high g = {.a = a.gpu, .b = b.gpu, .bias = &bias, .out = out};
        ck_assert_msg(!backend_gemm_high(both.gpu.q, &g, &both.gpu.f), "%s", both.gpu.f.text);
        gpu_read(out.buf, 0, y, m * n * 4);
        bool float32 = ta == DTYPE_F32 || ta != tb;
        product_worst(&most,
                      product_check(&p, y, DTYPE_F32, true,
                                    float32 ? PRODUCT_FLOAT32 : PRODUCT_HALF, "high precision"));
        product_free(&p);
        pair_free(&a);
        pair_free(&b);
        buffer_unref(bias.buf);
        buffer_unref(out.buf);
        free(da), free(db), free(va), free(vb), free(y);
    }
    (void)fprintf(stderr, "gemm_high %s x %s: %.3f of the bound\n", dtype_name(ta), dtype_name(tb),
                  most.of_bound);
}
END_TEST

/* Not a promise, but to be known: what cuBLASLt makes of two factors whose product is no normal
 * float32 (numerics.md 5 asks for (acc * a) * b; kernels/cuda/cuda.h says that it may differ). */
START_TEST(parity_extreme_factors_are_reported)
{
    static const float factors[][2] = {
        {0x1p-80f, 0x1p-60f}, {0x1p70f, 0x1p70f}, {0x1p-70f, 0x1p-70f}};
    uint8_t ones[256];
    memset(ones, 0x38, sizeof ones);
    for (int i = 0; i < 3; i++) {
        struct rig *g = &both.gpu;
        float y[256];
        struct qtensor *a = rig_adopt(g, DTYPE_F8_E4M3, 16, 16, ones, factors[i][0]);
        struct qtensor *b = rig_adopt(g, DTYPE_F8_E4M3, 16, 16, ones, factors[i][1]);
        struct tensor out = {
            .buf = gpu_poisoned(sizeof y), .dtype = DTYPE_F32, .rows = 16, .cols = 16};
        struct gemm gemm = {.a = a, .b = b, .out = out, .precise = true};
        ck_assert_msg(!backend_gemm(g->q, &gemm, &g->f), "%s", g->f.text);
        gpu_read(out.buf, 0, y, sizeof y);
        (void)fprintf(stderr, "16 * %a * %a on cuBLASLt: %a\n", (double)factors[i][0],
                      (double)factors[i][1], (double)y[0]);
        ck_assert(!isnan(y[0]));
        qtensor_unref(a);
        qtensor_unref(b);
        buffer_unref(out.buf);
    }
}
END_TEST

TCase *parity_gemm_case(void)
{
    TCase *c = tcase_create("gemm");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, both_setup, both_teardown);
    tcase_add_loop_test(c, parity_gemms, 0, 3 * (int)SHAPES);
    tcase_add_loop_test(c, parity_gemms_of_odd_sizes, 0, 7);
    tcase_add_loop_test(c, parity_gemms_in_high_precision, 0, 9);
    tcase_add_test(c, parity_extreme_factors_are_reported);
    return c;
}
