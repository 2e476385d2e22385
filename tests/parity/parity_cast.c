/* Casts, measurements and dequantised values: the same bits on both backends. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"

/* --- what a row of the table is --- */

enum how { HOW_SITE, HOW_SITE_SET, HOW_EVAL, HOW_EVAL_SET, HOW_TENSOR, HOWS };

struct row {
    enum dtype src, fmt;
    enum how how;
    int margin;
    bool second; /* the transposed codes as well */
};

static enum cast_scale mode_of(enum how h)
{
    return h == HOW_TENSOR ? CAST_TENSOR : h >= HOW_EVAL ? CAST_SITE_OR_TENSOR : CAST_SITE;
}

/* A site in host memory of either backend, and a report behind it. */
struct place {
    struct buffer *buf;
    struct scaler *site;
    struct cast_report *report;
};

static struct place place_new(struct rig *r, enum how how)
{
    struct place p = {.buf = rig_buffer(r, scaler_bytes(4) + sizeof(struct cast_report), NULL)};
    p.site = p.buf->host;
    p.report = (struct cast_report *)(void *)((char *)p.buf->host + scaler_bytes(4));
    memset(p.report, POISON, sizeof *p.report);
    scaler_init(p.site, 4);
    if (how == HOW_SITE_SET || how == HOW_EVAL_SET) {
        p.site->set = 1;
        p.site->scale = 27.3f;
        p.site->scale_inv = 0x1.2c1e6p-5f; /* not 1/scale: kept verbatim */
    }
    return p;
}

/* --- helpers --- */

static struct qtensor *cast_on(struct rig *r, const struct tensor *x, const struct row *row,
                               const struct place *p)
{
    struct qtensor *t = NULL;
    struct cast c = {.src = *x,
                     .fmt = row->fmt,
                     .mode = mode_of(row->how),
                     .margin = row->margin,
                     .site = row->how == HOW_TENSOR ? NULL : p->site,
                     .report = p->report,
                     .transposed = row->second};
    ck_assert_msg(!qtensor_cast(r->q, NULL, &c, "x", &t, &r->f), "%s", r->f.text);
    return t;
}

static void same_bytes(const void *a, const void *b, uint64_t n, const char *what,
                       const struct tensor *x, const struct row *row)
{
    const uint8_t *p = a, *q = b;
    if (!memcmp(a, b, n))
        return;
    uint64_t i = 0;
    while (p[i] == q[i])
        i++;
    ck_abort_msg("%s of [%lu, %lu] %s to %s, mode %d: byte %lu is %02x on the CPU, %02x on the GPU",
                 what, x->rows, x->cols, dtype_name(x->dtype), dtype_name(row->fmt), (int)row->how,
                 i, p[i], q[i]);
}

static void same_dequantized(struct qtensor *c, struct qtensor *g, enum dtype out,
                             const struct tensor *x, const struct row *row)
{
    uint64_t bytes = x->rows * x->cols * (dtype_bits(out) / 8);
    struct tensor y = rig_tensor(&both.cpu, out, x->rows, x->cols, NULL), z = y;
    void *got = malloc(bytes + 1);
    z.buf = gpu_poisoned(bytes);
    ck_assert_int_eq(qtensor_dequantize(both.cpu.q, c, &y, &both.cpu.f), 0);
    ck_assert_int_eq(qtensor_dequantize(both.gpu.q, g, &z, &both.gpu.f), 0);
    rig_wait(&both.cpu);
    gpu_read(z.buf, 0, got, bytes);
    same_bytes(y.buf->host, got, bytes, "dequantising", x, row);
    free(got);
    buffer_unref(y.buf);
    buffer_unref(z.buf);
}

/* Everything that a tensor holds, taken out of it. */
struct held {
    uint8_t *codes, *second;
    float factor;
    uint64_t pitch;
};

static void held_cb(void *arg, const struct qtensor_view *view)
{
    struct held *h = arg;
    h->factor = *view->scale_inv;
    h->pitch = view->pitch;
    memcpy(h->codes, view->codes, view->info.rows * view->info.cols);
    if (view->transposed)
        memcpy(h->second, view->transposed, view->info.cols * view->pitch);
}

static struct held held_new(struct rig *r, struct qtensor *t, uint64_t rows, uint64_t cols)
{
    struct held h = {malloc(rows * cols + 1), malloc((rows + 15) / 16 * 16 * cols + 1), 0, 0};
    ck_assert_msg(!qtensor_export(r->q, t, held_cb, &h, &r->f), "%s", r->f.text);
    rig_wait(r);
    return h;
}

static void held_free(struct held *h)
{
    free(h->codes);
    free(h->second);
}

/* What the cast of a tensor takes, as the next allocation. */
static uint64_t room_of(const struct tensor *x, bool second)
{
    uint64_t one = (x->rows * x->cols + 63) / 64 * 64 + sizeof(float);
    return second ? (one + 255) / 256 * 256 + (x->rows + 15) / 16 * 16 * x->cols : one;
}

