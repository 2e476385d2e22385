/* scaler.h: calibrate, adopt, reset and resize against tables worked out from docs/numerics.md
 * section 3, and random sequences of everything against tests/oracle/scaler_ref. */
#include "kernels/scaler.h"
#include "tests/oracle/scaler_ref.h"
#include "tests/unit/run.h"

#include <check.h>
#include <float.h>
#include <stdio.h>
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

/* A site that saw 1, 2, ... n in so many scopes, E4M3, maximum. */
static struct scaler *scaler_after(uint32_t len, int n)
{
    struct scaler *s = scaler_of(len);
    for (int i = 1; i <= n; i++) {
        scaler_collect(s, &(struct amax_slot){(float)i, 1, 0, 1, 2});
        scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    }
    return s;
}

/* --- helpers --- */

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

/* The same site at another length; frees s. */
static struct scaler *resized(struct scaler *s, uint32_t len)
{
    struct scaler *to = scaler_of(len);
    memset(to->history, 0xff, len * sizeof(float)); /* nothing of this may stay */
    scaler_resize(to, s);
    free(s);
    return to;
}

/* --- cases: calibrate, adopt, reset --- */

/* Calibration takes the scale from its amax alone, enters it as the newest row, sets the site, and
 * leaves what training collected. */
START_TEST(scaler_calibrate_enters_newest)
{
    struct scaler *s = scaler_after(4, 3);
    scaler_collect(s, &(struct amax_slot){9.0f, 1, 1, 0, 0});
    scaler_calibrate(s, DTYPE_F8_E4M3, 2, 0x1.cp+1f); /* 3.5: 448 / 4 / 3.5 */
    ROWS_ARE(s, 9, 2, 3, 3.5f);
    scale_is(s, 0x1p+5f, 0x1p-5f);
    ck_assert(s->row0_nonfinite == 1 && s->amax_last == 3.5f);
    ck_assert(s->updates == 3 && s->skipped_updates == 0);
    free(s);
}
END_TEST

/* An unset site is set by calibration; amax 0 leaves it unset with scale 1. */
START_TEST(scaler_calibrate_sets_unless_zero)
{
    struct scaler *s = scaler_of(3);
    scaler_calibrate(s, DTYPE_F8_E5M2, 1, 0.0f);
    ck_assert(!s->set && s->amax_last == 0);
    scale_is(s, 1.0f, 1.0f);
    ROWS_ARE(s, 0, 0, 0);
    scaler_calibrate(s, DTYPE_F8_E5M2, 1, 7.0f); /* 57344 / 2 / 7 */
    ck_assert(s->set == 1);
    scale_is(s, 0x1p+12f, 0x1p-12f);
    ROWS_ARE(s, 0, 0, 7);
    scaler_calibrate(s, DTYPE_F8_E5M2, 1, 0.0f);
    scale_is(s, 0x1p+12f, 0x1p-12f);
    ROWS_ARE(s, 0, 0, 7);
    free(s);
}
END_TEST

/* Calibration of history 1 keeps row 0; denormal and FLT_MAX amaxes are clamped. */
START_TEST(scaler_calibrate_extremes)
{
    struct scaler *s = scaler_of(1);
    scaler_collect(s, &(struct amax_slot){9.0f, 1, 0, 0, 0});
    scaler_calibrate(s, DTYPE_F8_E4M3, 0, 0x1p-149f);
    ROWS_ARE(s, 9);
    scale_is(s, 0x1.fffffep+127f, 0x1p-128f);
    scaler_calibrate(s, DTYPE_F8_E4M3, 31, FLT_MAX);
    scale_is(s, 0x1p-126f, 0x1p+126f);
    free(s);
}
END_TEST

/* A factor from a file stays to the bit, also where 1/(1/d) is another number or a clamp bites. */
START_TEST(scaler_adopt_keeps_factor_verbatim)
{
    static const struct {
        float scale_inv, scale;
    } t[] = {
        {0x1.eb851ep-5f, 0x1.0aaaacp+4f}, /* 1 / scale is 0x1.eb851cp-5 */
        {0x1.fffffep+125f, 0x1.000002p-126f}, {0x1p-128f, 0x1.fffffep+127f},
        {0x1.000008p-128f, 0x1.fffffp+127f},  {0x1.000002p+126f, 0x1p-126f},
        {0x1.fffffep+127f, 0x1p-126f},        {0x1p+0f, 0x1p+0f},
    };
    for (size_t i = 0; i < COUNT(t); i++) {
        struct scaler *s = scaler_of(3);
        scaler_adopt(s, t[i].scale_inv);
        scale_is(s, t[i].scale, t[i].scale_inv);
        ck_assert(s->set == 1 && s->amax_last == 0 && s->updates == 0);
        ROWS_ARE(s, 0, 0, 0);
        free(s);
    }
}
END_TEST

