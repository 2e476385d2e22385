/* The sums of a training step: norms, and columns added up by a cast. By hand, in whole numbers
 * that every order of adding gives exactly, and against float64. */
#include "tests/unit/run.h"
#include "tests/unit/weights.h"

#include <math.h>

/* --- fixture --- */

static struct rig rig;

static void setup(void)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, false);
}

static void teardown(void)
{
    rig_wait(&rig);
    rig_close(&rig);
}

/* --- helpers --- */

static uint64_t hash(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 27;
}

static void put(const struct tensor *t, uint64_t i, float x)
{
    if (t->dtype == DTYPE_F32)
        weights_floats(t)[i] = x;
    else
        ((uint16_t *)weights_data(t))[i] = t->dtype == DTYPE_BF16 ? bf16_encode(x) : f16_encode(x);
}

static float get(const struct tensor *t, uint64_t i)
{
    if (t->dtype == DTYPE_F32)
        return weights_floats(t)[i];
    uint16_t h = ((uint16_t *)weights_data(t))[i];
    return t->dtype == DTYPE_BF16 ? bf16_decode(h) : f16_decode(h);
}

static struct norm_report norm_of(struct rig *r, const struct tensor *t)
{
    struct buffer *room = rig_buffer(r, sizeof(struct norm_report), NULL);
    memset(room->host, GUARD_BYTE, sizeof(struct norm_report));
    ck_assert_msg(!backend_norm(r->q, t, room->data, &r->f), "%s", r->f.text);
    rig_wait(r);
    struct norm_report report = *(struct norm_report *)room->host;
    buffer_unref(room);
    return report;
}

/* What a cast with column sums is asked for. */
struct way {
    enum dtype fmt;
    bool second, add;
};

static struct qtensor *cast_sums(const struct tensor *x, const struct tensor *sums,
                                 const struct way *way, struct cast_report *out)
{
    struct buffer *state = rig_buffer(&rig, scaler_bytes(1) + sizeof(struct cast_report), NULL);
    struct qtensor *t = NULL;
    scaler_init(state->host, 1);
    struct cast c = {.src = *x,
                     .fmt = way->fmt,
                     .mode = CAST_SITE,
                     .site = state->host,
                     .report =
                         (struct cast_report *)(void *)((char *)state->host + scaler_bytes(1)),
                     .transposed = way->second,
                     .sums_add = way->add};
    if (sums)
        c.sums = *sums;
    ck_assert_msg(!qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "%s", rig.f.text);
    rig_wait(&rig);
    *out = *c.report;
    buffer_unref(state);
    return t;
}

/* The sums alone. */
static void sum_columns(const struct tensor *x, const struct tensor *sums, const struct way *way)
{
    struct cast_report report;
    struct qtensor *t = cast_sums(x, sums, way, &report);
    qtensor_unref(t);
}

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* --- cases: norms --- */

/* 3, 4 and 12 make 169; NaN and Inf are counted and left out; nothing makes 0. */
START_TEST(sums_norm_by_hand)
{
    static const float x[] = {3, (float)NAN, -4, (float)INFINITY, 12, -(float)INFINITY, 0};
    struct tensor t = weights_tensor(&rig, dtypes[_i], 1, 7, 0), none = t;
    for (unsigned i = 0; i < 7; i++)
        put(&t, i, x[i]);
    struct norm_report r = norm_of(&rig, &t);
    ck_assert(r.sum2 == 169.0);
    ck_assert_uint_eq(r.nonfinite, 3);
    none.rows = 0;
    r = norm_of(&rig, &none);
    ck_assert(r.sum2 == 0.0);
    ck_assert_uint_eq(r.nonfinite, 0);
    buffer_unref(t.buf);
}
END_TEST

/* The squares of small whole numbers add up exactly, in every order; sizes that fill no block. */
START_TEST(sums_norm_of_whole_numbers)
{
    static const uint64_t sizes[][2] = {{1, 1}, {3, 341}, {257, 33}, {1031, 1013}};
    for (unsigned k = 0; k < 4; k++) {
        uint64_t n = sizes[k][0] * sizes[k][1], sum = 0;
        struct tensor t = weights_tensor(&rig, dtypes[_i], sizes[k][0], sizes[k][1], k % 2);
        for (uint64_t i = 0; i < n; i++) {
            int x = (int)(hash(i) % 25) - 12;
            put(&t, i, (float)x);
            sum += (uint64_t)(x * x);
        }
        ck_assert(norm_of(&rig, &t).sum2 == (double)sum);
        buffer_unref(t.buf);
    }
}
END_TEST

