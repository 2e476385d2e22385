/* Every case of tests/oracle/gemm_hash.txt, for every level and 1, 2 and 3 threads: one hash. */
#include "tests/oracle/gemm_input.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* --- helpers --- */

struct hash_case {
    uint64_t index, m, n, k;
    char a[16], b[16], bias[16], out[16], hash[40];
    float factor_a, factor_b;
};

static enum dtype type_of(const char *name)
{
    return dtype_parse(name, strlen(name));
}

static FILE *cases_open(void)
{
    char path[4096];
    const char *top = getenv("FP8D_SRCDIR") ? getenv("FP8D_SRCDIR") : getenv("srcdir");
    (void)snprintf(path, sizeof path, "%s/tests/oracle/gemm_hash.txt", top ? top : ".");
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s cannot be read", path);
    return f;
}

static bool case_next(FILE *f, struct hash_case *c)
{
    char line[512];
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#')
            continue;
        int n = sscanf(line, "%lu %lu %lu %15s %15s %a %a %15s %15s %39s", &c->m, &c->n, &c->k,
                       c->a, c->b, &c->factor_a, &c->factor_b, c->bias, c->out, c->hash);
        ck_assert_msg(n == 10, "line is cut: %s", line);
        return true;
    }
    return false;
}

static struct tensor input(struct rig *r, uint64_t seed, enum dtype t, uint64_t rows, uint64_t cols)
{
    struct tensor x = rig_tensor(r, t, rows, cols, NULL);
    gemm_input(seed, rows * cols, t, x.buf->host);
    return x;
}

static struct qtensor *input8(struct rig *r, uint64_t seed, enum dtype t, uint64_t rows,
                              uint64_t cols, float factor)
{
    uint8_t *codes = malloc(rows * cols);
    ck_assert_ptr_nonnull(codes);
    gemm_input(seed, rows * cols, t, codes);
    struct qtensor *x = rig_adopt(r, t, rows, cols, codes, factor);
    free(codes);
    return x;
}

static void run_fp8(struct rig *r, const struct hash_case *c, const struct tensor *bias,
                    const struct tensor *out)
{
    struct gemm g = {.bias = bias, .out = *out};
    struct qtensor *a = input8(r, 3 * c->index + 1, type_of(c->a), c->m, c->k, c->factor_a);
    struct qtensor *b = input8(r, 3 * c->index + 2, type_of(c->b), c->n, c->k, c->factor_b);
    g.a = a;
    g.b = b;
    ck_assert_msg(!backend_gemm(r->q, &g, &r->f), "%s", r->f.text);
    rig_wait(r);
    qtensor_unref(a);
    qtensor_unref(b);
}

static void run_high(struct rig *r, const struct hash_case *c, const struct tensor *bias,
                     const struct tensor *out)
{
    struct gemm_high g = {.bias = bias, .out = *out};
    g.a = input(r, 3 * c->index + 1, type_of(c->a), c->m, c->k);
    g.b = input(r, 3 * c->index + 2, type_of(c->b), c->n, c->k);
    ck_assert_msg(!backend_gemm_high(r->q, &g, &r->f), "%s", r->f.text);
    rig_wait(r);
    buffer_unref(g.a.buf);
    buffer_unref(g.b.buf);
}

static void run_case(struct rig *r, const struct hash_case *c)
{
    char text[40];
    struct tensor out = rig_tensor(r, type_of(c->out), c->m, c->n, NULL);
    struct tensor bias = {.dtype = type_of(c->bias)};
    bool has_bias = bias.dtype != DTYPE_NONE;
    memset(out.buf->host, 0xa5, out.buf->bytes);
    if (has_bias) {
        bias = rig_tensor(r, bias.dtype, 1, c->n, NULL);
        gemm_bias(3 * c->index + 3, c->n, bias.dtype, bias.buf->host);
    }
    if (dtype_is_fp8(type_of(c->a)))
        run_fp8(r, c, has_bias ? &bias : NULL, &out);
    else
        run_high(r, c, has_bias ? &bias : NULL, &out);
    XXH128_hash_t d = XXH3_128bits(out.buf->host, out.buf->bytes);
    (void)snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)d.high64,
                   (unsigned long long)d.low64);
    ck_assert_msg(!strcmp(text, c->hash), "case %lu (%lux%lux%lu %s %s): %s, needed %s", c->index,
                  c->m, c->n, c->k, c->a, c->b, text, c->hash);
    buffer_unref(out.buf);
    buffer_unref(bias.buf);
}

/* --- cases --- */

/* The bits of a GEMM are those of the emulation, whatever the level and the number of threads. */
START_TEST(gemm_hash_is_the_emulations)
{
    struct rig r;
    struct hash_case c;
    unsigned seen = 0;
    rig_open_combo(&r, _i);
    FILE *f = cases_open();
    for (c.index = 0; case_next(f, &c); c.index++, seen++)
        run_case(&r, &c);
    (void)fclose(f);
    rig_close(&r);
    ck_assert_uint_ge(seen, 17);
}
END_TEST

int main(void)
{
    struct run_skips skips = {0};
    Suite *s = suite_create("gemm_hash");
    TCase *c = tcase_create("levels");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, gemm_hash_is_the_emulations, 0, rig_levels() * RIG_THREADS);
    suite_add_tcase(s, c);
    rig_skip_levels(&skips);
    return run_suite_but(s, &skips);
}
