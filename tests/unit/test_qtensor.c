/* qtensor.h: born whole, counted, exported whole, and dequantised by the factor it carries. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <math.h>

/* --- fixture --- */

static struct rig rig;
static struct cast_report *report;
static struct buffer *report_buf;

static void setup(bool is_inline)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, is_inline);
    report_buf = rig_buffer(&rig, sizeof *report, NULL);
    report = report_buf->host;
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
    buffer_unref(report_buf);
    rig_close(&rig);
}

/* --- helpers --- */

static struct cast cast_of(const struct tensor *src)
{
    return (struct cast){.src = *src, .fmt = DTYPE_F8_E4M3, .mode = CAST_TENSOR, .report = report};
}

static void refused(int rc, const char *sentence)
{
    ck_assert_int_eq(rc, FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(rig.f.text, sentence) != NULL, "\"%s\" is not in \"%s\"", sentence,
                  rig.f.text);
}

static int adopt(enum dtype fmt, uint64_t rows, uint64_t cols, struct buffer *from, uint64_t at,
                 float factor, struct qtensor **t)
{
    return qtensor_adopt(rig.q, NULL, fmt, rows, cols, from, at, factor, "w", t, &rig.f);
}

/* --- cases --- */

/* Adopted bytes and factor leave together, unchanged, with the shape they came in. */
START_TEST(qtensor_export_gives_bytes_and_factor)
{
    uint8_t codes[6] = {0x00, 0x38, 0x80, 0xfe, 0x7f, 0x01}, got[6];
    struct qtensor *t = rig_adopt(&rig, DTYPE_F8_E4M3, 2, 3, codes, 0x1.fffffep-60f);
    float factor = rig_export(&rig, t, got);
    struct qtensor_info info = qtensor_info(t);
    ck_assert_mem_eq(got, codes, 6);
    ck_assert(factor == 0x1.fffffep-60f);
    ck_assert(info.fmt == DTYPE_F8_E4M3 && info.rows == 2 && info.cols == 3);
    ck_assert_int_eq(info.granularity, GRANULARITY_TENSOR);
    ck_assert_uint_ge(info.bytes, 6 + sizeof(float));
    qtensor_unref(t);
}
END_TEST

/* The codes may start anywhere in the buffer, and changing the buffer later changes nothing. */
START_TEST(qtensor_adopt_copies_from_an_offset)
{
    uint8_t got[4];
    struct qtensor *t = NULL;
    struct buffer *from = rig_buffer(&rig, 7, (uint8_t[]){1, 2, 3, 4, 5, 6, 7});
    ck_assert_int_eq(adopt(DTYPE_F8_E5M2, 2, 2, from, 3, 1.0f, &t), 0);
    rig_wait(&rig);
    memset(from->host, 0, 7);
    (void)rig_export(&rig, t, got);
    ck_assert_mem_eq(got, ((uint8_t[]){4, 5, 6, 7}), 4);
    qtensor_unref(t);
    buffer_unref(from);
}
END_TEST

/* A buffer that is given away becomes the tensor: no copy, and no second memory. One that somebody
 * else holds, or of another size, is refused and stays the caller's. */
