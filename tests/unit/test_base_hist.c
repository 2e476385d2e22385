#include "base/hist.h"
#include "tests/unit/run.h"

#include <stdlib.h>

/* --- fixture --- */

#define VALUES 20000

static uint64_t values[VALUES];
static struct hist h;

/* Spread over all magnitudes, from a fixed seed (Knuth's MMIX generator). */
static void fill(void)
{
    uint64_t x = 12345;
    hist_init(&h);
    for (unsigned i = 0; i < VALUES; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        values[i] = x >> (x >> 32) % 64;
        hist_add(&h, values[i]);
    }
}

/* --- helpers --- */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* --- cases --- */

/* An empty histogram answers 0 to everything. */
START_TEST(hist_empty_is_zero)
{
    hist_init(&h);
    ck_assert_uint_eq(hist_quantile(&h, 0), 0);
    ck_assert_uint_eq(hist_quantile(&h, 1), 0);
    ck_assert_uint_eq(h.count, 0);
}
END_TEST

/* Values below 32 are counted exactly. */
START_TEST(hist_small_values_are_exact)
{
    hist_init(&h);
    for (uint64_t v = 0; v < 32; v++)
        hist_add(&h, v);
    for (unsigned i = 0; i < 32; i++)
        ck_assert_uint_eq(hist_quantile(&h, (double)i / 32), i);
    ck_assert_uint_eq(h.sum, 31 * 32 / 2);
    ck_assert_uint_eq(h.min, 0);
    ck_assert_uint_eq(h.max, 31);
}
END_TEST

/* A quantile is never below the true one, and at most 1/32 above it. */
START_TEST(hist_quantile_error_is_bounded)
{
    fill();
    qsort(values, VALUES, sizeof values[0], by_value);
    for (unsigned i = 0; i < VALUES; i += 7) {
        uint64_t got = hist_quantile(&h, ((double)i + 0.5) / VALUES);
        ck_assert_uint_ge(got, values[i]);
        ck_assert_uint_le(got - values[i], values[i] / 32);
    }
}
END_TEST

/* No quantile is above the maximum, and the last one is the maximum. */
START_TEST(hist_quantile_never_passes_the_maximum)
{
    hist_init(&h);
    hist_add(&h, 1000001);
    ck_assert_uint_eq(hist_quantile(&h, 0), 1000001);
    ck_assert_uint_eq(hist_quantile(&h, 1), 1000001);
}
END_TEST

/* The largest value of all has a bucket. */
START_TEST(hist_takes_the_largest_value)
{
    hist_init(&h);
    hist_add(&h, UINT64_MAX);
    ck_assert_uint_eq(hist_quantile(&h, 0.5), UINT64_MAX);
    ck_assert_uint_eq(h.bucket[HIST_BUCKETS - 1], 1);
}
END_TEST

/* Merging gives the histogram of both sets of values; merging an empty one changes nothing. */
START_TEST(hist_merge_adds)
{
    static struct hist a, b, empty;
    fill();
    hist_init(&a);
    hist_init(&b);
    hist_init(&empty);
    for (unsigned i = 0; i < VALUES; i++)
        hist_add(i % 3 ? &a : &b, values[i]);
    hist_merge(&empty, &a);
    hist_merge(&empty, &b);
    ck_assert_mem_eq(&empty, &h, sizeof h);
    hist_init(&a);
    hist_merge(&h, &a);
    ck_assert_mem_eq(&empty, &h, sizeof h);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/hist");
    TCase *c = tcase_create("hist");
    tcase_add_test(c, hist_empty_is_zero);
    tcase_add_test(c, hist_small_values_are_exact);
    tcase_add_test(c, hist_quantile_error_is_bounded);
    tcase_add_test(c, hist_quantile_never_passes_the_maximum);
    tcase_add_test(c, hist_takes_the_largest_value);
    tcase_add_test(c, hist_merge_adds);
    suite_add_tcase(s, c);
    return run_suite(s);
}