/* Codes in both forms, factor, report and what comes back out of both. */
static void same_cast(const struct pair *x, const struct row *row, bool dequantize)
{
    uint64_t n = x->cpu.rows * x->cpu.cols;
    struct place pc = place_new(&both.cpu, row->how), pg = place_new(&both.gpu, row->how);
    gpu_poison_next(room_of(&x->cpu, row->second));
    struct qtensor *c = cast_on(&both.cpu, &x->cpu, row, &pc);
    struct qtensor *g = cast_on(&both.gpu, &x->gpu, row, &pg);
    struct held a = held_new(&both.cpu, c, x->cpu.rows, x->cpu.cols);
    struct held b = held_new(&both.gpu, g, x->cpu.rows, x->cpu.cols);
    same_bytes(a.codes, b.codes, n, "codes", &x->cpu, row);
    same_bytes(&a.factor, &b.factor, sizeof a.factor, "the factor", &x->cpu, row);
    same_bytes(pc.report, pg.report, sizeof *pc.report, "the report", &x->cpu, row);
    ck_assert_uint_eq(a.pitch, b.pitch);
    same_bytes(a.second, b.second, a.pitch * x->cpu.cols, "the second form", &x->cpu, row);
    for (int t = DTYPE_F32; dequantize && t <= DTYPE_F16; t++)
        same_dequantized(c, g, (enum dtype)t, &x->cpu, row);
    held_free(&a);
    held_free(&b);
    qtensor_unref(c);
    qtensor_unref(g);
    buffer_unref(pc.buf);
    buffer_unref(pg.buf);
}

static void same_measure(const struct pair *x)
{
    struct place pc = place_new(&both.cpu, HOW_SITE), pg = place_new(&both.gpu, HOW_SITE);
    struct row row = {.fmt = DTYPE_NONE};
    ck_assert_int_eq(backend_measure(both.cpu.q, &x->cpu, pc.report, &both.cpu.f), 0);
    ck_assert_int_eq(backend_measure(both.gpu.q, &x->gpu, pg.report, &both.gpu.f), 0);
    rig_wait(&both.cpu);
    rig_wait(&both.gpu);
    same_bytes(pc.report, pg.report, sizeof *pc.report, "the measurement", &x->cpu, &row);
    buffer_unref(pc.buf);
    buffer_unref(pg.buf);
}

/* Every format and mode of one tensor; large ones take turns. */
static void same_all(const struct pair *x, uint64_t turn)
{
    static const int margins[] = {0, 3, 31, 0, 1};
    bool large = x->cpu.rows * x->cpu.cols > 1u << 22;
    for (int i = 0; i < 2 * HOWS; i++) {
        struct row row = {.src = x->cpu.dtype,
                          .fmt = i % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3,
                          .how = (enum how)(i / 2),
                          .margin = margins[i / 2],
                          .second = (turn + (uint64_t)i / 2) % 2 == 0};
        if (!large || (uint64_t)i % 5 == turn % 5)
            same_cast(x, &row, i < 2 && (!large || turn % 2));
    }
    same_measure(x);
}

/* --- cases --- */

/* Tokens x features x source dtype x format x mode, tame and wild, aligned and not. */
START_TEST(parity_casts)
{
    enum dtype t = (enum dtype)(DTYPE_F32 + _i % 3);
    enum data kind = (enum data)(_i / 3);
    uint64_t most = rig_small() ? 100 * 1008 : 4096 * 14336, turn = (uint64_t)_i, tensors = 0;
    void *data = malloc(most * (dtype_bits(t) / 8));
    ck_assert_ptr_nonnull(data);
    both_fill(data, t, most, kind, 77 + (uint64_t)_i);
    for (int m = 0; m < 6; m++)
        for (int k = 0; k < 6; k++) {
            if (!both_takes(both_tokens[m], both_features[k]))
                continue;
            /* Odd starts of the data as well; the GPU's tensor begins 1 element in at times. */
            uint64_t shift = both_tokens[m] < 4096 ? (uint64_t)(m + k) % 2 : 0;
            struct pair x = both_tensor(t, both_tokens[m], both_features[k], data, shift);
            same_all(&x, turn++);
            pair_free(&x);
            tensors++;
        }
    (void)fprintf(stderr, "casts of %s, %s: %lu tensors, bit for bit\n", dtype_name(t),
                  kind == DATA_WILD ? "wild" : "tame", tensors);
    free(data);
}
END_TEST

/* Widths that are no multiple of a packet, and every alignment of the source. */
START_TEST(parity_casts_of_odd_sizes)
{
    enum dtype t = (enum dtype)(DTYPE_F32 + _i);
    uint8_t data[4 * 4099];
    both_fill(data, t, 4099, DATA_WILD, 5);
    for (uint64_t cols = 1; cols < 4099; cols += cols < 40 ? 1 : 507)
        for (uint64_t shift = 0; shift < 9; shift += 4 + cols % 2) {
            struct pair x = both_tensor(t, 1, cols, data, shift);
            same_all(&x, cols);
            pair_free(&x);
        }
}
END_TEST

