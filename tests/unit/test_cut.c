/* The bound of FP8 sums against a tensor core that cuts as the bound supposes, in software; and the
 * reference of tests/parity, which makes the same in another order. */
#include "tests/oracle/cut.h"
#include "tests/oracle/gemm_input.h"
#include "tests/oracle/microbatch.h"
#include "tests/parity/reference.h"
#include "tests/unit/run.h"

#include <math.h>

#define K_MOST 1536
#define OUTPUTS 400

/* --- the tensor core --- */

/* Cut off behind 13 fraction bits of a number of that exponent. */
static double cut_off(double x, int exponent)
{
    return ldexp(trunc(ldexp(x, 13 - exponent)), exponent - 13);
}

/* That of the code's field, which is the least normal number's for all that are below it. */
static int exponent_of(float x)
{
    return fabsf(x) < 0x1p-6f ? -6 : ilogbf(x);
}

/* One step of products, added to an accumulator. */
static double core_step(double acc, const float *a, const float *b, uint64_t k)
{
    double sum = 0;
    int most = acc != 0 ? ilogb(acc) : -100;
    for (uint64_t i = 0; i < k; i++)
        most = (int)fmax(most, exponent_of(a[i]) + exponent_of(b[i]));
    for (uint64_t i = 0; i < k; i++)
        sum += cut_off((double)a[i] * (double)b[i], most);
    sum += cut_off(acc, most);
    return sum != 0 ? cut_off(sum, ilogb(sum)) : 0;
}

static double core_sum(const float *a, const float *b, uint64_t k, uint64_t chunk)
{
    float sum = 0;
    for (uint64_t from = 0; from < k; from += chunk) {
        double acc = 0;
        uint64_t end = from + chunk < k ? from + chunk : k;
        for (uint64_t i = from; i < end; i += CUT_STEP)
            acc = core_step(acc, a + i, b + i, end - i < CUT_STEP ? end - i : CUT_STEP);
        sum += (float)acc;
    }
    return (double)sum;
}

/* --- data --- */

/* SMALL: half of them subnormal. OUTLIERS: one in 193 a hundred times as large as the rest. */
enum kind { NORMAL, SMALL, OUTLIERS, POSITIVE, KINDS };

/* E4M3. */
static void fill(float *x, uint64_t k, enum kind kind, uint64_t seed)
{
    for (uint64_t i = 0; i < k; i++) {
        double v = 0;
        for (unsigned j = 0; j < 4; j++)
            v += (double)(gemm_stream(seed, i) >> 16 * j & 0xffff) * 0x1p-15 - 1.0;
        v *= kind == SMALL ? 0x1p-6 : kind == OUTLIERS ? 1.5 : 20;
        if (kind == OUTLIERS && i % 193 == 7)
            v *= 200;
        x[i] = (float)oracle_fp8(kind == POSITIVE ? fabs(v) : v, false);
    }
}

struct found {
    double fast, precise, magnitude; /* of the bounds; fast, in 2^-13 of the sum of magnitudes */
};

static struct found measure(enum kind kind, uint64_t k)
{
    static float a[K_MOST], b[K_MOST];
    const double least = cut_least(false);
    struct found most = {0};
    for (uint64_t n = 0; n < OUTPUTS; n++) {
        fill(a, k, kind, 2 * n);
        fill(b, k, kind == POSITIVE ? kind : NORMAL, 2 * n + 1);
        struct cut c = cut_of(a, b, k, least, least);
        double fast = fabs(core_sum(a, b, k, k) - c.sum);
        double precise = fabs(core_sum(a, b, k, 128) - c.sum);
        most.fast = fmax(most.fast, fast / c.fast);
        most.precise = fmax(most.precise, precise / c.precise);
        most.magnitude = fmax(most.magnitude, fast / c.magnitude * 0x1p13);
    }
    return most;
}

/* --- cases --- */

