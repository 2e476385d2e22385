/* What follows from what fp8ctl bench measured: percentiles and rates, by hand. */
#include "client/ctl/bench_figures.h"

#include "base/mem.h"
#include "tests/unit/run.h"

#include <math.h>

/* --- helpers --- */

static struct samples samples_of(const uint64_t *values, size_t count)
{
    struct samples s = {0};
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(samples_add(&s, values[i]), 0);
    samples_sort(&s);
    return s;
}

/* --- cases --- */

/* Nearest rank: of ten values the fifth is the median, the ninth the 90th, the last the 99th. */
START_TEST(bench_percentiles)
{
    struct samples none = {0};
    struct samples ten = samples_of((uint64_t[]){70, 10, 100, 40, 20, 90, 30, 60, 50, 80}, 10);
    struct samples one = samples_of((uint64_t[]){7}, 1);
    struct samples three = samples_of((uint64_t[]){3, 1, 2}, 3);
    ck_assert_uint_eq(samples_percentile(&none, 50), 0);
    ck_assert_uint_eq(samples_max(&none), 0);
    ck_assert(samples_mean(&none) == 0);
    ck_assert_uint_eq(samples_percentile(&ten, 0), 10);
    ck_assert_uint_eq(samples_percentile(&ten, 50), 50);
    ck_assert_uint_eq(samples_percentile(&ten, 90), 90);
    ck_assert_uint_eq(samples_percentile(&ten, 91), 100);
    ck_assert_uint_eq(samples_percentile(&ten, 99), 100);
    ck_assert_uint_eq(samples_max(&ten), 100);
    ck_assert(samples_mean(&ten) == 55);
    ck_assert_uint_eq(samples_percentile(&one, 50), 7);
    ck_assert_uint_eq(samples_percentile(&one, 99), 7);
    ck_assert_uint_eq(samples_percentile(&three, 50), 2);
    samples_fini(&ten);
    samples_fini(&one);
    samples_fini(&three);
}
END_TEST

/* Lists grow, are joined, and lose nothing where memory is short. */
START_TEST(bench_samples_grow)
{
    struct samples a = {0}, b = {0};
    for (uint64_t i = 0; i < 5000; i++)
        ck_assert_int_eq(samples_add(i % 2 ? &a : &b, i), 0);
    mem_fault_arm(0, true);
    int rc = samples_append(&a, &b);
    mem_fault_arm(-1, false);
    ck_assert(rc < 0 && a.count == 2500);
    ck_assert_int_eq(samples_append(&a, &b), 0);
    ck_assert_int_eq(samples_append(&a, &(struct samples){0}), 0);
    samples_sort(&a);
    ck_assert_uint_eq(a.count, 5000);
    for (uint64_t i = 0; i < 5000; i++)
        ck_assert_uint_eq(a.values[i], i);
    samples_fini(&a);
    samples_fini(&b);
    ck_assert_int_eq(mem_live_blocks(), 0);
}
END_TEST

/* By hand: 1000 forwards of [1000, 16] * [32, 16]^T in BF16 in 2 s are 500 a second; each is 2 *
 * 1000 * 32 * 16 = 1024000 operations and carries 32000 + 64000 bytes; a device median of 2 us is
 * 512 operations a nanosecond. */
START_TEST(bench_rates)
{
    struct bench_plan p = {.m = 1000, .n = 32, .k = 16, .dtype = FP8D_BF16};
    struct bench_figures g = {.plane = BENCH_INLINE, .requests = 1000, .seconds = 2};
    g.device = samples_of((uint64_t[]){1000, 2000, 9000}, 3);
    struct bench_rates r = bench_figures_rates(&p, &g);
    ck_assert(r.forwards_per_s == 500);
    ck_assert_uint_eq(bench_figures_payload(&p, BENCH_INLINE), 96000);
    ck_assert(fabs(r.gb_per_s - 0.048) < 1e-12);
    ck_assert(fabs(r.tflops - 0.000512) < 1e-12);
    ck_assert(fabs(r.device_tflops - 0.512) < 1e-12);
    g.plane = BENCH_RESIDENT;
    ck_assert_uint_eq(bench_figures_payload(&p, BENCH_RESIDENT), 0);
    ck_assert(bench_figures_rates(&p, &g).gb_per_s == 0);
    bench_figures_fini(&g);
    r = bench_figures_rates(&p, &g);
    ck_assert(r.forwards_per_s == 0 && r.device_tflops == 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_bench_figures");
    TCase *t = tcase_create("figures");
    tcase_add_test(t, bench_percentiles);
    tcase_add_test(t, bench_samples_grow);
    tcase_add_test(t, bench_rates);
    suite_add_tcase(s, t);
    return run_suite(s);
}