/* An adopted factor survives skipped applies and is replaced by the first update. */
START_TEST(scaler_adopt_lasts_until_update)
{
    struct scaler *s = scaler_after(3, 2);
    scaler_adopt(s, 0x1.eb851ep-5f);
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    scale_is(s, 0x1.0aaaacp+4f, 0x1.eb851ep-5f);
    ROWS_ARE(s, 0, 1, 2);
    scaler_collect(s, &(struct amax_slot){7.0f, 1, 0, 0, 0});
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    scale_is(s, 0x1p+6f, 0x1p-6f);
    free(s);
}
END_TEST

/* Reset is a fresh site of the same length. */
START_TEST(scaler_reset_is_fresh)
{
    struct scaler *s = scaler_after(31, 40), *fresh = scaler_of(31);
    scaler_collect(s, &(struct amax_slot){7.0f, 1, 1, 1, 1});
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    scaler_collect(s, &(struct amax_slot){7.0f, 1, 1, 1, 1});
    scaler_reset(s);
    ck_assert_mem_eq(s, fresh, scaler_bytes(31));
    free(s);
    free(fresh);
}
END_TEST

/* --- cases: resize --- */

/* Growing puts zeros before the oldest row, shrinking drops the oldest; row 0 stays. */
START_TEST(scaler_resize_keeps_newest)
{
    struct scaler *s = scaler_after(4, 5);
    scaler_collect(s, &(struct amax_slot){9.0f, 1, 1, 0, 0});
    ROWS_ARE(s, 9, 3, 4, 5);
    s = resized(s, 6);
    ROWS_ARE(s, 9, 0, 0, 3, 4, 5);
    s = resized(s, 3);
    ROWS_ARE(s, 9, 4, 5);
    s = resized(s, 3);
    ROWS_ARE(s, 9, 4, 5);
    s = resized(s, 2);
    ROWS_ARE(s, 9, 5);
    s = resized(s, 1);
    ROWS_ARE(s, 9);
    s = resized(s, 3);
    ROWS_ARE(s, 9, 0, 0);
    free(s);
}
END_TEST

/* Everything but the history moves unchanged. */
START_TEST(scaler_resize_copies_the_rest)
{
    struct scaler *s = scaler_after(1024, 5);
    scaler_adopt(s, 0x1.eb851ep-5f);
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, true);
    scaler_collect(s, &(struct amax_slot){9.0f, 1, 4, 0, 0});
    s = resized(s, 31);
    scale_is(s, 0x1.0aaaacp+4f, 0x1.eb851ep-5f);
    ck_assert(s->set == 1 && s->amax_last == 5.0f && s->row0_nonfinite == 1);
    ck_assert(s->updates == 5 && s->skipped_updates == 1);
    ck_assert(s->nonfinite == 4 && s->saturated == 5 && s->flushed == 10);
    ck_assert(s->history[30] == 5.0f && s->history[26] == 1.0f && s->history[25] == 0.0f);
    free(s);
}
END_TEST

/* After shrinking, a dropped row no longer counts; after growing, kept rows count longer. */
START_TEST(scaler_resize_changes_the_window)
{
    struct scaler *s = scaler_of(3);
    static const float amax[] = {28, 14, 7};
    for (int i = 0; i < 2; i++) {
        scaler_collect(s, &(struct amax_slot){amax[i], 1, 0, 0, 0});
        scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    }
    s = resized(s, 2);
    scaler_collect(s, &(struct amax_slot){amax[2], 1, 0, 0, 0});
    scaler_apply(s, DTYPE_F8_E4M3, AMAX_MAX, 0, false);
    scale_is(s, 0x1p+5f, 0x1p-5f); /* 14; 28 is gone */
    ROWS_ARE(s, 0, 7);
    free(s);
}
END_TEST

/* --- cases: random sequences --- */

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

static float random_amax(void)
{
    static const float special[] = {0.0f, 0x1p-149f, 0x1.8p-130f, FLT_MIN, 0x1.cp-120f, FLT_MAX};
    if (random_below(8) == 0)
        return special[random_below(COUNT(special))];
    return fp8_bits_float(0x3a000000u + (uint32_t)random_below(0x0c000000u)); /* 2^-11 to 2^13 */
}