/* Whatever the data, the bound holds, and is no more than 200 times what was met. */
START_TEST(cut_bounds_the_tensor_core)
{
    static const uint64_t sizes[] = {16, 48, 128, 384, 1536};
    for (int i = 0; i < 5; i++) {
        struct found f = measure((enum kind)_i, sizes[i]);
        (void)fprintf(stderr, "data %d, k %lu: fast %.3f of the bound (%.2f), precise %.3f\n", _i,
                      sizes[i], f.fast, f.magnitude, f.precise);
        ck_assert(f.fast <= 1 && f.precise <= 1);
        ck_assert(f.fast > 0.005 && f.precise > 0.005);
    }
}
END_TEST

/* Why the sum of magnitudes alone is no measure: where a sum outgrows its products the error passes
 * k / 32 + 2 units of it, which was the bound once. */
START_TEST(cut_is_no_multiple_of_the_magnitudes)
{
    ck_assert_double_gt(measure(POSITIVE, 384).magnitude, 384.0 / 32 + 2);
}
END_TEST

/* One product of 448 beside 31 of 2^-6 (1 + 2^-3): cut off at 2^(8 - 13), all of these are lost. */
START_TEST(cut_loses_small_products)
{
    float a[32], b[32];
    for (int i = 0; i < 32; i++) {
        a[i] = i == 5 ? 448.0f : 0x1.2p-6f;
        b[i] = 1;
    }
    struct cut c = cut_of(a, b, 32, cut_least(false), cut_least(false));
    ck_assert(core_sum(a, b, 32, 32) == 448.0);
    ck_assert(c.sum == 448.0 + 31 * 0x1.2p-6 && c.magnitude == c.sum);
    ck_assert(c.fast == 34 * 0x1p-13 * c.sum);
    ck_assert(c.precise == c.fast + 0x1p-24 * c.sum);
}
END_TEST

/* Nothing but the magnitude known: never below what is known of the products. */
START_TEST(cut_at_most_is_above)
{
    float a[K_MOST], b[K_MOST];
    for (uint64_t n = 0; n < 20; n++) {
        uint64_t k = 1 + gemm_stream(9, n) % K_MOST;
        fill(a, k, NORMAL, 3 * n);
        fill(b, k, OUTLIERS, 3 * n + 1);
        struct cut c = cut_of(a, b, k, cut_least(false), cut_least(false));
        struct cut most = cut_at_most(k, c.magnitude);
        ck_assert(most.fast >= c.fast && most.precise >= c.precise);
        ck_assert(most.magnitude == c.magnitude);
    }
}
END_TEST

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* A whole product, its rows in any order, n no multiple of the columns taken at once. */
START_TEST(reference_is_the_same)
{
    static const uint64_t sizes[][2] = {{1, 1}, {37, 33}, {16, 300}, {4, 1536}};
    uint64_t n = sizes[_i][0], k = sizes[_i][1], rows[] = {2, 0};
    const double least_a = cut_least(true), least_b = cut_least(false);
    float *a = malloc(3 * k * sizeof *a), *b = malloc(n * k * sizeof *b);
    struct cut *got = malloc(2 * n * sizeof *got);
    ck_assert(a && b && got);
    fill(a, 3 * k, OUTLIERS, 1);
    fill(b, n * k, NORMAL, 2);
    struct reference r = {.a = a,
                          .b = b,
                          .least_a = least_a,
                          .least_b = least_b,
                          .n = n,
                          .k = k,
                          .row = rows,
                          .rows = 2,
                          .cut = got};
    reference_run(&r);
    for (uint64_t i = 0; i < 2 * n; i++) {
        struct cut c = cut_of(a + rows[i / n] * k, b + i % n * k, k, least_a, least_b);
        ck_assert(got[i].sum == c.sum && near(got[i].magnitude, c.magnitude));
        ck_assert(near(got[i].fast, c.fast) && near(got[i].precise, c.precise));
    }
    free(a);
    free(b);
    free(got);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cut");
    TCase *c = tcase_create("cut");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, cut_bounds_the_tensor_core, 0, KINDS);
    tcase_add_test(c, cut_is_no_multiple_of_the_magnitudes);
    tcase_add_test(c, cut_loses_small_products);
    tcase_add_test(c, cut_at_most_is_above);
    tcase_add_loop_test(c, reference_is_the_same, 0, 4);
    suite_add_tcase(s, c);
    return run_suite(s);
}
