/* The second form of an FP8 tensor: the exact transpose, and the GEMMs that multiply it. Sums here
 * are of small whole numbers, exact in every accumulator, so that both backends give the same. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

/* --- fixture --- */

static struct rig rig;

static void setup(void)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, false);
}

static void teardown(void)
{
    rig_close(&rig);
}

/* --- helpers --- */

/* -2 to 2, by place. */
static int whole(uint64_t seed, uint64_t i)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
    return (int)((h ^ h >> 29) % 5) - 2;
}

/* What a form holds, on the host. */
struct forms {
    uint8_t codes[1 << 14], second[1 << 14];
    bool has_second;
    uint64_t pitch;
    float factor;
    struct qtensor_info info;
};

static void forms_cb(void *arg, const struct qtensor_view *view)
{
    struct forms *f = arg;
    f->info = view->info;
    f->factor = *view->scale_inv;
    f->has_second = view->transposed != NULL;
    f->pitch = view->pitch;
    memcpy(f->codes, view->codes, view->info.rows * view->info.cols);
    if (view->transposed)
        memcpy(f->second, view->transposed, view->info.cols * view->pitch);
}

static void look(struct qtensor *t, struct forms *f)
{
    ck_assert_msg(!qtensor_export(rig.q, t, forms_cb, f, &rig.f), "%s", rig.f.text);
    rig_wait(&rig);
}

/* [rows, cols] of whole numbers, cast with scale 1 (both formats have them all). */
static struct qtensor *cast_whole(enum dtype fmt, uint64_t rows, uint64_t cols, uint64_t seed,
                                  bool second)
{
    struct tensor x = rig_tensor(&rig, DTYPE_F32, rows, cols, NULL);
    struct buffer *state = rig_buffer(&rig, scaler_bytes(1) + sizeof(struct cast_report), NULL);
    struct qtensor *t = NULL;
    scaler_init(state->host, 1);
    for (uint64_t i = 0; i < rows * cols; i++)
        ((float *)x.buf->host)[i] = (float)whole(seed, i);
    struct cast c = {.src = x,
                     .fmt = fmt,
                     .mode = CAST_SITE,
                     .site = state->data,
                     .report =
                         (struct cast_report *)(void *)((char *)state->data + scaler_bytes(1)),
                     .transposed = second};
    ck_assert_msg(!qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "%s", rig.f.text);
    rig_wait(&rig);
    buffer_unref(x.buf);
    buffer_unref(state);
    return t;
}

static int run(const struct gemm *g)
{
    int rc = backend_gemm(rig.q, g, &rig.f);
    rig_wait(&rig);
    return rc;
}

static void refused(int rc, const char *sentence)
{
    ck_assert_int_eq(rc, FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(rig.f.text, sentence) != NULL, "\"%s\" is not in \"%s\"", sentence,
                  rig.f.text);
}

