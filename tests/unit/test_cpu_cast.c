/* Casts through the backend: reports, where the scale comes from, and that a tensor keeps the scale
 * that made it. Values are worked out by hand from docs/numerics.md 1 to 4. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <float.h>
#include <math.h>

/* --- fixture: a queue, a site and a report in backend memory --- */

static struct rig rig;
static struct buffer *memory;
static struct cast_report *report;
static struct amax_slot *slot;
static struct scaler *site;

static void setup(bool is_inline)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, is_inline);
    memory = rig_buffer(&rig, 256 + scaler_bytes(4), NULL);
    report = memory->host;
    slot = (struct amax_slot *)(void *)((char *)memory->host + 128);
    site = (struct scaler *)((char *)memory->host + 256);
    scaler_init(site, 4);
}

static void setup_inline(void)
{
    setup(true);
}

static void setup_threads(void)
{
    setup(false);
}

static void teardown(void)
{
    buffer_unref(memory);
    rig_close(&rig);
}

/* --- helpers --- */

static void set_site(float scale, float scale_inv)
{
    site->scale = scale;
    site->scale_inv = scale_inv;
    site->set = 1;
}

/* Enqueue only: the caller waits. */
static struct qtensor *enqueue(const struct tensor *x, enum dtype fmt, enum cast_scale mode,
                               int margin)
{
    struct qtensor *t = NULL;
    struct cast c = {.src = *x,
                     .fmt = fmt,
                     .mode = mode,
                     .margin = margin,
                     .site = mode == CAST_TENSOR ? NULL : site,
                     .report = report};
    int rc = qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f);
    ck_assert_msg(!rc, "%s", rig.f.text);
    return t;
}

/* One row of n floats cast; codes and factor as exported. */
static float cast_row(const float *x, unsigned n, enum dtype fmt, enum cast_scale mode, int margin,
                      uint8_t *codes)
{
    struct tensor src = rig_tensor(&rig, DTYPE_F32, 1, n, x);
    struct qtensor *t = enqueue(&src, fmt, mode, margin);
    float factor = rig_export(&rig, t, codes);
    qtensor_unref(t);
    buffer_unref(src.buf);
    return factor;
}

static void report_is(float amax, uint64_t nonfinite, uint64_t saturated, uint64_t flushed)
{
    const struct amax_slot *s = &report->slot;
    ck_assert_msg(s->amax == amax, "amax %a", (double)s->amax);
    ck_assert_uint_eq(s->casts, 1);
    ck_assert_uint_eq(s->nonfinite, nonfinite);
    ck_assert_uint_eq(s->saturated, saturated);
    ck_assert_uint_eq(s->flushed, flushed);
}

static void scale_is(float scale, float scale_inv, float factor, unsigned from_tensor)
{
    ck_assert_msg(report->scale == scale, "scale %a", (double)report->scale);
    ck_assert_msg(report->scale_inv == scale_inv, "scale_inv %a", (double)report->scale_inv);
    ck_assert_msg(factor == scale_inv, "factor %a", (double)factor);
    ck_assert_uint_eq(report->from_tensor, from_tensor);
}

/* --- cases: counts --- */

/* E4M3: 464 is no saturation (a tie that rounds to 448), its successor is; 2^-10 is flushed (a tie
 * to zero), its successor is not; zeros are never flushed; NaN and Inf count as non-finite. */
START_TEST(cast_counts_e4m3)
{
    uint8_t codes[10];
    const float x[10] = {464.0f,
                         nextafterf(464.0f, 500.0f),
                         -1000.0f,
                         0x1p-10f,
                         0x1.000002p-10f,
                         -0x1p-20f,
                         0.0f,
                         -0.0f,
                         (float)NAN,
                         -(float)INFINITY};
    const uint8_t want[10] = {0x7e, 0x7e, 0xfe, 0x00, 0x01, 0x80, 0x00, 0x80, 0x7f, 0xfe};
    float factor = cast_row(x, 10, DTYPE_F8_E4M3, CAST_SITE, 0, codes);
    ck_assert_mem_eq(codes, want, 10);
    report_is(1000.0f, 2, 2, 2);
    scale_is(1.0f, 1.0f, factor, 0);
}
END_TEST

/* E5M2: 61440 itself is a saturation, its predecessor is not; the least code is 2^-16. */
START_TEST(cast_counts_e5m2)
{
    uint8_t codes[6];
    const float x[6] = {61440.0f,       nextafterf(61440.0f, 0.0f), -70000.0f, 0x1p-17f, 0x1.8p-17f,
                        (float)INFINITY};
    const uint8_t want[6] = {0x7b, 0x7b, 0xfb, 0x00, 0x01, 0x7b};
    (void)cast_row(x, 6, DTYPE_F8_E5M2, CAST_SITE, 0, codes);
    ck_assert_mem_eq(codes, want, 6);
    report_is(70000.0f, 1, 2, 1);
}
END_TEST