/* A tensor turned as a whole: the same codes and factor, sizes that fill no tile among them. */
START_TEST(parity_transposes)
{
    static const uint64_t sizes[][2] = {{1, 1},     {7, 48},     {16, 16},     {100, 1008},
                                        {129, 257}, {768, 1000}, {1008, 1024}, {4096, 14336}};
    uint64_t rows = sizes[_i][0], cols = sizes[_i][1], n = rows * cols;
    struct row row = {.fmt = DTYPE_F8_E4M3};
    struct tensor shape = {.rows = rows, .cols = cols};
    uint8_t *codes = malloc(n);
    if (!both_takes(rows, cols)) {
        free(codes);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)both_hash(9, i);
    struct qtensor *c = rig_adopt(&both.cpu, row.fmt, rows, cols, codes, 0.37f), *ct = NULL;
    struct qtensor *g = rig_adopt(&both.gpu, row.fmt, rows, cols, codes, 0.37f), *gt = NULL;
    gpu_poison_next(room_of(&shape, false));
    ck_assert_int_eq(qtensor_transpose(both.cpu.q, NULL, c, "t", &ct, &both.cpu.f), 0);
    ck_assert_int_eq(qtensor_transpose(both.gpu.q, NULL, g, "t", &gt, &both.gpu.f), 0);
    struct held a = held_new(&both.cpu, ct, cols, rows), b = held_new(&both.gpu, gt, cols, rows);
    same_bytes(a.codes, b.codes, n, "transposed codes", &shape, &row);
    ck_assert(a.factor == 0.37f && b.factor == 0.37f);
    held_free(&a);
    held_free(&b);
    qtensor_unref(c);
    qtensor_unref(ct);
    qtensor_unref(g);
    qtensor_unref(gt);
    free(codes);
}
END_TEST

/* All 2^16 inputs of a 16-bit dtype at scales from the least to the largest. */
START_TEST(parity_casts_of_every_16_bit_input)
{
    enum dtype t = (enum dtype)(DTYPE_BF16 + _i);
    static const float scales[] = {1.0f,      0x1p-20f, 0x1p20f, 0.3f,     448.0f / 3.1f,
                                   0x1p-126f, 0x1p127f, 1e-30f,  1234.56f, FP8_FLT_MAX};
    uint16_t *data = malloc(65536 * sizeof *data);
    for (uint32_t i = 0; i < 65536; i++)
        data[i] = (uint16_t)i;
    struct pair x = both_tensor(t, 64, 1024, data, 0);
    for (unsigned i = 0; i < 2 * sizeof scales / sizeof scales[0]; i++) {
        struct row row = {.src = t, .fmt = i % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3};
        struct place pc = place_new(&both.cpu, HOW_SITE), pg = place_new(&both.gpu, HOW_SITE);
        uint8_t a[65536], b[65536];
        pc.site->scale = pg.site->scale = scales[i / 2];
        struct qtensor *c = cast_on(&both.cpu, &x.cpu, &row, &pc);
        struct qtensor *g = cast_on(&both.gpu, &x.gpu, &row, &pg);
        (void)rig_export(&both.cpu, c, a);
        (void)rig_export(&both.gpu, g, b);
        same_bytes(a, b, sizeof a, "codes", &x.cpu, &row);
        same_bytes(pc.report, pg.report, sizeof *pc.report, "the report", &x.cpu, &row);
        qtensor_unref(c);
        qtensor_unref(g);
        buffer_unref(pc.buf);
        buffer_unref(pg.buf);
    }
    pair_free(&x);
    free(data);
}
END_TEST

/* Every code of both formats with factors at the ends of float32. */
START_TEST(parity_dequantizes_every_code)
{
    static const float factors[] = {1.0f, 0.75f, 0x1p-128f, 0x1.fffffep-110f, 1e30f, FP8_FLT_MAX};
    uint8_t codes[256];
    struct row row = {.fmt = _i ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3};
    struct tensor shape = {.rows = 1, .cols = 256};
    for (unsigned i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (unsigned i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        struct qtensor *c = rig_adopt(&both.cpu, row.fmt, 1, 256, codes, factors[i]);
        struct qtensor *g = rig_adopt(&both.gpu, row.fmt, 1, 256, codes, factors[i]);
        for (int t = DTYPE_F32; t <= DTYPE_F16; t++)
            same_dequantized(c, g, (enum dtype)t, &shape, &row);
        qtensor_unref(c);
        qtensor_unref(g);
    }
}
END_TEST

TCase *parity_cast_case(void)
{
    TCase *c = tcase_create("cast");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, both_setup, both_teardown);
    tcase_add_loop_test(c, parity_casts, 0, 6);
    tcase_add_loop_test(c, parity_casts_of_odd_sizes, 0, 3);
    tcase_add_loop_test(c, parity_casts_of_every_16_bit_input, 0, 2);
    tcase_add_loop_test(c, parity_transposes, 0, 8);
    tcase_add_loop_test(c, parity_dequantizes_every_code, 0, 2);
    return c;
}
