#include "base/cursor.h"
#include "tests/unit/run.h"

/* --- fixture --- */

static const unsigned char bytes[] = {0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07,
                                      0x88, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66};

/* --- cases --- */

/* Numbers are little-endian and are taken one after the other. */
START_TEST(cursor_reads_little_endian)
{
    struct cursor c = cursor_over(bytes, sizeof bytes);
    ck_assert_uint_eq(cursor_u64(&c), 0x8807060504030201);
    ck_assert_uint_eq(cursor_u32(&c), 0x44332211);
    ck_assert_uint_eq(cursor_u16(&c), 0x6655);
    ck_assert(!c.bad);
    ck_assert_uint_eq(c.left, 0);
}
END_TEST

/* A read past the end gives 0, moves nothing, and makes all later reads fail too. */
START_TEST(cursor_error_is_sticky)
{
    struct cursor c = cursor_over(bytes, 3);
    ck_assert_uint_eq(cursor_u32(&c), 0);
    ck_assert(c.bad);
    ck_assert_uint_eq(c.left, 3);
    ck_assert_uint_eq(cursor_u16(&c), 0);
    ck_assert_ptr_null(cursor_take(&c, 1));
    ck_assert_uint_eq(c.left, 3);
}
END_TEST

/* A length near SIZE_MAX does not wrap around the bounds check. */
START_TEST(cursor_huge_length_is_refused)
{
    struct cursor c = cursor_over(bytes, sizeof bytes);
    ck_assert_ptr_eq(cursor_take(&c, 4), bytes);
    ck_assert_ptr_null(cursor_take(&c, SIZE_MAX));
    ck_assert(c.bad);
}
END_TEST

/* Taking nothing from an empty cursor is no error. */
START_TEST(cursor_take_nothing_is_fine)
{
    struct cursor c = cursor_over(bytes, 0);
    ck_assert_ptr_eq(cursor_take(&c, 0), bytes);
    ck_assert(!c.bad);
    ck_assert_ptr_null(cursor_take(&c, 1));
    ck_assert(c.bad);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/cursor");
    TCase *c = tcase_create("cursor");
    tcase_add_test(c, cursor_reads_little_endian);
    tcase_add_test(c, cursor_error_is_sticky);
    tcase_add_test(c, cursor_huge_length_is_refused);
    tcase_add_test(c, cursor_take_nothing_is_fine);
    suite_add_tcase(s, c);
    return run_suite(s);
}