/* A finite element that overflows when it is scaled is saturated; amax is of the unscaled one. */
START_TEST(cast_counts_overflow_by_the_scale)
{
    uint8_t codes[2];
    set_site(0x1p100f, 0x1p-100f);
    (void)cast_row((float[]){-0x1p100f, 0x1p-95f}, 2, DTYPE_F8_E4M3, CAST_SITE, 0, codes);
    ck_assert_mem_eq(codes, ((uint8_t[]){0xfe, 0x60}), 2);
    report_is(0x1p100f, 0, 1, 0);
}
END_TEST

/* bf16 and f16 are read as what they are: 1.0078125 is a bf16, 1.0009765625 an f16. */
START_TEST(cast_reads_16_bit_inputs)
{
    struct tensor b = rig_tensor(&rig, DTYPE_BF16, 1, 2, (uint16_t[]){0x3f81, 0xc100});
    struct tensor h = rig_tensor(&rig, DTYPE_F16, 1, 2, (uint16_t[]){0x3c01, 0x0001});
    struct qtensor *t = enqueue(&b, DTYPE_F8_E4M3, CAST_SITE, 0);
    rig_wait(&rig);
    report_is(8.0f, 0, 0, 0);
    qtensor_unref(t);
    t = enqueue(&h, DTYPE_F8_E4M3, CAST_SITE, 0);
    rig_wait(&rig);
    report_is(1.0009765625f, 0, 0, 1);
    qtensor_unref(t);
    buffer_unref(b.buf);
    buffer_unref(h.buf);
}
END_TEST

/* Only the tensor's own elements count, whatever lies behind them in the buffer: 7 rows of a
 * buffer with room for 16. */
START_TEST(cast_amax_leaves_padding_out)
{
    float x[16 * 16];
    for (int i = 0; i < 16 * 16; i++)
        x[i] = i < 7 * 16 ? 3.0f : 1e30f;
    struct tensor src = rig_tensor(&rig, DTYPE_F32, 16, 16, x);
    src.rows = 7;
    struct qtensor *t = enqueue(&src, DTYPE_F8_E4M3, CAST_SITE, 0);
    rig_wait(&rig);
    report_is(3.0f, 0, 0, 0);
    qtensor_unref(t);
    t = enqueue(&src, DTYPE_F8_E4M3, CAST_TENSOR, 0);
    rig_wait(&rig);
    report_is(3.0f, 0, 0, 0);
    ck_assert(report->scale == 448.0f / 3.0f);
    qtensor_unref(t);
    buffer_unref(src.buf);
}
END_TEST

/* Counts of a tensor of many chunks are sums over all threads. */
START_TEST(cast_counts_over_all_threads)
{
    uint64_t n = rig_small() ? 150003 : 1000003;
    struct tensor src = rig_tensor(&rig, DTYPE_F32, 1, n, NULL);
    float *x = src.buf->host;
    for (uint64_t i = 0; i < n; i++)
        x[i] = i % 10 == 0 ? 1e-9f : i % 10 == 1 ? 1e9f : 1.0f;
    x[n - 1] = -2e9f;
    x[70000] = (float)NAN;
    struct qtensor *t = enqueue(&src, DTYPE_F8_E4M3, CAST_SITE, 0);
    rig_wait(&rig);
    /* n / 10 + 1 of each kind; the NaN took a tiny one, the last element is another large one. */
    report_is(2e9f, 1, n / 10 + 2, n / 10);
    qtensor_unref(t);
    buffer_unref(src.buf);
}
END_TEST

/* --- cases: where the scale comes from --- */

/* Train: the site's scale, which is 1 while it is unset, and its factor verbatim once it is set. */
START_TEST(cast_site_takes_the_sites_scale)
{
    uint8_t codes[1];
    float factor = cast_row((float[]){1.0f}, 1, DTYPE_F8_E4M3, CAST_SITE, 0, codes);
    scale_is(1.0f, 1.0f, factor, 0);
    /* 1/(1/d) differs from d for many d: the factor is the stored one, not 1/scale. */
    set_site(1.0f / 0.1f, 0x1.99999cp-4f);
    factor = cast_row((float[]){1.0f}, 1, DTYPE_F8_E4M3, CAST_SITE, 3, codes);
    scale_is(1.0f / 0.1f, 0x1.99999cp-4f, factor, 0);
    ck_assert_uint_eq(codes[0], 0x52);
}
END_TEST

/* Eval: an unset site gives way to the tensor's own amax, with the margin; a set one does not. */
START_TEST(cast_site_or_tensor_falls_back_while_unset)
{
    uint8_t codes[2];
    float factor =
        cast_row((float[]){7.0f, -3.5f}, 2, DTYPE_F8_E4M3, CAST_SITE_OR_TENSOR, 2, codes);
    scale_is(16.0f, 0.0625f, factor, 1);
    ck_assert_mem_eq(codes, ((uint8_t[]){0x6e, 0xe6}), 2);
    ck_assert(site->set == 0 && site->scale == 1.0f && site->history[0] == 0.0f);
    set_site(2.0f, 0.5f);
    factor = cast_row((float[]){7.0f, -3.5f}, 2, DTYPE_F8_E4M3, CAST_SITE_OR_TENSOR, 2, codes);
    scale_is(2.0f, 0.5f, factor, 0);
}
END_TEST