struct pair {
    struct scaler *s;
    struct scaler_ref *r;
    enum dtype fmt;
};

static void step_collect(struct pair *p)
{
    struct amax_slot slot = {.amax = random_amax(), .casts = 1};
    slot.nonfinite = random_below(16) ? 0 : 1 + random_below(5);
    slot.saturated = random_below(3);
    slot.flushed = random_below(3);
    scaler_collect(p->s, &slot);
    scaler_ref_collect(p->r, (double)slot.amax, slot.nonfinite, slot.saturated, slot.flushed);
}

static void step_apply(struct pair *p)
{
    int margin = (int)random_below(4) ? 0 : (int)random_below(RECIPE_MARGIN_MAX + 1);
    bool recent = random_below(4) == 0, frozen = random_below(16) == 0;
    scaler_apply(p->s, p->fmt, recent ? AMAX_MOST_RECENT : AMAX_MAX, margin, frozen);
    scaler_ref_apply(p->r, recent, margin, frozen);
}

static void step_rare(struct pair *p)
{
    uint32_t len = 1 + (uint32_t)random_below(random_below(8) ? 9 : 1100);
    float amax = random_amax(), inv = random_amax();
    switch (random_below(4)) {
    case 0:
        scaler_calibrate(p->s, p->fmt, 3, amax);
        scaler_ref_calibrate(p->r, (double)amax, 3);
        break;
    case 1:
        if (!recipe_factor_ok(inv))
            break;
        scaler_adopt(p->s, inv);
        scaler_ref_adopt(p->r, inv);
        break;
    case 2:
        p->s = resized(p->s, len);
        scaler_ref_resize(p->r, len);
        break;
    default:
        if (random_below(8))
            break;
        scaler_reset(p->s);
        scaler_ref_reset(p->r);
    }
}

static bool pair_equal(const struct pair *p)
{
    const struct scaler *s = p->s;
    const struct scaler_ref *r = p->r;
    bool same = s->len == r->len && s->scale == r->scale && s->scale_inv == r->scale_inv &&
                (double)s->amax_last == r->last && s->set == r->set &&
                s->row0_nonfinite == r->collected_bad && s->updates == r->updates &&
                s->skipped_updates == r->skipped && s->nonfinite == r->nonfinite &&
                s->saturated == r->saturated && s->flushed == r->flushed;
    for (uint32_t i = 0; same && i < s->len; i++)
        same = (double)s->history[i] == scaler_ref_row(r, i);
    return same;
}

static void random_sequence(uint64_t seed, enum dtype fmt, double fp8_max, int steps)
{
    uint32_t len = 1 + (uint32_t)(seed % 7);
    struct pair p = {scaler_of(len), scaler_ref_new(fp8_max, len), fmt};
    random_state = seed;
    for (int i = 0; i < steps; i++) {
        uint64_t what = random_below(20);
        if (what < 10)
            step_collect(&p);
        else if (what < 19)
            step_apply(&p);
        else
            step_rare(&p);
        if (!pair_equal(&p))
            ck_abort_msg("seed %llu, step %d (%d)", (unsigned long long)seed, i, (int)what);
    }
    free(p.s);
    scaler_ref_free(p.r);
}

/* Any sequence of operations leaves every field and row as the second implementation has it. */
START_TEST(scaler_random_sequences)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        random_sequence(seed, DTYPE_F8_E4M3, 448.0, 2000);
        random_sequence(seed + 100, DTYPE_F8_E5M2, 57344.0, 2000);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scaler_moves");
    TCase *tc = tcase_create("scaler_moves");
    tcase_set_timeout(tc, 60); /* seconds; sanitizers */
    tcase_add_test(tc, scaler_calibrate_enters_newest);
    tcase_add_test(tc, scaler_calibrate_sets_unless_zero);
    tcase_add_test(tc, scaler_calibrate_extremes);
    tcase_add_test(tc, scaler_adopt_keeps_factor_verbatim);
    tcase_add_test(tc, scaler_adopt_lasts_until_update);
    tcase_add_test(tc, scaler_reset_is_fresh);
    tcase_add_test(tc, scaler_resize_keeps_newest);
    tcase_add_test(tc, scaler_resize_copies_the_rest);
    tcase_add_test(tc, scaler_resize_changes_the_window);
    tcase_add_test(tc, scaler_random_sequences);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
