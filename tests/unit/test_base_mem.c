#include "base/mem.h"
#include "tests/unit/run.h"

#include <stdint.h>
#include <string.h>

/* --- fixture --- */

#define MIB ((size_t)1 << 20)

static int64_t blocks;

static void setup(void)
{
    mem_fault_arm(-1, false);
    mem_pages_keep(0);
    mem_pages_keep(256 * MIB);
    blocks = mem_live_blocks();
}

static void teardown(void)
{
    mem_fault_arm(-1, false);
    ck_assert_int_eq(mem_live_blocks(), blocks);
}

/* --- cases --- */

/* Size 0 gives a block; zalloc and array are zeroed; realloc keeps the contents. */
START_TEST(mem_heap_basics)
{
    char *p = mem_alloc(0);
    unsigned char *z = mem_zalloc(100);
    uint32_t *a = mem_array(10, 4);
    ck_assert(p && z && a);
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(z[i], 0);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(a[i], 0);
    memcpy(z, "hello", 6);
    z = mem_realloc(z, 100000);
    ck_assert_str_eq((char *)z, "hello");
    char *d = mem_strdup("abc"), *n = mem_strndup("abcdef", 2);
    ck_assert_str_eq(d, "abc");
    ck_assert_str_eq(n, "ab");
    ck_assert_int_eq(mem_live_blocks(), blocks + 5);
    mem_free(p), mem_free(z), mem_free(a), mem_free(d), mem_free(n);
    mem_free(NULL);
}
END_TEST

/* An array whose size wraps is refused. */
START_TEST(mem_array_overflow_is_refused)
{
    ck_assert_ptr_null(mem_array(SIZE_MAX / 2 + 2, 2));
    ck_assert_ptr_null(mem_array((size_t)1 << 33, (size_t)1 << 33));
}
END_TEST

/* The call after n good ones fails, once; heap, realloc and pages all count. */
START_TEST(mem_nth_call_fails_once)
{
    for (int n = 0; n < 4; n++) {
        void *p[4];
        mem_fault_arm(n, false);
        p[0] = mem_alloc(1);
        p[1] = mem_zalloc(1);
        p[2] = mem_pages(1);
        p[3] = mem_realloc(NULL, 1);
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(p[i] == NULL, i == n);
        ck_assert(mem_fault_fired());
        mem_free(p[0]), mem_free(p[1]), mem_pages_free(p[2], 1), mem_free(p[3]);
    }
}
END_TEST

/* A repeated fault fails every later call, until disarmed. */
START_TEST(mem_repeated_fault_stays)
{
    mem_fault_arm(1, true);
    void *p = mem_alloc(1);
    ck_assert_ptr_nonnull(p);
    for (int i = 0; i < 5; i++)
        ck_assert_ptr_null(mem_alloc(1));
    mem_fault_arm(-1, false);
    ck_assert(!mem_fault_fired());
    mem_free(p);
    p = mem_alloc(1);
    ck_assert_ptr_nonnull(p);
    mem_free(p);
}
END_TEST

/* A realloc that fails leaves the old block with its contents. */
START_TEST(mem_failed_realloc_keeps_the_block)
{
    char *p = mem_strdup("keep me");
    mem_fault_arm(0, false);
    ck_assert_ptr_null(mem_realloc(p, 1000));
    ck_assert_str_eq(p, "keep me");
    mem_free(p);
}
END_TEST

/* A fault that never came due says so. */
START_TEST(mem_fault_beyond_the_last_call_does_not_fire)
{
    mem_fault_arm(3, false);
    void *p = mem_alloc(1);
    ck_assert(!mem_fault_fired());
    mem_free(p);
}
END_TEST

/* Pages are 64-byte aligned, from 1 MiB on 2 MiB aligned, and writable to the last byte. */
START_TEST(mem_pages_are_aligned)
{
    static const size_t sizes[] = {0,       1,   63,      64,          65,      4096,       65537,
                                   MIB - 1, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 5 * MIB + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *p = mem_pages(sizes[i]);
        size_t align = sizes[i] < MIB ? 64 : 2 * MIB;
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % align, 0);
        ck_assert_uint_ge(mem_pages_size(sizes[i]), sizes[i]);
        ck_assert_uint_eq(mem_pages_size(sizes[i]) % align, 0);
        memset(p, 1, mem_pages_size(sizes[i]));
        mem_pages_free(p, sizes[i]);
    }
    mem_pages_free(NULL, 5);
}
END_TEST

/* Sizes that cannot be rounded up are refused. */
START_TEST(mem_pages_absurd_sizes_are_refused)
{
    ck_assert_ptr_null(mem_pages(SIZE_MAX));
    ck_assert_ptr_null(mem_pages(SIZE_MAX / 2));
    ck_assert_uint_eq(mem_pages_size(SIZE_MAX), 0);
}
END_TEST

/* A big block given back is handed out again for the same rounded size, and only for it. */
START_TEST(mem_pages_are_reused)
{
    void *a = mem_pages(3 * MIB);
    mem_pages_free(a, 3 * MIB);
    ck_assert_uint_eq(mem_pages_kept(), 4 * MIB);
    void *other = mem_pages(5 * MIB);
    ck_assert_ptr_ne(other, a);
    ck_assert_uint_eq(mem_pages_kept(), 4 * MIB);
    void *again = mem_pages(4 * MIB);
    ck_assert_ptr_eq(again, a);
    ck_assert_uint_eq(mem_pages_kept(), 0);
    mem_pages_free(other, 5 * MIB);
    mem_pages_free(again, 4 * MIB);
}
END_TEST