/* `current`: target / amax of the tensor; 0 gives 1; the ends of float32 are clamped; non-finite
 * elements do not take part. */
START_TEST(cast_tensor_takes_its_own_amax)
{
    static const struct {
        float x;
        enum dtype fmt;
        int margin;
        float scale, scale_inv;
    } rows[] = {
        {7.0f, DTYPE_F8_E4M3, 0, 64.0f, 0x1p-6f},
        {-7.0f, DTYPE_F8_E4M3, 31, 0x1p-25f, 0x1p25f},
        {7.0f, DTYPE_F8_E5M2, 0, 8192.0f, 0x1p-13f},
        {0.0f, DTYPE_F8_E4M3, 0, 1.0f, 1.0f},
        {0x1p-149f, DTYPE_F8_E4M3, 0, FLT_MAX, 0x1p-128f},
        {FLT_MAX, DTYPE_F8_E4M3, 31, FLT_MIN, 0x1p126f},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t codes[3];
        const float x[3] = {rows[i].x, (float)NAN, (float)INFINITY};
        float factor = cast_row(x, 3, rows[i].fmt, CAST_TENSOR, rows[i].margin, codes);
        scale_is(rows[i].scale, rows[i].scale_inv, factor, 1);
        ck_assert_uint_eq(report->slot.nonfinite, 2);
    }
}
END_TEST

/* --- cases: the snapshot --- */

/* The site's scale moves right after the cast was enqueued: bytes, factor and product are of the
 * scale before. 3 * 1 = 3, cast with scale 1; the update sets 448/1000. */
START_TEST(cast_keeps_its_snapshot)
{
    uint8_t code[1];
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 1, (float[]){3.0f});
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 1, 1, NULL);
    *slot = (struct amax_slot){.amax = 1000.0f, .casts = 1};
    struct apply_site at = {.site = site, .slot = slot, .fmt = DTYPE_F8_E4M3};
    struct apply update = {.sites = &at, .count = 1, .algo = AMAX_MAX};
    struct qtensor *w = rig_adopt(&rig, DTYPE_F8_E4M3, 1, 1, (uint8_t[]){0x38}, 1.0f);
    struct qtensor *t = enqueue(&x, DTYPE_F8_E4M3, CAST_SITE, 0);
    ck_assert_int_eq(backend_apply(rig.q, &update, &rig.f), 0);
    ck_assert_int_eq(backend_gemm(rig.q, &(struct gemm){.a = t, .b = w, .out = y}, &rig.f), 0);
    float factor = rig_export(&rig, t, code);
    ck_assert(site->scale == 448.0f / 1000.0f);
    scale_is(1.0f, 1.0f, factor, 0);
    ck_assert_uint_eq(code[0], 0x44);
    ck_assert_msg(*(float *)y.buf->host == 3.0f, "y is %a", (double)*(float *)y.buf->host);
    qtensor_unref(t);
    qtensor_unref(w);
    buffer_unref(x.buf);
    buffer_unref(y.buf);
}
END_TEST

/* A cast enqueued after an update uses the updated scale, without a wait in between. */
START_TEST(cast_sees_what_was_enqueued_before)
{
    uint8_t code[1];
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 1, (float[]){3.0f});
    *slot = (struct amax_slot){.amax = 7.0f, .casts = 1};
    struct apply_site at = {.site = site, .slot = slot, .fmt = DTYPE_F8_E4M3};
    struct apply update = {.sites = &at, .count = 1, .algo = AMAX_MOST_RECENT};
    ck_assert_int_eq(backend_apply(rig.q, &update, &rig.f), 0);
    struct qtensor *t = enqueue(&x, DTYPE_F8_E4M3, CAST_SITE, 0);
    float factor = rig_export(&rig, t, code);
    scale_is(64.0f, 0x1p-6f, factor, 0);
    ck_assert_uint_eq(code[0], 0x74);
    qtensor_unref(t);
    buffer_unref(x.buf);
}
END_TEST

static void add(Suite *s, const char *name, void (*set)(void))
{
    TCase *c = tcase_create(name);
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, set, teardown);
    tcase_add_test(c, cast_counts_e4m3);
    tcase_add_test(c, cast_counts_e5m2);
    tcase_add_test(c, cast_counts_overflow_by_the_scale);
    tcase_add_test(c, cast_reads_16_bit_inputs);
    tcase_add_test(c, cast_amax_leaves_padding_out);
    tcase_add_test(c, cast_counts_over_all_threads);
    tcase_add_test(c, cast_site_takes_the_sites_scale);
    tcase_add_test(c, cast_site_or_tensor_falls_back_while_unset);
    tcase_add_test(c, cast_tensor_takes_its_own_amax);
    tcase_add_test(c, cast_keeps_its_snapshot);
    tcase_add_test(c, cast_sees_what_was_enqueued_before);
    suite_add_tcase(s, c);
}

int main(void)
{
    Suite *s = suite_create("cpu_cast");
    add(s, "inline", setup_inline);
    add(s, "threads", setup_threads);
    return run_suite(s);
}