static const uint64_t shapes[][2] = {{1, 1},  {1, 16},   {16, 1},   {7, 48},   {16, 16},
                                     {17, 8}, {33, 100}, {100, 33}, {129, 17}, {64, 136}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

/* --- cases: what the form holds --- */

/* Code [r, c] stands at [c, r]; behind the rows, to a multiple of 16, there is code 0. */
START_TEST(forms_second_is_the_transpose)
{
    static struct forms f;
    uint64_t rows = shapes[_i][0], cols = shapes[_i][1];
    struct qtensor *t = cast_whole(DTYPE_F8_E4M3, rows, cols, 1, true);
    look(t, &f);
    ck_assert(f.has_second && f.info.transposed);
    ck_assert_uint_eq(f.pitch, (rows + 15) / 16 * 16);
    for (uint64_t c = 0; c < cols; c++)
        for (uint64_t r = 0; r < f.pitch; r++) {
            uint8_t want = r < rows ? f.codes[r * cols + c] : 0;
            ck_assert_msg(f.second[c * f.pitch + r] == want, "[%lu, %lu] of [%lu, %lu]", c, r, rows,
                          cols);
        }
    ck_assert(f.factor == 1.0f);
    qtensor_unref(t);
}
END_TEST

/* A cast that was not asked for it makes none, and takes no memory for it. */
START_TEST(forms_one_unless_asked)
{
    static struct forms f;
    struct qtensor *one = cast_whole(DTYPE_F8_E5M2, 64, 64, 2, false);
    struct qtensor *two = cast_whole(DTYPE_F8_E5M2, 64, 64, 2, true);
    look(one, &f);
    ck_assert(!f.has_second && !qtensor_info(one).transposed);
    ck_assert(qtensor_info(two).transposed);
    ck_assert_uint_ge(qtensor_info(two).bytes, 2 * 64 * 64 + sizeof(float));
    qtensor_unref(one);
    qtensor_unref(two);
}
END_TEST

/* No rows: nothing to transpose, and still a whole tensor. */
START_TEST(forms_of_no_rows)
{
    static struct forms f;
    struct qtensor *t = cast_whole(DTYPE_F8_E4M3, 0, 48, 1, true);
    look(t, &f);
    ck_assert(f.info.transposed);
    ck_assert_uint_eq(f.pitch, 0);
    qtensor_unref(t);
}
END_TEST

/* qtensor_transpose: the same codes and factor the other way round, twice gives the first. */
START_TEST(forms_transpose_is_exact)
{
    static struct forms a, b, c;
    uint64_t rows = shapes[_i][0], cols = shapes[_i][1];
    uint8_t codes[1 << 14];
    for (uint64_t i = 0; i < rows * cols; i++)
        codes[i] = (uint8_t)(i * 37 + i / 251); /* NaN codes too: nothing looks at them */
    struct qtensor *t = rig_adopt(&rig, DTYPE_F8_E5M2, rows, cols, codes, 0x1.8p-7f), *u, *v;
    ck_assert_msg(!qtensor_transpose(rig.q, NULL, t, "t", &u, &rig.f), "%s", rig.f.text);
    ck_assert_msg(!qtensor_transpose(rig.q, NULL, u, "t", &v, &rig.f), "%s", rig.f.text);
    look(t, &a);
    look(u, &b);
    look(v, &c);
    ck_assert(b.info.rows == cols && b.info.cols == rows && b.info.fmt == DTYPE_F8_E5M2);
    ck_assert(b.factor == 0x1.8p-7f && c.factor == 0x1.8p-7f);
    for (uint64_t i = 0; i < rows * cols; i++)
        ck_assert_uint_eq(b.codes[i % cols * rows + i / cols], codes[i]);
    ck_assert_mem_eq(a.codes, c.codes, rows * cols);
    qtensor_unref(t);
    qtensor_unref(u);
    qtensor_unref(v);
}
END_TEST

/* --- cases: what multiplies it --- */

/* The gradients of y = x w^T over any number of tokens, by their definition: dx = dy w and
 * dw = dy^T x. */
struct layer {
    uint64_t tokens, in, out;
    struct qtensor *x, *w, *dy;
};

static struct layer layer_new(uint64_t tokens, uint64_t in, uint64_t out)
{
    return (struct layer){tokens,
                          in,
                          out,
                          cast_whole(DTYPE_F8_E4M3, tokens, in, 1, true),
                          cast_whole(DTYPE_F8_E4M3, out, in, 2, true),
                          cast_whole(DTYPE_F8_E5M2, tokens, out, 3, true)};
}

static void layer_free(struct layer *l)
{
    qtensor_unref(l->x);
    qtensor_unref(l->w);
    qtensor_unref(l->dy);
}

static long dgrad_at(const struct layer *l, uint64_t t, uint64_t i)
{
    long sum = 0;
    for (uint64_t o = 0; o < l->out; o++)
        sum += whole(3, t * l->out + o) * whole(2, o * l->in + i);
    return sum;
}

static long wgrad_at(const struct layer *l, uint64_t o, uint64_t i)
{
    long sum = 0;
    for (uint64_t t = 0; t < l->tokens; t++)
        sum += whole(3, t * l->out + o) * whole(1, t * l->in + i);
    return sum;
}

static const uint64_t layers[][3] = {{1, 16, 16},   {7, 48, 16}, {16, 16, 48},  {100, 48, 64},
                                     {33, 64, 112}, {5, 24, 40}, {129, 16, 16}, {31, 7, 9}};
#define LAYERS ((int)(sizeof layers / sizeof layers[0]))

START_TEST(forms_dgrad)
{
    struct layer l = layer_new(layers[_i][0], layers[_i][1], layers[_i][2]);
    struct tensor dx = rig_tensor(&rig, DTYPE_F32, l.tokens, l.in, NULL);
    struct gemm g = {.a = l.dy, .b = l.w, .out = dx, .precise = true, .b_transposed = true};
    ck_assert_msg(!run(&g), "%s", rig.f.text);
    for (uint64_t t = 0; t < l.tokens; t++)
        for (uint64_t i = 0; i < l.in; i++)
            ck_assert(((float *)dx.buf->host)[t * l.in + i] == (float)dgrad_at(&l, t, i));
    buffer_unref(dx.buf);
    layer_free(&l);
}
END_TEST

/* Overwrites first, then adds twice: once, once more, and three times the gradient. The output is
 * host memory first and device memory after it, which a GPU reaches in different ways. */
START_TEST(forms_wgrad_overwrites_and_accumulates)
{
    struct layer l = layer_new(layers[_i][0], layers[_i][1], layers[_i][2]);
    uint64_t bytes = l.out * l.in * sizeof(float);
    struct tensor host = rig_tensor(&rig, DTYPE_F32, l.out, l.in, NULL), device = host;
    memset(host.buf->host, 0xa5, bytes);
    ck_assert_int_eq(buffer_new(rig.b, NULL, BUFFER_DEVICE, bytes, "dw", &device.buf, &rig.f), 0);
    for (int round = 1; round <= 4; round++) {
        const struct tensor *dw = round == 2 || round == 3 ? &device : &host;
        struct gemm g = {.a = l.dy,
                         .b = l.x,
                         .out = *dw,
                         .precise = true,
                         .a_transposed = true,
                         .b_transposed = true,
                         .accumulate = round > 1};
        if (round == 2)
            ck_assert(!backend_copy(rig.q, device.buf, 0, host.buf, 0, bytes, &rig.f));
        ck_assert_msg(!run(&g), "%s", rig.f.text);
        if (round == 3)
            ck_assert(!backend_copy(rig.q, host.buf, 0, device.buf, 0, bytes, &rig.f));
        rig_wait(&rig);
        for (uint64_t i = 0; i < l.out * l.in && round != 2; i++)
            ck_assert(((float *)host.buf->host)[i] ==
                      (float)(round * wgrad_at(&l, i / l.in, i % l.in)));
    }
    buffer_unref(host.buf);
    buffer_unref(device.buf);
    layer_free(&l);
}
END_TEST

/* A transposed tensor of its own multiplies as the second form does. */
START_TEST(forms_dgrad_by_a_transposed_tensor)
{
    struct layer l = layer_new(7, 48, 32);
    struct qtensor *turned;
    struct tensor dx = rig_tensor(&rig, DTYPE_F32, l.tokens, l.in, NULL);
    ck_assert_int_eq(qtensor_transpose(rig.q, NULL, l.w, "w", &turned, &rig.f), 0);
    struct gemm g = {.a = l.dy, .b = turned, .out = dx, .precise = true};
    ck_assert_msg(!run(&g), "%s", rig.f.text);
    for (uint64_t i = 0; i < l.tokens * l.in; i++)
        ck_assert(((float *)dx.buf->host)[i] == (float)dgrad_at(&l, i / l.in, i % l.in));
    buffer_unref(dx.buf);
    qtensor_unref(turned);
    layer_free(&l);
}
END_TEST

/* --- cases: refusals --- */

START_TEST(forms_gemm_refuses)
{
    struct qtensor *one = cast_whole(DTYPE_F8_E4M3, 16, 32, 1, false);
    struct qtensor *two = cast_whole(DTYPE_F8_E4M3, 16, 32, 1, true);
    struct qtensor *none = cast_whole(DTYPE_F8_E4M3, 0, 32, 1, true);
    struct tensor y = rig_tensor(&rig, DTYPE_F32, 32, 32, NULL), half = y, bias = y;
    half.dtype = DTYPE_BF16;
    bias.rows = 1;
    struct gemm good = {.a = two, .b = two, .out = y, .a_transposed = true, .b_transposed = true},
                g = good;
    ck_assert_msg(!run(&g), "%s", rig.f.text);
    g.b = one;
    refused(run(&g), "gemm.b_transposed is set, needed a tensor that was cast with a second form");
    g = good;
    g.a_transposed = false;
    refused(run(&g), "gemm.b.cols (k) is 16, needed 32");
    g = good;
    g.accumulate = true;
    g.out = half;
    refused(run(&g), "gemm.out.dtype is BF16, needed F32 to accumulate into");
    g.out = y;
    g.bias = &bias;
    refused(run(&g), "gemm.bias is set together with gemm.accumulate, needed one of them");
    g = (struct gemm){.a = none, .b = none, .out = y, .a_transposed = true, .b_transposed = true};
    refused(run(&g), "gemm.a.rows (k) is 0, needed at least 1");
    buffer_unref(y.buf);
    qtensor_unref(one);
    qtensor_unref(two);
    qtensor_unref(none);
}
END_TEST

START_TEST(forms_transpose_refuses)
{
    struct qtensor *none = cast_whole(DTYPE_F8_E4M3, 0, 32, 1, false), *out = NULL;
    refused(qtensor_transpose(rig.q, NULL, none, "t", &out, &rig.f),
            "transpose.tensor.rows is 0, needed at least 1");
    refused(qtensor_transpose(rig.q, NULL, NULL, "t", &out, &rig.f), "transpose.tensor is missing");
    ck_assert_ptr_null(out);
    qtensor_unref(none);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("forms");
    TCase *c = tcase_create("forms");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, forms_second_is_the_transpose, 0, SHAPES);
    tcase_add_test(c, forms_one_unless_asked);
    tcase_add_test(c, forms_of_no_rows);
    tcase_add_loop_test(c, forms_transpose_is_exact, 0, SHAPES);
    tcase_add_loop_test(c, forms_dgrad, 0, LAYERS);
    tcase_add_loop_test(c, forms_wgrad_overwrites_and_accumulates, 0, LAYERS);
    tcase_add_test(c, forms_dgrad_by_a_transposed_tensor);
    tcase_add_test(c, forms_gemm_refuses);
    tcase_add_test(c, forms_transpose_refuses);
    suite_add_tcase(s, c);
    return run_suite(s);
}
