/* backend.h: what the front functions refuse, and the sentence that names the field. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

/* --- fixture: a [4, 32] times [8, 32] GEMM that is well --- */

static struct rig rig, other;
static struct qtensor *a8, *b8;
static struct tensor a, b, bias, out;

static void setup(void)
{
    uint8_t codes[8 * 32] = {0};
    rig_open(&rig, CPU_LEVEL_AUTO, 1, true);
    rig_open(&other, CPU_LEVEL_AUTO, 1, true);
    a8 = rig_adopt(&rig, DTYPE_F8_E4M3, 4, 32, codes, 1.0f);
    b8 = rig_adopt(&rig, DTYPE_F8_E4M3, 8, 32, codes, 1.0f);
    a = rig_tensor(&rig, DTYPE_F32, 4, 32, NULL);
    b = rig_tensor(&rig, DTYPE_BF16, 8, 32, NULL);
    memset(a.buf->host, 0, a.buf->bytes);
    memset(b.buf->host, 0, b.buf->bytes);
    bias = rig_tensor(&rig, DTYPE_F32, 1, 8, NULL);
    memset(bias.buf->host, 0, bias.buf->bytes);
    out = rig_tensor(&rig, DTYPE_F32, 4, 8, NULL);
}

static void teardown(void)
{
    rig_wait(&rig);
    qtensor_unref(a8);
    qtensor_unref(b8);
    buffer_unref(a.buf);
    buffer_unref(b.buf);
    buffer_unref(bias.buf);
    buffer_unref(out.buf);
    rig_close(&other);
    rig_close(&rig);
}

/* --- helpers --- */

static void refused(int rc, const char *sentence)
{
    ck_assert_int_eq(rc, FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(rig.f.text, sentence) != NULL, "\"%s\" is not in \"%s\"", sentence,
                  rig.f.text);
}

static int high(const struct tensor *x, const struct tensor *w, const struct tensor *add,
                const struct tensor *y)
{
    return backend_gemm_high(rig.q, &(struct gemm_high){.a = *x, .b = *w, .bias = add, .out = *y},
                             &rig.f);
}

static int fp8(const struct qtensor *x, const struct qtensor *w, const struct tensor *add,
               const struct tensor *y)
{
    return backend_gemm(rig.q, &(struct gemm){.a = x, .b = w, .bias = add, .out = *y}, &rig.f);
}

/* --- cases --- */

/* The good GEMMs of the fixture pass: what is refused below is refused for its one fault. */
START_TEST(backend_accepts_good_gemms)
{
    ck_assert_int_eq(high(&a, &b, &bias, &out), 0);
    ck_assert_int_eq(fp8(a8, b8, &bias, &out), 0);
    ck_assert_int_eq(fp8(a8, b8, NULL, &out), 0);
}
END_TEST

/* A shape that does not fit is refused under the name of its dimension. */
START_TEST(backend_names_the_wrong_dimension)
{
    struct tensor w = b, y = out, add = bias;
    w.cols = 16;
    refused(high(&a, &w, NULL, &out), "gemm.b.cols (k) is 16, needed 32");
    y.rows = 3;
    refused(high(&a, &b, NULL, &y), "gemm.out.rows (m) is 3, needed 4");
    refused(fp8(a8, b8, NULL, &y), "gemm.out.rows (m) is 3, needed 4");
    y.rows = 4;
    y.cols = 7;
    refused(fp8(a8, b8, NULL, &y), "gemm.out.cols (n) is 7, needed 8");
    add.cols = 7;
    refused(fp8(a8, b8, &add, &out), "gemm.bias.cols (n) is 7, needed 8");
    add = bias;
    add.rows = 2;
    add.cols = 4;
    refused(fp8(a8, b8, &add, &out), "gemm.bias.rows is 2, needed 1");
}
END_TEST

/* The k of two FP8 operands is compared as well. */
START_TEST(backend_compares_k_of_fp8)
{
    uint8_t codes[8 * 16] = {0};
    struct qtensor *w = rig_adopt(&rig, DTYPE_F8_E4M3, 8, 16, codes, 1.0f);
    refused(fp8(a8, w, NULL, &out), "gemm.b.cols (k) is 16, needed 32");
    qtensor_unref(w);
}
END_TEST

/* High precision means F32, BF16 or F16; nothing else is read or written. */
START_TEST(backend_refuses_other_dtypes)
{
    struct tensor x = a, y = out;
    x.dtype = DTYPE_F64;
    refused(high(&x, &b, NULL, &out), "gemm.a.dtype is F64, needed F32, BF16 or F16");
    y.dtype = DTYPE_F8_E4M3;
    refused(fp8(a8, b8, NULL, &y), "gemm.out.dtype is F8_E4M3, needed F32, BF16 or F16");
    x.dtype = DTYPE_NONE;
    refused(high(&x, &b, NULL, &out), "gemm.a.dtype is ?");
}
END_TEST