/* No more than the cap is kept: the oldest blocks go first, and a lower cap takes effect at once.
 */
START_TEST(mem_pages_keep_is_capped)
{
    void *p[3];
    mem_pages_keep(4 * MIB);
    for (int i = 0; i < 3; i++)
        p[i] = mem_pages(2 * MIB);
    for (int i = 0; i < 3; i++)
        mem_pages_free(p[i], 2 * MIB);
    ck_assert_uint_eq(mem_pages_kept(), 4 * MIB);
    void *newest = mem_pages(2 * MIB);
    ck_assert_ptr_eq(newest, p[2]);
    mem_pages_free(newest, 2 * MIB);
    mem_pages_keep(2 * MIB);
    ck_assert_uint_eq(mem_pages_kept(), 2 * MIB);
    void *big = mem_pages(6 * MIB);
    mem_pages_free(big, 6 * MIB);
    ck_assert_uint_eq(mem_pages_kept(), 2 * MIB);
    mem_pages_keep(0);
    ck_assert_uint_eq(mem_pages_kept(), 0);
}
END_TEST

/* What an arena hands out is 16-byte aligned, does not overlap, and dies with it. */
START_TEST(mem_arena_hands_out_separate_blocks)
{
    struct arena a;
    unsigned char *p[200];
    arena_init(&a, MIB);
    for (unsigned i = 0; i < 200; i++) {
        p[i] = arena_alloc(&a, i);
        ck_assert_ptr_nonnull(p[i]);
        ck_assert_uint_eq((uintptr_t)p[i] % 16, 0);
        memset(p[i], (int)i, i);
    }
    for (unsigned i = 0; i < 200; i++)
        for (unsigned k = 0; k < i; k++)
            ck_assert_uint_eq(p[i][k], i);
    ck_assert_str_eq(arena_strndup(&a, "abcdef", 3), "abc");
    arena_fini(&a);
    ck_assert_int_eq(mem_live_blocks(), blocks);
}
END_TEST

/* An arena never holds more than its cap, headers included, and can use most of it. */
START_TEST(mem_arena_cap_is_hard)
{
    for (size_t size = 1; size < 5000; size = size * 3 + 1) {
        struct arena a;
        size_t got = 0;
        arena_init(&a, 100000);
        while (arena_alloc(&a, size)) {
            got += size;
            ck_assert_uint_le(a.used, a.cap);
        }
        ck_assert_uint_le(got, 100000);
        ck_assert_uint_ge(got + size, size < 8 ? 5000 : 40000);
        arena_fini(&a);
    }
}
END_TEST

/* Caps of 0 and a few bytes, and sizes near SIZE_MAX, are refused without harm. */
START_TEST(mem_arena_edges)
{
    struct arena a;
    arena_init(&a, 0);
    ck_assert_ptr_null(arena_alloc(&a, 0));
    arena_fini(&a);
    arena_init(&a, 47);
    ck_assert_ptr_null(arena_alloc(&a, 1));
    arena_fini(&a);
    arena_init(&a, SIZE_MAX);
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX));
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX - 16));
    ck_assert_ptr_null(arena_zalloc(&a, SIZE_MAX / 2, 3));
    ck_assert_ptr_nonnull(arena_alloc(&a, 1));
    arena_fini(&a);
    memset(&a, 0, sizeof a);
    arena_fini(&a);
}
END_TEST

/* Zeroed arena memory is zero even where the chunk was used before. */
START_TEST(mem_arena_zalloc_is_zero)
{
    struct arena a;
    arena_init(&a, 10000);
    unsigned char *p = arena_zalloc(&a, 30, 7);
    for (int i = 0; i < 210; i++)
        ck_assert_uint_eq(p[i], 0);
    arena_fini(&a);
}
END_TEST

/* An arena reports a failed allocation and stays usable. */
START_TEST(mem_arena_survives_a_fault)
{
    struct arena a;
    arena_init(&a, 10000);
    mem_fault_arm(0, false);
    ck_assert_ptr_null(arena_strndup(&a, "x", 1));
    ck_assert_str_eq(arena_strndup(&a, "x", 1), "x");
    arena_fini(&a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/mem");
    TCase *c = tcase_create("mem");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, mem_heap_basics);
    tcase_add_test(c, mem_array_overflow_is_refused);
    tcase_add_test(c, mem_nth_call_fails_once);
    tcase_add_test(c, mem_repeated_fault_stays);
    tcase_add_test(c, mem_failed_realloc_keeps_the_block);
    tcase_add_test(c, mem_fault_beyond_the_last_call_does_not_fire);
    tcase_add_test(c, mem_pages_are_aligned);
    tcase_add_test(c, mem_pages_absurd_sizes_are_refused);
    tcase_add_test(c, mem_pages_are_reused);
    tcase_add_test(c, mem_pages_keep_is_capped);
    tcase_add_test(c, mem_arena_hands_out_separate_blocks);
    tcase_add_test(c, mem_arena_cap_is_hard);
    tcase_add_test(c, mem_arena_edges);
    tcase_add_test(c, mem_arena_zalloc_is_zero);
    tcase_add_test(c, mem_arena_survives_a_fault);
    suite_add_tcase(s, c);
    return run_suite(s);
}