START_TEST(qtensor_adopt_buffer_takes_it)
{
    uint8_t codes[6] = {0x00, 0x38, 0x80, 0xfe, 0x7f, 0x01}, got[6];
    struct qtensor *t = NULL;
    struct buffer *b = NULL;
    struct ledger l;
    ledger_init(&l, 4096);
    ck_assert_int_eq(buffer_new(rig.b, &l, BUFFER_DEVICE, qtensor_room(2, 3), "w", &b, &rig.f), 0);
    struct buffer *from = rig_buffer(&rig, 6, codes);
    ck_assert_int_eq(backend_copy(rig.q, b, 0, from, 0, 6, &rig.f), 0);
    buffer_ref(b);
    refused(qtensor_adopt_buffer(rig.q, DTYPE_F8_E4M3, 2, 3, b, 0.5f, &t, &rig.f), "held 2 times");
    buffer_unref(b);
    refused(qtensor_adopt_buffer(rig.q, DTYPE_F8_E4M3, 4, 17, b, 0.5f, &t, &rig.f), "adopt.codes");
    refused(qtensor_adopt_buffer(rig.q, DTYPE_F8_E4M3, 2, 3, b, 0.0f, &t, &rig.f),
            "adopt.scale_inv is 0");
    ck_assert_int_eq(qtensor_adopt_buffer(rig.q, DTYPE_F8_E4M3, 2, 3, b, 0.3f, &t, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_uint_eq(ledger_used(&l), qtensor_info(t).bytes);
    buffer_unref(from);
    ck_assert(rig_export(&rig, t, got) == 0.3f);
    ck_assert_mem_eq(got, codes, 6);
    qtensor_unref(t);
    ck_assert_uint_eq(ledger_used(&l), 0);
    ck_assert_uint_eq(qtensor_room(UINT64_MAX, 2), UINT64_MAX);
}
END_TEST

/* A factor is finite and at least 2^-128; the bytes lie inside the buffer; no tensor otherwise. */
START_TEST(qtensor_adopt_refuses_bad_input)
{
    struct qtensor *t = NULL;
    struct buffer *from = rig_buffer(&rig, 16, (uint8_t[16]){0});
    const float bad[] = {0.0f, -1.0f, 0x1.fffffp-129f, (float)INFINITY, (float)NAN};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(adopt(DTYPE_F8_E4M3, 4, 4, from, 0, bad[i], &t), "adopt.scale_inv is");
    refused(adopt(DTYPE_F8_E4M3, 4, 4, from, 1, 1.0f, &t), "adopt.bytes is 16 bytes at offset 1");
    refused(adopt(DTYPE_BF16, 4, 4, from, 0, 1.0f, &t), "adopt.fmt is BF16");
    refused(adopt(DTYPE_F8_E4M3, 4, 0, from, 0, 1.0f, &t), "adopt.cols is 0");
    refused(adopt(DTYPE_F8_E4M3, UINT64_MAX, 2, from, 0, 1.0f, &t), "fewer than 2^64");
    refused(adopt(DTYPE_F8_E4M3, 4, 4, NULL, 0, 1.0f, &t), "adopt.bytes has no buffer");
    ck_assert_ptr_null(t);
    ck_assert_int_eq(adopt(DTYPE_F8_E4M3, 4, 4, from, 0, 0x1p-128f, &t), 0);
    rig_wait(&rig);
    qtensor_unref(t);
    buffer_unref(from);
}
END_TEST

/* A cast has a mode, a margin in range, an FP8 format, a report, and a site where it reads one. */
START_TEST(qtensor_cast_refuses_bad_input)
{
    struct qtensor *t = NULL;
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 4, (float[4]){0});
    struct cast c = cast_of(&x);
    c.mode = CAST_SITE;
    refused(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.site is missing");
    c.mode = (enum cast_scale)0;
    refused(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.mode is 0");
    c = cast_of(&x);
    c.margin = -1;
    refused(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.margin is -1");
    c = cast_of(&x);
    c.fmt = DTYPE_F16;
    refused(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.fmt is F16");
    c = cast_of(&x);
    c.report = NULL;
    refused(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.report is missing");
    c = cast_of(&x);
    c.src.rows = 2;
    refused(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.src is 32 bytes");
    ck_assert_ptr_null(t);
    buffer_unref(x.buf);
}
END_TEST

/* The other calls refuse what is missing and shapes that differ. */
START_TEST(qtensor_calls_refuse_bad_input)
{
    struct qtensor *t = rig_adopt(&rig, DTYPE_F8_E4M3, 2, 2, (uint8_t[4]){0}, 1.0f);
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 2, 3, NULL);
    refused(qtensor_export(rig.q, t, NULL, NULL, &rig.f), "export.cb is missing");
    refused(qtensor_export(rig.q, NULL, rig_view_cb, NULL, &rig.f), "export.tensor is missing");
    refused(qtensor_dequantize(rig.q, t, &y, &rig.f), "dequantize.out.cols is 3, needed 2");
    y.rows = 1;
    y.cols = 2;
    refused(qtensor_dequantize(rig.q, t, &y, &rig.f), "dequantize.out.rows is 1, needed 2");
    refused(qtensor_dequantize(rig.q, NULL, &y, &rig.f), "dequantize.tensor is missing");
    buffer_unref(y.buf);
    qtensor_unref(t);
}
END_TEST

/* Dequantising is code times factor, rounded once: E4M3 0x39 = 1.125, 0x01 = 2^-9, 0x7e = 448. */
START_TEST(qtensor_dequantize_multiplies_by_its_factor)
{
    const uint8_t codes[5] = {0x39, 0x01, 0xfe, 0x80, 0x7f};
    const uint32_t f32[5] = {0x3f580000, 0x3ac00000, 0xc3a80000, 0x80000000, 0x7fc00000};
    const uint16_t bf16[5] = {0x3f58, 0x3ac0, 0xc3a8, 0x8000, 0x7fc0};
    const uint16_t f16[5] = {0x3ac0, 0x1600, 0xdd40, 0x8000, 0x7e00};
    struct qtensor *t = rig_adopt(&rig, DTYPE_F8_E4M3, 1, 5, codes, 0.75f);
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 5, NULL);
    ck_assert_int_eq(qtensor_dequantize(rig.q, t, &x, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(x.buf->host, f32, sizeof f32);
    x.dtype = DTYPE_BF16;
    ck_assert_int_eq(qtensor_dequantize(rig.q, t, &x, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(x.buf->host, bf16, sizeof bf16);
    x.dtype = DTYPE_F16;
    ck_assert_int_eq(qtensor_dequantize(rig.q, t, &x, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(x.buf->host, f16, sizeof f16);
    buffer_unref(x.buf);
    qtensor_unref(t);
}
END_TEST

/* E5M2 keeps its infinities, and a NaN of either sign becomes the one quiet NaN. */
START_TEST(qtensor_dequantize_keeps_e5m2_specials)
{
    const uint8_t codes[6] = {0x7c, 0xfc, 0x7d, 0xff, 0x01, 0x7b};
    const uint32_t want[6] = {0x7f800000, 0xff800000, 0x7fc00000,
                              0x7fc00000, 0x37800000, 0x47600000};
    struct qtensor *t = rig_adopt(&rig, DTYPE_F8_E5M2, 2, 3, codes, 1.0f);
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 2, 3, NULL);
    ck_assert_int_eq(qtensor_dequantize(rig.q, t, &x, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(x.buf->host, want, sizeof want);
    buffer_unref(x.buf);
    qtensor_unref(t);
}
END_TEST

/* Memory goes with the last reference. */
START_TEST(qtensor_lives_until_the_last_reference)
{
    uint8_t got[4];
    int64_t blocks = mem_live_blocks();
    struct qtensor *t = rig_adopt(&rig, DTYPE_F8_E4M3, 2, 2, (uint8_t[]){9, 8, 7, 6}, 1.0f);
    ck_assert_ptr_eq(qtensor_ref(t), t);
    qtensor_unref(t);
    (void)rig_export(&rig, t, got);
    ck_assert_mem_eq(got, ((uint8_t[]){9, 8, 7, 6}), 4);
    qtensor_unref(t);
    qtensor_unref(NULL);
    ck_assert_int_eq(mem_live_blocks(), blocks);
}
END_TEST

/* Each allocation of a cast and of an adoption fails once: clean error, nothing left. */
START_TEST(qtensor_survives_each_failed_allocation)
{
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 2, 2, (float[]){1, 2, 3, 4});
    struct cast c = cast_of(&x);
    struct ledger l;
    int64_t blocks = mem_live_blocks();
    ledger_init(&l, 1u << 20);
    for (int n = 0, more = 1; more; n++) {
        struct qtensor *t = NULL;
        mem_fault_arm(n, false);
        int rc =
            _i & 1 ? qtensor_cast(rig.q, &l, &c, "x", &t, &rig.f)
                   : qtensor_adopt(rig.q, &l, DTYPE_F8_E4M3, 4, 4, x.buf, 0, 1.0f, "x", &t, &rig.f);
        more = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert_int_eq(rc, more ? FP8D_ERESOURCE_EXHAUSTED : 0);
        ck_assert_int_eq(t == NULL, more);
        rig_wait(&rig);
        qtensor_unref(t);
        ck_assert_int_eq(mem_live_blocks(), blocks);
        ck_assert_uint_eq(ledger_used(&l), 0);
        ck_assert_int_le(n, 4);
    }
    buffer_unref(x.buf);
}
END_TEST

/* Every test runs with an inline queue and with threads. */
static void add(TCase *c)
{
    tcase_add_test(c, qtensor_export_gives_bytes_and_factor);
    tcase_add_test(c, qtensor_adopt_copies_from_an_offset);
    tcase_add_test(c, qtensor_adopt_buffer_takes_it);
    tcase_add_test(c, qtensor_adopt_refuses_bad_input);
    tcase_add_test(c, qtensor_cast_refuses_bad_input);
    tcase_add_test(c, qtensor_calls_refuse_bad_input);
    tcase_add_test(c, qtensor_dequantize_multiplies_by_its_factor);
    tcase_add_test(c, qtensor_dequantize_keeps_e5m2_specials);
    tcase_add_test(c, qtensor_lives_until_the_last_reference);
    tcase_add_loop_test(c, qtensor_survives_each_failed_allocation, 0, 2);
}

int main(void)
{
    Suite *s = suite_create("qtensor");
    TCase *c = tcase_create("inline"), *d = tcase_create("threads");
    tcase_add_checked_fixture(c, setup_inline, teardown);
    tcase_add_checked_fixture(d, setup_threads, teardown);
    add(c);
    add(d);
    suite_add_tcase(s, c);
    suite_add_tcase(s, d);
    return run_suite(s);
}