/* E5M2 times E5M2 does not exist. */
START_TEST(backend_refuses_two_e5m2)
{
    uint8_t codes[8 * 32] = {0};
    struct qtensor *x = rig_adopt(&rig, DTYPE_F8_E5M2, 4, 32, codes, 1.0f);
    struct qtensor *w = rig_adopt(&rig, DTYPE_F8_E5M2, 8, 32, codes, 1.0f);
    refused(fp8(x, w, NULL, &out), "both F8_E5M2");
    ck_assert_int_eq(fp8(x, b8, NULL, &out), 0);
    ck_assert_int_eq(fp8(a8, w, NULL, &out), 0);
    rig_wait(&rig); /* what is enqueued reads them */
    qtensor_unref(x);
    qtensor_unref(w);
}
END_TEST

/* A tensor must lie inside its buffer, element-aligned, with sizes that do not wrap. */
START_TEST(backend_checks_ranges)
{
    struct tensor x = a;
    x.offset = 4;
    refused(high(&x, &b, NULL, &out), "gemm.a is 512 bytes at offset 4, needed to end within");
    x.offset = 2;
    refused(high(&x, &b, NULL, &out), "gemm.a.offset is 2, needed a multiple of 4");
    x.offset = UINT64_MAX - 3;
    refused(high(&x, &b, NULL, &out), "needed to end within");
    x = a;
    x.rows = UINT64_MAX;
    refused(high(&x, &b, NULL, &out), "needed fewer than 2^64 bits");
    x.rows = (uint64_t)1 << 58;
    refused(high(&x, &b, NULL, &out), "needed fewer than 2^64 bits");
}
END_TEST

/* NULL and zero columns are refused by name. */
START_TEST(backend_refuses_what_is_missing)
{
    struct tensor x = a;
    x.buf = NULL;
    refused(high(&x, &b, NULL, &out), "gemm.a has no buffer");
    x = a;
    x.cols = 0;
    refused(high(&x, &b, NULL, &out), "gemm.a.cols is 0, needed at least 1");
    refused(fp8(NULL, b8, NULL, &out), "gemm.a is missing");
    refused(fp8(a8, NULL, NULL, &out), "gemm.b is missing");
    refused(backend_measure(rig.q, &a, NULL, &rig.f), "measure.report is missing");
    refused(backend_measure(rig.q, NULL, &(struct cast_report){0}, &rig.f),
            "measure.tensor is missing");
    refused(backend_compare(rig.q, &a, &a, NULL, &rig.f), "compare.report is missing");
}
END_TEST

/* Memory of another backend is not this one's to touch. */
START_TEST(backend_refuses_foreign_memory)
{
    struct tensor x = rig_tensor(&other, DTYPE_F32, 4, 32, NULL);
    struct qtensor *w = rig_adopt(&other, DTYPE_F8_E4M3, 8, 32, (uint8_t[8 * 32]){0}, 1.0f);
    refused(high(&x, &b, NULL, &out), "gemm.a is memory of another backend");
    refused(fp8(a8, w, NULL, &out), "gemm.b is memory of another backend");
    refused(backend_copy(rig.q, out.buf, 0, x.buf, 0, 4, &rig.f), "copy.src is memory of another");
    qtensor_unref(w);
    buffer_unref(x.buf);
}
END_TEST

/* Copies stay within both buffers and do not overlap themselves. */
START_TEST(backend_checks_copies)
{
    refused(backend_copy(rig.q, out.buf, 0, a.buf, 0, 129, &rig.f), "copy.dst is 129 bytes");
    refused(backend_copy(rig.q, a.buf, 0, out.buf, 100, 29, &rig.f), "copy.src is 29 bytes");
    refused(backend_copy(rig.q, a.buf, 8, a.buf, 0, 9, &rig.f), "overlaps");
    ck_assert_int_eq(backend_copy(rig.q, a.buf, 8, a.buf, 0, 8, &rig.f), 0);
    ck_assert_int_eq(backend_copy(rig.q, out.buf, 128, a.buf, 0, 0, &rig.f), 0);
}
END_TEST