/* Float32 squares neither overflow nor vanish: the sum is float64. */
START_TEST(sums_norm_is_float64)
{
    struct tensor t = weights_tensor(&rig, DTYPE_F32, 1, 2, 0);
    put(&t, 0, 0x1p100f);
    put(&t, 1, 0x1p80f);
    ck_assert(norm_of(&rig, &t).sum2 == 0x1p200 + 0x1p160);
    put(&t, 0, 0x1p-149f);
    put(&t, 1, 0.0f);
    ck_assert(norm_of(&rig, &t).sum2 == 0x1p-298);
    buffer_unref(t.buf);
}
END_TEST

/* The same bits with any number of threads, wherever the tensor begins, and near the sum in order.
 */
START_TEST(sums_norm_has_one_order)
{
    uint64_t n = 300007;
    double first = 0, plain = 0;
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct rig own;
        rig_open(&own, CPU_LEVEL_AUTO, threads, false);
        struct tensor t = weights_tensor(&own, DTYPE_F32, 1, n, threads - 1);
        plain = 0;
        for (uint64_t i = 0; i < n; i++) {
            put(&t, i, (float)(int64_t)hash(i) * 0x1p-60f);
            plain += (double)get(&t, i) * (double)get(&t, i);
        }
        double got = norm_of(&own, &t).sum2;
        first = threads == 1 ? got : first;
        ck_assert_msg(got == first, "%u threads: %a, 1: %a", threads, got, first);
        buffer_unref(t.buf);
        rig_close(&own);
    }
    ck_assert(fabs(first - plain) <= 0x1p-40 * plain);
}
END_TEST

/* --- cases: columns --- */

