#include "base/checked.h"
#include "tests/unit/run.h"

#define MAX UINT64_MAX

/* --- cases --- */

/* A sum is exact up to 2^64-1; one more is refused and leaves the output alone. */
START_TEST(checked_add_stops_at_the_top)
{
    uint64_t r = 7;
    ck_assert(ck_add(MAX - 1, 1, &r));
    ck_assert_uint_eq(r, MAX);
    r = 7;
    ck_assert(!ck_add(MAX, 1, &r));
    ck_assert(!ck_add(1, MAX, &r));
    ck_assert_uint_eq(r, 7);
}
END_TEST

/* A product is exact up to 2^64-1; 2^32 * 2^32 is refused and leaves the output alone. */
START_TEST(checked_mul_stops_at_the_top)
{
    uint64_t r = 7;
    ck_assert(ck_mul(0xffffffff, 0x100000001, &r));
    ck_assert_uint_eq(r, MAX);
    r = 7;
    ck_assert(!ck_mul((uint64_t)1 << 32, (uint64_t)1 << 32, &r));
    ck_assert_uint_eq(r, 7);
    ck_assert(ck_mul(MAX, 0, &r));
    ck_assert_uint_eq(r, 0);
}
END_TEST

/* Rounding up reaches the next multiple, keeps multiples, and refuses what has none. */
START_TEST(checked_round_up_to_multiples)
{
    uint64_t r = 7;
    ck_assert(ck_round_up(0, 16, &r));
    ck_assert_uint_eq(r, 0);
    ck_assert(ck_round_up(1, 16, &r));
    ck_assert_uint_eq(r, 16);
    ck_assert(ck_round_up(16, 16, &r));
    ck_assert_uint_eq(r, 16);
    ck_assert(ck_round_up(MAX - 15, 16, &r));
    ck_assert_uint_eq(r, MAX - 15);
    r = 7;
    ck_assert(!ck_round_up(MAX - 14, 16, &r));
    ck_assert_uint_eq(r, 7);
}
END_TEST

/* The empty product is 1; a product that wraps to 0 or to a small number is refused. */
START_TEST(checked_product_refuses_wrapping)
{
    uint64_t r = 7;
    ck_assert(ck_product(NULL, 0, &r));
    ck_assert_uint_eq(r, 1);
    ck_assert(ck_product((uint64_t[]){2, 3, 5}, 3, &r));
    ck_assert_uint_eq(r, 30);
    r = 7;
    ck_assert(!ck_product((uint64_t[]){2, (uint64_t)1 << 63}, 2, &r));
    ck_assert(!ck_product((uint64_t[]){3, (MAX / 3) + 2}, 2, &r));
    ck_assert_uint_eq(r, 7);
    ck_assert(ck_product((uint64_t[]){0, MAX}, 2, &r));
    ck_assert_uint_eq(r, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/checked");
    TCase *c = tcase_create("checked");
    tcase_add_test(c, checked_add_stops_at_the_top);
    tcase_add_test(c, checked_mul_stops_at_the_top);
    tcase_add_test(c, checked_round_up_to_multiples);
    tcase_add_test(c, checked_product_refuses_wrapping);
    suite_add_tcase(s, c);
    return run_suite(s);
}