/* An apply has an algorithm, a margin in range, an FP8 format and a site for each entry. */
START_TEST(backend_checks_applies)
{
    struct buffer *memory = rig_buffer(&rig, scaler_bytes(1), NULL);
    struct scaler *s = memory->host;
    scaler_init(s, 1);
    struct apply_site site = {.site = s, .fmt = DTYPE_F8_E4M3};
    struct apply p = {.sites = &site, .count = 1, .algo = AMAX_MAX};
    ck_assert_int_eq(backend_apply(rig.q, &p, &rig.f), 0);
    p.margin = 32;
    refused(backend_apply(rig.q, &p, &rig.f), "apply.margin is 32, needed 0 to 31");
    p.margin = 0;
    p.algo = (enum amax_algo)3;
    refused(backend_apply(rig.q, &p, &rig.f), "apply.algo is 3");
    p.algo = AMAX_MAX;
    site.fmt = DTYPE_BF16;
    refused(backend_apply(rig.q, &p, &rig.f), "apply.sites.fmt is BF16");
    site.site = NULL;
    refused(backend_apply(rig.q, &p, &rig.f), "apply.sites[0].site is missing");
    p.sites = NULL;
    refused(backend_apply(rig.q, &p, &rig.f), "apply.sites is missing");
    rig_wait(&rig);
    buffer_unref(memory);
}
END_TEST

/* Both sides of a comparison have one shape. */
START_TEST(backend_compares_equal_shapes)
{
    struct compare_report report;
    refused(backend_compare(rig.q, &a, &b, &report, &rig.f), "compare.b.rows is 8, needed 4");
    struct tensor x = a;
    x.cols = 16;
    refused(backend_compare(rig.q, &a, &x, &report, &rig.f), "compare.b.cols is 16, needed 32");
}
END_TEST

/* Zero rows mean no work, everywhere; nothing is written. */
START_TEST(backend_takes_zero_rows)
{
    struct tensor x = a, y = out;
    struct buffer *memory = rig_buffer(&rig, 256, NULL);
    struct compare_report *compared = memory->host;
    struct cast_report *report = (struct cast_report *)(void *)((char *)memory->host + 128);
    *compared = (struct compare_report){.max_ref = 1};
    *report = (struct cast_report){.slot = {.amax = 1}};
    struct qtensor *none = rig_adopt(&rig, DTYPE_F8_E4M3, 0, 32, NULL, 1.0f);
    x.rows = 0;
    y.rows = 0;
    memset(out.buf->host, 0x5a, out.buf->bytes);
    ck_assert_int_eq(high(&x, &b, &bias, &y), 0);
    ck_assert_int_eq(fp8(none, b8, &bias, &y), 0);
    ck_assert_int_eq(qtensor_dequantize(rig.q, none, &x, &rig.f), 0);
    ck_assert_int_eq(backend_measure(rig.q, &x, report, &rig.f), 0);
    ck_assert_int_eq(backend_compare(rig.q, &x, &x, compared, &rig.f), 0);
    rig_wait(&rig);
    for (uint64_t i = 0; i < out.buf->bytes; i++)
        ck_assert_int_eq(((char *)out.buf->host)[i], 0x5a);
    ck_assert(report->slot.amax == 0.0f && report->slot.casts == 1 && compared->max_ref == 0.0);
    buffer_unref(memory);
    qtensor_unref(none);
}
END_TEST

/* A stamp needs a place of its own size that the device can write at once. */
START_TEST(backend_refuses_a_stamp_nowhere)
{
    struct buffer *at = rig_buffer(&rig, 16, (uint64_t[2]){1, 2});
    refused(backend_stamp(rig.q, NULL, &rig.f), "stamp.at is missing");
    refused(backend_stamp(rig.q, (uint64_t *)(void *)((char *)at->host + 3), &rig.f),
            "stamp.at is 3 bytes behind a multiple of 8, needed 0");
    rig_wait(&rig);
    ck_assert_mem_eq(at->host, ((uint64_t[2]){1, 2}), 16);
    buffer_unref(at);
}
END_TEST

static TCase *case_gemm(void)
{
    TCase *c = tcase_create("gemm");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, backend_accepts_good_gemms);
    tcase_add_test(c, backend_names_the_wrong_dimension);
    tcase_add_test(c, backend_compares_k_of_fp8);
    tcase_add_test(c, backend_refuses_other_dtypes);
    tcase_add_test(c, backend_refuses_two_e5m2);
    tcase_add_test(c, backend_checks_ranges);
    tcase_add_test(c, backend_refuses_what_is_missing);
    tcase_add_test(c, backend_refuses_foreign_memory);
    return c;
}

static TCase *case_rest(void)
{
    TCase *c = tcase_create("rest");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, backend_checks_copies);
    tcase_add_test(c, backend_checks_applies);
    tcase_add_test(c, backend_compares_equal_shapes);
    tcase_add_test(c, backend_takes_zero_rows);
    tcase_add_test(c, backend_refuses_a_stamp_nowhere);
    return c;
}

int main(void)
{
    Suite *s = suite_create("backend");
    suite_add_tcase(s, case_gemm());
    suite_add_tcase(s, case_rest());
    return run_suite(s);
}
