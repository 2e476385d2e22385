/* cpu.h: which compilation runs, and opening the backend. */
#include "kernels/cpu/kernels.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#define BASE CPU_LEVEL_BASELINE
#define V3 CPU_LEVEL_V3
#define V4 CPU_LEVEL_V4
#define AUTO CPU_LEVEL_AUTO

/* --- cases --- */

/* AUTO takes the highest; a level above the host's is refused (AUTO as answer); lower ones run. */
START_TEST(cpu_level_is_chosen)
{
    static const enum cpu_level table[][3] = {
        /* wanted, highest, chosen */
        {AUTO, BASE, BASE}, {AUTO, V3, V3},   {AUTO, V4, V4}, {BASE, BASE, BASE}, {BASE, V3, BASE},
        {BASE, V4, BASE},   {V3, BASE, AUTO}, {V3, V3, V3},   {V3, V4, V3},       {V4, BASE, AUTO},
        {V4, V3, AUTO},     {V4, V4, V4},     {2, V4, AUTO},  {5, V4, AUTO},
    };
    for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++)
        ck_assert_msg(cpu_level_choose(table[i][0], table[i][1]) == table[i][2], "row %u", i);
}
END_TEST

/* Baseline runs on every x86-64, and AUTO always. */
START_TEST(cpu_level_baseline_always_runs)
{
    ck_assert(cpu_level_runs(AUTO) && cpu_level_runs(BASE));
    ck_assert(!cpu_level_runs(V4) || cpu_level_runs(V3));
}
END_TEST

/* Levels have the names that compilers use. */
START_TEST(cpu_level_has_a_name)
{
    ck_assert_str_eq(cpu_level_name(BASE), "x86-64");
    ck_assert_str_eq(cpu_level_name(V3), "x86-64-v3");
    ck_assert_str_eq(cpu_level_name(V4), "x86-64-v4");
}
END_TEST

/* Each level has its own table. */
START_TEST(cpu_level_has_its_own_kernels)
{
    ck_assert_ptr_ne(cpu_kernels_of(BASE), cpu_kernels_of(V3));
    ck_assert_ptr_ne(cpu_kernels_of(V3), cpu_kernels_of(V4));
    ck_assert_ptr_eq(cpu_kernels_of(V4), &cpu_kernels_v4);
}
END_TEST

/* The instance says which level and how many threads it has. */
START_TEST(cpu_open_says_what_runs)
{
    struct rig r;
    struct backend_info info;
    rig_open(&r, BASE, 3, false);
    backend_info(r.b, &info);
    ck_assert_str_eq(info.name, "cpu");
    ck_assert_str_eq(info.device, "x86-64, 3 threads");
    ck_assert(info.unified && info.memory_used == 0);
    rig_close(&r);
}
END_TEST

/* A level that does not exist is a failed precondition; a silly thread count is refused. */
START_TEST(cpu_open_refuses_what_cannot_run)
{
    struct backend *b = NULL;
    struct fault f = {0};
    ck_assert_int_eq(cpu_open(&(struct cpu_options){.level = 2}, &b, &f),
                     FP8D_EFAILED_PRECONDITION);
    ck_assert_int_eq(cpu_open(&(struct cpu_options){.threads = 1025}, &b, &f),
                     FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "threads is 1025"));
    ck_assert_ptr_null(b);
}
END_TEST

/* So is a level that other hosts run. */
START_TEST(cpu_open_refuses_a_level_above_the_host)
{
    struct backend *b = NULL;
    struct fault f = {0};
    ck_assert_int_eq(cpu_open(&(struct cpu_options){.level = V4}, &b, &f),
                     FP8D_EFAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(f.text, "x86-64-v4"));
    ck_assert_ptr_null(b);
}
END_TEST

int main(void)
{
    struct run_skips skips = {0};
    Suite *s = suite_create("cpu_level");
    TCase *c = tcase_create("level");
    tcase_add_test(c, cpu_level_is_chosen);
    tcase_add_test(c, cpu_level_baseline_always_runs);
    tcase_add_test(c, cpu_level_has_a_name);
    tcase_add_test(c, cpu_level_has_its_own_kernels);
    tcase_add_test(c, cpu_open_says_what_runs);
    tcase_add_test(c, cpu_open_refuses_what_cannot_run);
    if (rig_levels() < RIG_LEVELS)
        tcase_add_test(c, cpu_open_refuses_a_level_above_the_host);
    else
        run_skip(&skips, "cpu_open_refuses_a_level_above_the_host", "this host runs all levels");
    suite_add_tcase(s, c);
    return run_suite_but(s, &skips);
}
