/* test_heap.c - the allocator of device memory, without a device: every block is aligned, inside
 * its region and over no other, and what is given back comes together again. */
#include "base/mem.h"
#include "kernels/cuda/heap.h"
#include "tests/unit/run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STEP 256u
#define BASE ((uint64_t)1 << 40)
#define UNITS 4096u /* of the region */
#define BLOCKS 512

static uint64_t seed;

static uint64_t draw_below(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

/* Which units are dealt, by a map of its own. */
static unsigned char owner[UNITS];

static void mark(const struct heap_block *b, unsigned char from, unsigned char to)
{
    ck_assert_uint_eq(b->at % STEP, 0);
    ck_assert_uint_eq(b->size % STEP, 0);
    ck_assert(b->at >= BASE && b->at + b->size <= BASE + (uint64_t)UNITS * STEP);
    for (uint64_t i = (b->at - BASE) / STEP; i < (b->at + b->size - BASE) / STEP; i++) {
        ck_assert_msg(owner[i] == from, "unit %lu is dealt twice, or not at all", i);
        owner[i] = to;
    }
}

/* --- cases --- */

START_TEST(heap_sizes_by_hand)
{
    struct heap h;
    heap_init(&h, STEP);
    ck_assert_uint_eq(heap_size(&h, 0), 256);
    ck_assert_uint_eq(heap_size(&h, 1), 256);
    ck_assert_uint_eq(heap_size(&h, 256), 256);
    ck_assert_uint_eq(heap_size(&h, 257), 512);
    ck_assert_uint_eq(heap_size(&h, UINT64_MAX), 0);
    ck_assert_ptr_null(heap_take(&h, UINT64_MAX));
    ck_assert_ptr_null(heap_take(&h, 1)); /* there is no region yet */
    heap_fini(&h);
}
END_TEST

/* Thousands of takes and gives of all sizes, against the map. In the end the region is one block.
 */
START_TEST(heap_deals_no_byte_twice)
{
    struct heap h;
    struct heap_block *held[BLOCKS] = {0};
    uint64_t used = 0;
    unsigned refused = 0;
    seed = (uint64_t)_i + 1;
    memset(owner, 0, sizeof owner);
    heap_init(&h, STEP);
    ck_assert(heap_grow(&h, BASE, (uint64_t)UNITS * STEP));
    for (int n = 0; n < 20000; n++) {
        struct heap_block **at = &held[draw_below(BLOCKS)];
        if (*at) {
            used -= (*at)->size;
            mark(*at, 1, 0);
            heap_give(&h, *at);
            *at = NULL;
            continue;
        }
        uint64_t bytes = draw_below(draw_below(8) ? 4096 : 200000);
        bool fits = heap_fits(&h, bytes);
        *at = heap_take(&h, bytes);
        ck_assert_int_eq(*at != NULL, fits);
        refused += !*at;
        if (*at) {
            ck_assert_uint_eq((*at)->size, heap_size(&h, bytes));
            mark(*at, 0, 1);
            used += (*at)->size;
        }
        ck_assert_uint_eq(heap_used(&h), used);
    }
    ck_assert_uint_gt(refused, 0);
    for (int i = 0; i < BLOCKS; i++)
        heap_give(&h, held[i]);
    ck_assert_uint_eq(heap_used(&h), 0);
    struct heap_block *all = heap_take(&h, (uint64_t)UNITS * STEP);
    ck_assert_ptr_nonnull(all);
    ck_assert_uint_eq(all->at, BASE);
    ck_assert_ptr_null(heap_take(&h, 1));
    heap_give(&h, all);
    heap_fini(&h);
}
END_TEST

/* Two regions never come together, though they touch. */
START_TEST(heap_keeps_regions_apart)
{
    struct heap h;
    heap_init(&h, STEP);
    ck_assert(heap_grow(&h, BASE, 4 * STEP));
    ck_assert(heap_grow(&h, BASE + 4 * STEP, 4 * STEP));
    ck_assert_ptr_null(heap_take(&h, 5 * STEP));
    struct heap_block *a = heap_take(&h, 4 * STEP), *b = heap_take(&h, 4 * STEP);
    ck_assert(a && b && a->at != b->at);
    heap_give(&h, a);
    heap_give(&h, b);
    ck_assert(!heap_fits(&h, 5 * STEP));
    heap_fini(&h);
}
END_TEST

/* Without host memory for its description nothing is taken, and all is still there. */
START_TEST(heap_without_host_memory)
{
    struct heap h;
    heap_init(&h, STEP);
    mem_fault_arm(0, false);
    ck_assert(!heap_grow(&h, BASE, 4 * STEP));
    mem_fault_arm(-1, false);
    ck_assert(heap_grow(&h, BASE, 4 * STEP));
    mem_fault_arm(0, false);
    ck_assert_ptr_null(heap_take(&h, STEP));
    mem_fault_arm(-1, false);
    ck_assert_uint_eq(heap_used(&h), 0);
    ck_assert(heap_fits(&h, 4 * STEP));
    heap_fini(&h);
}
END_TEST

static void *churn(void *arg)
{
    struct heap *h = arg;
    for (int i = 0; i < 5000; i++) {
        struct heap_block *b = heap_take(h, (uint64_t)(i % 40 + 1) * STEP);
        heap_give(h, b);
    }
    return NULL;
}

START_TEST(heap_from_several_threads)
{
    struct heap h;
    pthread_t t[4];
    heap_init(&h, STEP);
    ck_assert(heap_grow(&h, BASE, 64 * STEP));
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, churn, &h), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    ck_assert_uint_eq(heap_used(&h), 0);
    ck_assert(heap_fits(&h, 64 * STEP));
    heap_fini(&h);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("heap");
    TCase *c = tcase_create("heap");
    tcase_add_test(c, heap_sizes_by_hand);
    tcase_add_loop_test(c, heap_deals_no_byte_twice, 0, 4);
    tcase_add_test(c, heap_keeps_regions_apart);
    tcase_add_test(c, heap_without_host_memory);
    tcase_add_test(c, heap_from_several_threads);
    suite_add_tcase(s, c);
    return run_suite(s);
}
