/* The GEMMs of a gradient: dgrad and wgrad over second forms, against float64 products of the same
 * operands, within the bound of the precise accumulator; what was measured is printed beside. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"
#include "tests/parity/product.h"

#define SCALE 64.0f

/* A tensor in both forms and what its codes stand for, both ways round, without the factor. */
struct turned {
    struct qtensor *q;
    float *value, *other; /* [rows, cols], [cols, rows] */
};

static struct cast_report *report_behind(struct buffer *b)
{
    return (struct cast_report *)(void *)((char *)b->host + scaler_bytes(1));
}

/* Cast from values that the format has, over the scale: exactly these codes. */
static struct qtensor *cast_values(enum dtype fmt, uint64_t rows, uint64_t cols, const float *value)
{
    struct rig *g = &both.gpu;
    struct tensor x = rig_tensor(g, DTYPE_F32, rows, cols, NULL);
    struct buffer *state = rig_buffer(g, scaler_bytes(1) + sizeof(struct cast_report), NULL);
    struct scaler *site = state->host;
    struct qtensor *t = NULL;
    for (uint64_t i = 0; i < rows * cols; i++)
        ((float *)x.buf->host)[i] = value[i] / SCALE;
    scaler_init(site, 1);
    site->scale = SCALE;
    site->scale_inv = 1.0f / SCALE;
    struct cast c = {.src = x,
                     .fmt = fmt,
                     .mode = CAST_SITE,
                     .site = site,
                     .report = report_behind(state),
                     .transposed = true};
    ck_assert_msg(!qtensor_cast(g->q, NULL, &c, "x", &t, &g->f), "%s", g->f.text);
    rig_wait(g);
    buffer_unref(x.buf);
    buffer_unref(state);
    return t;
}

static struct turned turned_new(enum dtype fmt, uint64_t rows, uint64_t cols, uint64_t seed)
{
    uint64_t n = rows * cols;
    struct turned t = {.value = malloc((n + 1) * sizeof(float)),
                       .other = malloc((n + 1) * sizeof(float))};
    ck_assert(t.value && t.other);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t h = both_hash(seed, i);
        float x = 0;
        for (int j = 0; j < 4; j++)
            x += (float)(h >> 16 * j & 0xffff) * 0x1p-15f - 1.0f;
        t.value[i] = (float)reference_decode(fp8_encode(20.0f * x, fmt), fmt == DTYPE_F8_E5M2);
        t.other[i % cols * rows + i / cols] = t.value[i];
    }
    t.q = cast_values(fmt, rows, cols, t.value);
    return t;
}

static void turned_free(struct turned *t)
{
    qtensor_unref(t->q);
    free(t->value);
    free(t->other);
}

/* Run into poisoned device memory, then once more on top of it where the product is to add. */
static void *run(struct gemm g, uint64_t bytes, unsigned times)
{
    struct rig *r = &both.gpu;
    void *got = malloc(bytes);
    g.out.buf = gpu_poisoned(bytes);
    g.precise = true;
    for (unsigned i = 0; i < times; i++) {
        g.accumulate = i > 0;
        ck_assert_msg(!backend_gemm(r->q, &g, &r->f), "%s", r->f.text);
    }
    gpu_read(g.out.buf, 0, got, bytes);
    buffer_unref(g.out.buf);
    return got;
}

/* Every output dtype; adds what was measured of the float32 one. */
static void run_all(struct product *p, const struct gemm *g, const char *what,
                    struct product_error *most)
{
    for (int t = DTYPE_F32; t <= DTYPE_F16; t++) {
        struct gemm one = *g;
        one.out = (struct tensor){.dtype = (enum dtype)t, .rows = p->m, .cols = p->n};
        void *y = run(one, p->m * p->n * (dtype_bits((enum dtype)t) / 8), 1);
        struct product_error e = product_check(p, y, (enum dtype)t, false, PRODUCT_PRECISE, what);
        if (t == DTYPE_F32)
            product_worst(most, e);
        free(y);
    }
}

/* Twice the product, each of which may be off by the bound. */
static void run_accumulated(struct product *p, const struct gemm *g, struct product_error *most)
{
    struct gemm two = *g;
    two.out = (struct tensor){.dtype = DTYPE_F32, .rows = p->m, .cols = p->n};
    void *y = run(two, p->m * p->n * sizeof(float), 2);
    for (uint64_t i = 0; i < p->rows * p->n; i++)
        cut_scale(&p->cut[i], 2.0);
    product_worst(most, product_check(p, y, DTYPE_F32, false, PRODUCT_PRECISE, "accumulated"));
    free(y);
}

static const uint64_t sizes[][2] = {{16, 16},    {48, 16},     {16, 48},      {768, 768},
                                    {1008, 768}, {4096, 4096}, {14336, 4096}, {4096, 14336}};
#define SIZES ((int)(sizeof sizes / sizeof sizes[0]))

/* Tokens x (out, in) x gradient format x output dtype. */
START_TEST(parity_gradients)
{
    uint64_t out = sizes[_i / 2][0], in = sizes[_i / 2][1];
    enum dtype fmt = _i % 2 ? DTYPE_F8_E4M3 : DTYPE_F8_E5M2;
    struct product_error dgrad = {0}, wgrad = {0}, twice = {0};
    bool large = out * in > 1u << 22;
    if (!both_takes(1, out) || !both_takes(1, in) || (large && _i % 2))
        return;
    struct turned w = turned_new(DTYPE_F8_E4M3, out, in, 51);
    for (int i = 1; i < 6; i++) { /* no tokens: no product */
        uint64_t m = both_tokens[i];
        if (!both_takes(m, in) || (large && m != 7 && m != 4096))
            continue;
        struct turned x = turned_new(DTYPE_F8_E4M3, m, in, 52), dy = turned_new(fmt, m, out, 53);
        const double both_factors = 1.0 / ((double)SCALE * (double)SCALE);
        struct product d =
            product_new(m, in, out, (struct product_operand){dy.value, fmt},
                        (struct product_operand){w.other, DTYPE_F8_E4M3}, both_factors);
        struct product g =
            product_new(out, in, m, (struct product_operand){dy.other, fmt},
                        (struct product_operand){x.other, DTYPE_F8_E4M3}, both_factors);
        struct gemm weight = {.a = dy.q, .b = x.q, .a_transposed = true, .b_transposed = true};
        run_all(&d, &(struct gemm){.a = dy.q, .b = w.q, .b_transposed = true}, "dgrad", &dgrad);
        run_all(&g, &weight, "wgrad", &wgrad);
        run_accumulated(&g, &weight, &twice);
        product_free(&d);
        product_free(&g);
        turned_free(&x);
        turned_free(&dy);
    }
    turned_free(&w);
    (void)fprintf(stderr,
                  "gemm gradients, out %5lu in %5lu %s: dgrad %.3f of the bound (%.3f), wgrad %.3f "
                  "(%.3f), added %.3f (%.3f) (in 2^-13 of the sum of magnitudes)\n",
                  out, in, dtype_name(fmt), dgrad.of_bound, dgrad.of_magnitude, wgrad.of_bound,
                  wgrad.of_magnitude, twice.of_bound, twice.of_magnitude);
}
END_TEST

TCase *parity_grad_case(void)
{
    TCase *c = tcase_create("grad");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, both_setup, both_teardown);
    tcase_add_loop_test(c, parity_gradients, 0, 2 * SIZES);
    return c;
}
