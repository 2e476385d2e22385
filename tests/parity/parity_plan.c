/* Algorithms of GEMMs: a reproducible one has the bits of a backend where all are, whatever was
 * timed before it, and timing others afterwards does not move it. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"

/* --- fixture: the backend of the program, and one where every GEMM is reproducible --- */

static struct rig first;

static void setup(void)
{
    struct module_options o = {.memory = (uint64_t)2 << 30, .reproducible = true};
    both_setup();
    memset(&first, 0, sizeof first);
    int rc = module_open_cuda(getenv("FP8D_TEST_BACKEND_DIR"), &o, rig_log, &first.b, &first.f);
    ck_assert_msg(!rc, "%s", first.f.text);
    ck_assert_msg(!queue_open(first.b, "first", &first.q, &first.f), "%s", first.f.text);
}

static void teardown(void)
{
    queue_close(first.q);
    backend_close(first.b);
    both_teardown();
}

/* --- helpers --- */

/* [rows, k] of E4M3 codes that are no NaN. */
static struct qtensor *codes_new(struct rig *r, uint64_t rows, uint64_t k, uint64_t seed)
{
    uint8_t *codes = malloc(rows * k);
    ck_assert_ptr_nonnull(codes);
    for (uint64_t i = 0; i < rows * k; i++)
        codes[i] =
            (uint8_t)(both_hash(seed, i) % 0x78) | (uint8_t)(both_hash(seed, i) >> 56 & 0x80);
    struct qtensor *t = rig_adopt(r, DTYPE_F8_E4M3, rows, k, codes, 0x1p-6f);
    free(codes);
    return t;
}

struct shape {
    uint64_t m, n, k;
};

static float *run_fp8(struct rig *r, const struct shape *s, bool precise, bool reproducible)
{
    uint64_t bytes = s->m * s->n * sizeof(float);
    float *y = malloc(bytes);
    struct qtensor *a = codes_new(r, s->m, s->k, 1), *b = codes_new(r, s->n, s->k, 2);
    struct tensor out = rig_tensor(r, DTYPE_F32, s->m, s->n, NULL);
    struct gemm g = {.a = a, .b = b, .out = out, .precise = precise, .reproducible = reproducible};
    ck_assert_ptr_nonnull(y);
    memset(out.buf->host, POISON, bytes);
    ck_assert_msg(!backend_gemm(r->q, &g, &r->f), "%s", r->f.text);
    rig_wait(r);
    memcpy(y, out.buf->host, bytes);
    qtensor_unref(a);
    qtensor_unref(b);
    buffer_unref(out.buf);
    return y;
}

static float *run_high(struct rig *r, const struct shape *s, bool precise, bool reproducible)
{
    uint64_t bytes = s->m * s->n * sizeof(float);
    float *y = malloc(bytes);
    struct tensor a = rig_tensor(r, DTYPE_BF16, s->m, s->k, NULL);
    struct tensor b = rig_tensor(r, DTYPE_BF16, s->n, s->k, NULL);
    struct tensor out = rig_tensor(r, DTYPE_F32, s->m, s->n, NULL);
    struct gemm_high g = {.a = a, .b = b, .out = out, .reproducible = reproducible};
    (void)precise;
    both_fill(a.buf->host, DTYPE_BF16, s->m * s->k, DATA_TAME, 3);
    both_fill(b.buf->host, DTYPE_BF16, s->n * s->k, DATA_TAME, 4);
    ck_assert_ptr_nonnull(y);
    memset(out.buf->host, POISON, bytes);
    ck_assert_msg(!backend_gemm_high(r->q, &g, &r->f), "%s", r->f.text);
    rig_wait(r);
    memcpy(y, out.buf->host, bytes);
    buffer_unref(a.buf);
    buffer_unref(b.buf);
    buffer_unref(out.buf);
    return y;
}

/* --- cases --- */

static const struct shape shapes[] = {
    {16, 4096, 4096}, {16, 1008, 14336}, {128, 768, 3072}, {7, 20, 4097}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

/* FP8 fast, FP8 precise, high precision. */
START_TEST(parity_reproducible_is_the_first_answer)
{
    const struct shape *s = &shapes[_i / 3];
    float *(*run)(struct rig *, const struct shape *, bool, bool) =
        _i % 3 == 2 ? run_high : run_fp8;
    uint64_t bytes = s->m * s->n * sizeof(float);
    bool precise = _i % 3 == 1;
    float *want = run(&first, s, precise, false), *timed[2], *mine[2];
    for (unsigned i = 0; i < 2; i++) {
        timed[i] = run(&both.gpu, s, precise, false);
        mine[i] = run(&both.gpu, s, precise, true);
        ck_assert_mem_eq(mine[i], want, bytes);
        ck_assert_mem_eq(timed[i], timed[0], bytes);
    }
    (void)fprintf(stderr, "m %lu, n %lu, k %lu, %s: timed has %s bits\n", s->m, s->n, s->k,
                  _i % 3 == 2 ? "high"
                  : precise   ? "precise"
                              : "fast",
                  memcmp(timed[0], want, bytes) ? "other" : "the same");
    for (unsigned i = 0; i < 2; i++) {
        free(timed[i]);
        free(mine[i]);
    }
    free(want);
}
END_TEST

TCase *parity_plan_case(void)
{
    TCase *c = tcase_create("plan");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, parity_reproducible_is_the_first_answer, 0, 3 * SHAPES);
    return c;
}