static const uint64_t shapes[][2] = {{1, 1},    {1, 40},     {7, 16},   {63, 8},     {64, 128},
                                     {65, 129}, {200, 1000}, {129, 33}, {1100, 264}, {5000, 7}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

/* Whole numbers add up exactly: overwritten first, then added, once without and once with a second
 * form. Nothing around the sums is written. */
START_TEST(sums_columns_of_whole_numbers)
{
    uint64_t rows = shapes[_i][0], cols = shapes[_i][1];
    for (unsigned turn = 0; turn < 6; turn++) {
        struct tensor x = weights_tensor(&rig, dtypes[turn % 3], rows, cols, turn / 3);
        struct tensor sums = weights_tensor(&rig, DTYPE_F32, 1, cols, turn / 3);
        struct way way = {turn % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, turn >= 3, false};
        for (uint64_t i = 0; i < rows * cols; i++)
            put(&x, i, (float)((int)(hash(i) % 9) - 4));
        for (int times = 1; times <= 2; times++) {
            sum_columns(&x, &sums, &way);
            way.add = true;
            for (uint64_t c = 0; c < cols; c++) {
                int want = 0;
                for (uint64_t r = 0; r < rows; r++)
                    want += (int)(hash(r * cols + c) % 9) - 4;
                ck_assert_msg(get(&sums, c) == (float)(times * want), "column %lu of [%lu, %lu]", c,
                              rows, cols);
            }
        }
        weights_guarded(&sums);
        buffer_unref(x.buf);
        buffer_unref(sums.buf);
    }
}
END_TEST

/* Of values over many magnitudes: within (128 + 2) 2^-24 of the sum of magnitudes, in float64. */
START_TEST(sums_columns_by_float64)
{
    uint64_t rows = shapes[_i][0], cols = shapes[_i][1];
    double worst = 0;
    struct tensor x = weights_tensor(&rig, DTYPE_F32, rows, cols, 0);
    struct tensor sums = weights_tensor(&rig, DTYPE_F32, 1, cols, 0);
    struct way way = {DTYPE_F8_E5M2, true, false};
    for (uint64_t i = 0; i < rows * cols; i++)
        put(&x, i, ldexpf((float)(int64_t)hash(i) * 0x1p-63f, (int)(hash(i + 7) % 12)));
    sum_columns(&x, &sums, &way);
    for (uint64_t c = 0; c < cols; c++) {
        double sum = 0, size = 0;
        for (uint64_t r = 0; r < rows; r++) {
            sum += (double)get(&x, r * cols + c);
            size += fabs((double)get(&x, r * cols + c));
        }
        worst = fmax(worst, fabs((double)get(&sums, c) - sum) / (130 * 0x1p-24 * size));
    }
    (void)fprintf(stderr, "column sums of [%lu, %lu]: %.2g of the bound\n", rows, cols, worst);
    ck_assert_msg(worst <= 1, "%g of the bound", worst);
    buffer_unref(x.buf);
    buffer_unref(sums.buf);
}
END_TEST

/* Inf stays, Inf - Inf and NaN are the quiet NaN, and the columns beside them do not notice. No
 * rows: 0, or what was there. */
START_TEST(sums_columns_of_no_numbers)
{
    struct tensor x = weights_tensor(&rig, dtypes[_i], 70, 8, 0), none = x;
    struct tensor sums = weights_tensor(&rig, DTYPE_F32, 1, 8, 0);
    struct way way = {DTYPE_F8_E4M3, false, false};
    const uint32_t *bits = weights_data(&sums);
    for (uint64_t i = 0; i < 70 * 8; i++)
        put(&x, i, 1.0f);
    put(&x, 8, (float)INFINITY);
    put(&x, 8 * 66 + 1, (float)INFINITY);
    put(&x, 8 * 2 + 1, -(float)INFINITY);
    put(&x, 8 * 69 + 2, -(float)NAN);
    sum_columns(&x, &sums, &way);
    ck_assert_uint_eq(bits[0], 0x7f800000);
    ck_assert_uint_eq(bits[1], 0x7fc00000);
    ck_assert_uint_eq(bits[2], 0x7fc00000);
    ck_assert(get(&sums, 3) == 70.0f);
    none.rows = 0;
    way.add = true;
    sum_columns(&none, &sums, &way);
    ck_assert(get(&sums, 3) == 70.0f);
    way.add = false;
    sum_columns(&none, &sums, &way);
    for (unsigned c = 0; c < 8; c++)
        ck_assert_uint_eq(bits[c], 0);
    buffer_unref(x.buf);
    buffer_unref(sums.buf);
}
END_TEST

/* Codes of both forms, factor and report are those of the cast that adds nothing up. */
START_TEST(sums_columns_change_no_code)
{
    uint64_t rows = shapes[_i][0], cols = shapes[_i][1];
    for (unsigned turn = 0; turn < 6; turn++) {
        struct way way = {turn % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3, turn >= 3, false};
        struct tensor x = weights_tensor(&rig, dtypes[turn % 3], rows, cols, turn % 2);
        struct tensor sums = weights_tensor(&rig, DTYPE_F32, 1, cols, 0);
        struct cast_report with, without;
        for (uint64_t i = 0; i < rows * cols; i++)
            put(&x, i, ldexpf((float)(int64_t)hash(i) * 0x1p-63f, (int)(hash(i + 7) % 40) - 24));
        struct qtensor *a = cast_sums(&x, &sums, &way, &with);
        struct qtensor *b = cast_sums(&x, NULL, &way, &without);
        struct weights_forms p = weights_look(&rig, a), q = weights_look(&rig, b);
        ck_assert_mem_eq(p.codes, q.codes, rows * cols);
        ck_assert(p.factor == q.factor && p.pitch == q.pitch && !p.second == !way.second);
        if (p.second)
            ck_assert_mem_eq(p.second, q.second, cols * p.pitch);
        ck_assert_mem_eq(&with, &without, sizeof with);
        weights_forms_free(&p);
        weights_forms_free(&q);
        qtensor_unref(a);
        qtensor_unref(b);
        buffer_unref(x.buf);
        buffer_unref(sums.buf);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sums");
    TCase *c = tcase_create("sums");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, sums_norm_by_hand, 0, 3);
    tcase_add_loop_test(c, sums_norm_of_whole_numbers, 0, 3);
    tcase_add_test(c, sums_norm_is_float64);
    tcase_add_test(c, sums_norm_has_one_order);
    tcase_add_loop_test(c, sums_columns_of_whole_numbers, 0, SHAPES);
    tcase_add_loop_test(c, sums_columns_by_float64, 0, SHAPES);
    tcase_add_loop_test(c, sums_columns_of_no_numbers, 0, 3);
    tcase_add_loop_test(c, sums_columns_change_no_code, 0, SHAPES);
    suite_add_tcase(s, c);
    return run_suite(s);
}
