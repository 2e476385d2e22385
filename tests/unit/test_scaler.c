/* scaler.h against tables worked out from docs/numerics.md section 3, E4M3 unless said: the target
 * is 448, so that an amax of 7 * 2^n gives the scale 2^(6 - n) exactly. */
#include "kernels/scaler.h"
#include "tests/unit/run.h"

#include <check.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(t) (sizeof(t) / sizeof(t)[0])

/* --- fixture --- */

static struct scaler *scaler_of(uint32_t len)
{
    struct scaler *s = malloc(scaler_bytes(len));
    ck_assert_ptr_nonnull(s);
    scaler_init(s, len);
    return s;
}

/* --- helpers --- */

static void see(struct scaler *s, float amax)
{
    struct amax_slot slot = {.amax = amax, .casts = 1};
    scaler_collect(s, &slot);
}

/* One scope that saw `amax`, algorithm max, margin 0. */
static void update(struct scaler *s, float amax)
{
    see(s, amax);
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
}

static void rows_are(const struct scaler *s, const float *rows, size_t n)
{
    ck_assert_uint_eq(s->len, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(s->history[i] == rows[i], "row %zu is %a", i, (double)s->history[i]);
}

#define ROWS_ARE(s, ...)                                                                           \
    rows_are(s, (const float[]){__VA_ARGS__}, COUNT(((const float[]){__VA_ARGS__})))

static void scale_is(const struct scaler *s, float scale, float scale_inv)
{
    ck_assert_msg(s->scale == scale, "scale %a", (double)s->scale);
    ck_assert_msg(s->scale_inv == scale_inv, "scale_inv %a", (double)s->scale_inv);
}

static void counts_are(const struct scaler *s, uint64_t updates, uint64_t skipped)
{
    ck_assert_uint_eq(s->updates, updates);
    ck_assert_uint_eq(s->skipped_updates, skipped);
}

/* --- cases: layout, slots --- */

/* A fresh site is unset: scale 1, no history, no counts; its memory is a multiple of 64 bytes. */
START_TEST(scaler_starts_unset)
{
    static const uint32_t lens[] = {1, 2, 3, 31, 1024};
    for (size_t i = 0; i < COUNT(lens); i++) {
        struct scaler *s = scaler_of(lens[i]);
        ck_assert_uint_eq(scaler_bytes(lens[i]) % 64, 0);
        ck_assert_uint_ge(scaler_bytes(lens[i]), offsetof(struct scaler, history) + 4 * lens[i]);
        scale_is(s, 1.0f, 1.0f);
        ck_assert(!s->set && s->len == lens[i] && s->amax_last == 0 && !s->row0_nonfinite);
        ck_assert(!s->nonfinite && !s->saturated && !s->flushed);
        counts_are(s, 0, 0);
        float sum = 0;
        for (uint32_t r = 0; r < s->len; r++)
            sum += s->history[r];
        ck_assert(sum == 0.0f);
        free(s);
    }
}
END_TEST

/* Slots merge by maximum and sum, whatever the order. */
START_TEST(scaler_slots_merge)
{
    struct amax_slot a = {2.0f, 1, 3, 5, 7}, b = {9.0f, 2, 10, 20, 30}, ab = a, ba = b;
    slot_merge(&ab, &b);
    slot_merge(&ba, &a);
    ck_assert(ab.amax == 9.0f && ab.casts == 3);
    ck_assert(ab.nonfinite == 13 && ab.saturated == 25 && ab.flushed == 37);
    ck_assert_mem_eq(&ab, &ba, sizeof ab);
}
END_TEST

/* Casts of a site before one apply combine by maximum; counts add; no casts change nothing. */
START_TEST(scaler_collect_combines)
{
    struct scaler *s = scaler_of(3);
    scaler_collect(s, &(struct amax_slot){5.0f, 1, 0, 2, 3});
    scaler_collect(s, &(struct amax_slot){4.0f, 1, 0, 10, 20});
    scaler_collect(s, &(struct amax_slot){99.0f, 0, 1, 1, 1});
    ROWS_ARE(s, 5, 0, 0);
    ck_assert(!s->row0_nonfinite && s->nonfinite == 0 && s->saturated == 12 && s->flushed == 23);
    scaler_collect(s, &(struct amax_slot){6.0f, 1, 4, 0, 0});
    ROWS_ARE(s, 6, 0, 0);
    ck_assert(s->row0_nonfinite == 1 && s->nonfinite == 4);
    scale_is(s, 1.0f, 1.0f);
    ck_assert(!s->set);
    free(s);
}
END_TEST

/* --- cases: apply --- */

/* Row 1 is the oldest; it takes part in one more maximum and then leaves the window. */
START_TEST(scaler_oldest_counts_once_more)
{
    struct scaler *s = scaler_of(3);
    update(s, 28.0f);
    ROWS_ARE(s, 0, 0, 28);
    scale_is(s, 0x1p+4f, 0x1p-4f);
    update(s, 7.0f);
    ROWS_ARE(s, 0, 28, 7);
    scale_is(s, 0x1p+4f, 0x1p-4f);
    update(s, 14.0f); /* 28 is row 1 and still the maximum */
    ROWS_ARE(s, 0, 7, 14);
    scale_is(s, 0x1p+4f, 0x1p-4f);
    update(s, 3.5f); /* 28 is gone */
    ROWS_ARE(s, 0, 14, 3.5f);
    scale_is(s, 0x1p+5f, 0x1p-5f);
    ck_assert(s->set == 1 && s->amax_last == 3.5f);
    counts_are(s, 4, 0);
    free(s);
}
END_TEST

/* History 1 is the collected value alone. */
START_TEST(scaler_history_of_one)
{
    struct scaler *s = scaler_of(1);
    update(s, 28.0f);
    ROWS_ARE(s, 0);
    scale_is(s, 0x1p+4f, 0x1p-4f);
    update(s, 7.0f);
    ROWS_ARE(s, 0);
    scale_is(s, 0x1p+6f, 0x1p-6f);
    ck_assert(s->amax_last == 7.0f);
    counts_are(s, 2, 0);
    free(s);
}
END_TEST

/* History 2 keeps one old value, which counts once more. */
START_TEST(scaler_history_of_two)
{
    struct scaler *s = scaler_of(2);
    update(s, 28.0f);
    ROWS_ARE(s, 0, 28);
    update(s, 7.0f);
    ROWS_ARE(s, 0, 7);
    scale_is(s, 0x1p+4f, 0x1p-4f);
    update(s, 7.0f);
    scale_is(s, 0x1p+6f, 0x1p-6f);
    free(s);
}
END_TEST

/* With history L a large value rules exactly L updates, for L = 1, 2, 3, 31, 1024. */
START_TEST(scaler_window_is_l_updates)
{
    static const uint32_t lens[] = {1, 2, 3, 31, 1024};
    for (size_t i = 0; i < COUNT(lens); i++) {
        struct scaler *s = scaler_of(lens[i]);
        uint32_t ruled = 0;
        update(s, 896.0f);
        for (; s->scale == 0.5f && ruled < 2000; ruled++)
            update(s, 7.0f);
        ck_assert_uint_eq(ruled, lens[i]);
        scale_is(s, 0x1p+6f, 0x1p-6f);
        free(s);
    }
}
END_TEST

/* most_recent rolls the same history but looks at the collected value alone. */
START_TEST(scaler_most_recent_ignores_history)
{
    struct scaler *s = scaler_of(3);
    static const float amax[] = {28, 7, 14};
    static const float scale[] = {0x1p+4f, 0x1p+6f, 0x1p+5f};
    for (size_t i = 0; i < COUNT(amax); i++) {
        see(s, amax[i]);
        scaler_apply(s, DTYPE_F8_E4M3, AMAX_MOST_RECENT, 0, false);
        scale_is(s, scale[i], 1 / scale[i]);
    }
    ROWS_ARE(s, 0, 7, 14);
    free(s);
}
END_TEST

/* Format, margin and extreme amaxes give the scales of the rule. */
START_TEST(scaler_apply_table)
{
    static const struct {
        float amax;
        enum dtype fmt;
        int margin;
        float scale, scale_inv;
    } t[] = {
        {0x1.8p+1f, DTYPE_F8_E4M3, 0, 0x1.2aaaaap+7f, 0x1.b6db6ep-8f},
        {0x1.8p+1f, DTYPE_F8_E5M2, 3, 0x1.2aaaaap+11f, 0x1.b6db6ep-12f},
        {0x1p+0f, DTYPE_F8_E4M3, 31, 0x1.cp-23f, 0x1.24924ap+22f},
        {0x1p-149f, DTYPE_F8_E4M3, 0, 0x1.fffffep+127f, 0x1p-128f},
        {0x1p-149f, DTYPE_F8_E5M2, 31, 0x1.fffffep+127f, 0x1p-128f},
        {0x1.fffffep+127f, DTYPE_F8_E5M2, 0, 0x1.c00002p-113f, 0x1.249248p+112f},
        {0x1.fffffep+127f, DTYPE_F8_E4M3, 31, 0x1p-126f, 0x1p+126f},
    };
    for (size_t i = 0; i < COUNT(t); i++) {
        struct scaler *s = scaler_of(2);
        see(s, t[i].amax);
        scaler_apply(s, t[i].fmt, AMAX_MAX, t[i].margin, false);
        scale_is(s, t[i].scale, t[i].scale_inv);
        ROWS_ARE(s, 0, t[i].amax);
        free(s);
    }
}
END_TEST

/* Nothing collected, zeros, a non-finite element or a frozen model: no roll, scale kept, row 0
 * cleared, counted; and the flag does not outlive the apply. */
START_TEST(scaler_skips_whole)
{
    static const struct {
        struct amax_slot slot;
        bool frozen;
    } t[] = {
        {{0.0f, 0, 0, 0, 0}, false},  /* nothing ran */
        {{0.0f, 1, 0, 0, 0}, false},  /* a tensor of zeros */
        {{56.0f, 1, 1, 0, 0}, false}, /* finite maximum beside a NaN */
        {{0.0f, 1, 9, 0, 0}, false},  {{56.0f, 1, 0, 0, 0}, true}, {{56.0f, 1, 2, 0, 0}, true},
    };
    struct scaler *s = scaler_of(3);
    update(s, 28.0f);
    update(s, 7.0f);
    for (size_t i = 0; i < COUNT(t); i++) {
        scaler_collect(s, &t[i].slot);
        scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 5, t[i].frozen);
        ROWS_ARE(s, 0, 28, 7);
        scale_is(s, 0x1p+4f, 0x1p-4f);
        ck_assert(s->amax_last == 7.0f && s->set == 1 && !s->row0_nonfinite);
        counts_are(s, 2, i + 1);
    }
    update(s, 14.0f);
    ROWS_ARE(s, 0, 7, 14);
    counts_are(s, 3, COUNT(t));
    free(s);
}
END_TEST

/* A site whose updates were all skipped is still unset and casts with 1. */
START_TEST(scaler_skipped_site_stays_unset)
{
    struct scaler *s = scaler_of(3);
    update(s, 0.0f);
    scaler_collect(s, &(struct amax_slot){3.0f, 1, 1, 0, 0});
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    see(s, 3.0f);
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, true);
    ck_assert(!s->set);
    scale_is(s, 1.0f, 1.0f);
    ROWS_ARE(s, 0, 0, 0);
    counts_are(s, 0, 3);
    free(s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scaler");
    TCase *tc = tcase_create("scaler");
    tcase_add_test(tc, scaler_starts_unset);
    tcase_add_test(tc, scaler_slots_merge);
    tcase_add_test(tc, scaler_collect_combines);
    tcase_add_test(tc, scaler_oldest_counts_once_more);
    tcase_add_test(tc, scaler_history_of_one);
    tcase_add_test(tc, scaler_history_of_two);
    tcase_add_test(tc, scaler_window_is_l_updates);
    tcase_add_test(tc, scaler_most_recent_ignores_history);
    tcase_add_test(tc, scaler_apply_table);
    tcase_add_test(tc, scaler_skips_whole);
    tcase_add_test(tc, scaler_skipped_site_stays_unset);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
