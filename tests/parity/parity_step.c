/* What a training step adds: the optimizer's update, to the bit in master, moments, stored values,
 * codes of both forms and report; norms and column sums near the same, and the same whenever they
 * are made. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"
#include "tests/unit/weights.h"

#include <math.h>

/* --- a weight on both backends --- */

#define SPARE 4096u /* elements that the windows of the tensors into one array differ by, at most  \
                     */

struct twin {
    struct pair master, grad, m, v, stored;
    struct buffer *state[2]; /* a scaler, then a report, on the CPU and on the GPU */
};

struct kind {
    struct optimizer_options options;
    enum dtype to, fmt;
    bool second, keep, casts;
    unsigned shift;
};

static struct cast_report *report_of(const struct twin *t, int side)
{
    return (struct cast_report *)(void *)((char *)t->state[side]->host + scaler_bytes(1));
}

static struct buffer *state_new(struct rig *r)
{
    struct buffer *state = rig_buffer(r, scaler_bytes(1) + sizeof(struct cast_report), NULL);
    struct scaler *site = state->host;
    memset(state->host, POISON, state->bytes);
    scaler_init(site, 1);
    site->scale = 27.3f;
    site->scale_inv = 0x1.2c1e6p-5f;
    site->set = 1;
    return state;
}

/* The tensors are windows into `data`, each from elsewhere; `stored` begins as something else. */
static struct twin twin_new(uint64_t rows, uint64_t cols, const float *data, const struct kind *k)
{
    struct twin t = {.master = both_tensor(DTYPE_F32, rows, cols, data, k->shift),
                     .grad = both_tensor(DTYPE_F32, rows, cols, data + 1003, k->shift),
                     .m = both_tensor(DTYPE_F32, rows, cols, data + 2007, k->shift),
                     .v = both_tensor(DTYPE_F32, rows, cols, data + 4001, k->shift),
                     .stored = both_tensor(k->to, rows, cols, data + 7, k->shift)};
    t.state[0] = state_new(&both.cpu);
    t.state[1] = state_new(&both.gpu);
    return t;
}

static void twin_free(struct twin *t)
{
    pair_free(&t->master);
    pair_free(&t->grad);
    pair_free(&t->m);
    pair_free(&t->v);
    pair_free(&t->stored);
    buffer_unref(t->state[0]);
    buffer_unref(t->state[1]);
}

static struct tensor of(const struct pair *p, int side)
{
    return side ? p->gpu : p->cpu;
}

/* --- helpers --- */

static struct rig *rig_of(int side)
{
    return side ? &both.gpu : &both.cpu;
}

static struct qtensor *step(const struct twin *t, const struct kind *k, uint64_t n, int side)
{
    struct rig *r = rig_of(side);
    struct qtensor *out = NULL;
    unsigned moments = optimizer_moments(&k->options);
    struct update u = {.options = k->options,
                       .step = n,
                       .grad_scale = 0.37f,
                       .master = of(&t->master, side),
                       .grad = of(&t->grad, side),
                       .round_to = k->to};
    struct cast c = {.fmt = k->fmt,
                     .mode = CAST_SITE,
                     .site = t->state[side]->data,
                     .report = report_of(t, side),
                     .transposed = k->second};
    if (moments > 0)
        u.m = of(&t->m, side);
    if (moments > 1)
        u.v = of(&t->v, side);
    if (k->keep)
        u.stored = of(&t->stored, side);
    int rc = k->casts ? qtensor_update(r->q, NULL, &u, &c, "w", &out, &r->f)
                      : backend_update(r->q, &u, &r->f);
    ck_assert_msg(!rc, "%s", r->f.text);
    return out;
}

static void same(const void *cpu, const void *gpu, uint64_t bytes, const char *what,
                 const struct twin *t, const struct kind *k)
{
    const uint8_t *p = cpu, *q = gpu;
    uint64_t i = 0;
    if (!memcmp(cpu, gpu, bytes))
        return;
    while (p[i] == q[i])
        i++;
    ck_abort_msg("%s of [%lu, %lu], kind %d, %s to %s: byte %lu is %02x on the CPU, %02x on the "
                 "GPU",
                 what, t->master.cpu.rows, t->master.cpu.cols, (int)k->options.kind,
                 dtype_name(k->to), dtype_name(k->fmt), i, p[i], q[i]);
}

static void same_tensor(const struct pair *p, const char *what, const struct twin *t,
                        const struct kind *k)
{
    uint64_t bytes = weights_bytes(&p->cpu);
    void *got = malloc(bytes + 1);
    gpu_read(p->gpu.buf, p->gpu.offset, got, bytes);
    same(p->cpu.buf->host, got, bytes, what, t, k);
    free(got);
}

static void same_forms(struct qtensor *cpu, struct qtensor *gpu, const struct twin *t,
                       const struct kind *k)
{
    struct weights_forms a = weights_look(&both.cpu, cpu), b = weights_look(&both.gpu, gpu);
    uint64_t rows = t->master.cpu.rows, cols = t->master.cpu.cols;
    same(a.codes, b.codes, rows * cols, "codes", t, k);
    same(&a.factor, &b.factor, sizeof a.factor, "the factor", t, k);
    if (k->second)
        same(a.second, b.second, cols * a.pitch, "the second form", t, k);
    same(report_of(t, 0), report_of(t, 1), sizeof(struct cast_report), "the report", t, k);
    weights_forms_free(&a);
    weights_forms_free(&b);
}

/* Steps 1 and 7, and a step so late that its powers are 0, of one weight. */
static void same_steps(uint64_t rows, uint64_t cols, const float *data, const struct kind *k)
{
    static const uint64_t steps[] = {1, 7, 1234567};
    struct twin t = twin_new(rows, cols, data, k);
    uint64_t room = (rows * cols + 63) / 64 * 64 + sizeof(float);
    if (k->second)
        room = (room + 255) / 256 * 256 + (rows + 15) / 16 * 16 * cols;
    for (unsigned i = 0; i < (rows * cols > 1u << 20 ? 1 : 3); i++) {
        gpu_poison_next(room);
        struct qtensor *cpu = step(&t, k, steps[i], 0), *gpu = step(&t, k, steps[i], 1);
        rig_wait(&both.cpu);
        rig_wait(&both.gpu);
        same_tensor(&t.master, "master", &t, k);
        same_tensor(&t.m, "m", &t, k);
        same_tensor(&t.v, "v", &t, k);
        same_tensor(&t.stored, "the stored weight", &t, k);
        if (k->casts)
            same_forms(cpu, gpu, &t, k);
        qtensor_unref(cpu);
        qtensor_unref(gpu);
    }
    twin_free(&t);
}

static const uint64_t shapes[][2] = {{16, 16},   {1, 1},      {7, 48},     {100, 36},
                                     {129, 257}, {63, 132},   {64, 128},   {1000, 1008},
                                     {768, 768}, {2049, 130}, {4096, 4096}};
#define SHAPES ((int)(sizeof shapes / sizeof shapes[0]))

static const struct optimizer_options rules[] = {
    {.kind = OPTIMIZER_SGD, .rate = 0.01, .weight_decay = 0.1},
    {.kind = OPTIMIZER_SGD, .rate = 0.02, .momentum = 0.9, .dampening = 0.3},
    {.kind = OPTIMIZER_SGD, .rate = 0.01, .momentum = 0.9, .nesterov = true},
    {.kind = OPTIMIZER_ADAM, .rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {.kind = OPTIMIZER_ADAM, .rate = 0.1, .beta1 = 0.2, .beta2 = 0.9, .weight_decay = 0.1},
    {.kind = OPTIMIZER_ADAMW,
     .rate = 0.01,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .eps = 1e-8,
     .weight_decay = 0.01},
};
#define RULES (sizeof rules / sizeof rules[0])

static float *random_floats(uint64_t count, enum data kind, uint64_t seed)
{
    float *data = malloc((count + SPARE) * sizeof *data);
    ck_assert_ptr_nonnull(data);
    both_fill(data, DTYPE_F32, count + SPARE, kind, seed);
    return data;
}

/* --- cases --- */

/* Rules x dtypes x formats over shapes, tame numbers and all bit patterns, aligned and not, with
 * and without second form and stored values; every other one also without the cast. Large ones take
 * turns.
 */
START_TEST(parity_steps)
{
    uint64_t rows = shapes[_i / 2][0], cols = shapes[_i / 2][1], steps = 0;
    enum data data_kind = _i % 2 ? DATA_WILD : DATA_TAME;
    bool large = rows * cols > 1u << 20;
    if (!both_takes(rows, cols))
        return;
    float *data = random_floats(rows * cols, data_kind, 40 + (uint64_t)_i);
    for (unsigned i = 0; i < 6 * RULES; i++) {
        struct kind k = {.options = rules[i % RULES],
                         .to = (enum dtype)(DTYPE_F32 + (i + i / RULES) % 3),
                         .fmt = i / RULES % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3,
                         .second = (i + i / 3) % 2 == 0,
                         .keep = i % 4 != 1,
                         .casts = i % 5 != 4,
                         .shift = i / RULES == 5};
        if (large && i % 7 != 3 * ((unsigned)_i % 2))
            continue;
        same_steps(rows, cols, data, &k);
        steps++;
    }
    (void)fprintf(stderr, "steps of [%lu, %lu], %s: %lu weights, bit for bit\n", rows, cols,
                  data_kind == DATA_WILD ? "wild" : "tame", steps);
    free(data);
}
END_TEST

/* Norms in another order: to 2^-40; counts are equal; twice, and wherever it begins, the same bits.
 */
START_TEST(parity_norms)
{
    enum dtype t = (enum dtype)(DTYPE_F32 + _i % 3);
    enum data kind = _i / 3 ? DATA_WILD : DATA_TAME;
    static const uint64_t sizes[][2] = {{1, 1}, {33, 77}, {100, 1008}, {4096, 4099}};
    for (unsigned k = 0; k < 4; k++) {
        uint64_t rows = sizes[k][0], cols = sizes[k][1];
        if (!both_takes(rows, cols))
            continue;
        float *data = malloc(rows * cols * sizeof *data);
        both_fill(data, t, rows * cols, kind, 90 + k);
        struct pair x = both_tensor(t, rows, cols, data, 0);
        struct pair y = both_tensor(t, rows, cols, data, 1);
        struct buffer *rc = rig_buffer(&both.cpu, sizeof(struct norm_report), NULL);
        struct buffer *rg = rig_buffer(&both.gpu, 3 * sizeof(struct norm_report), NULL);
        struct norm_report *c = rc->host, *g = rg->host;
        ck_assert_int_eq(backend_norm(both.cpu.q, &x.cpu, c, &both.cpu.f), 0);
        ck_assert_int_eq(backend_norm(both.gpu.q, &x.gpu, g, &both.gpu.f), 0);
        ck_assert_int_eq(backend_norm(both.gpu.q, &x.gpu, g + 1, &both.gpu.f), 0);
        ck_assert_int_eq(backend_norm(both.gpu.q, &y.gpu, g + 2, &both.gpu.f), 0);
        rig_wait(&both.cpu);
        rig_wait(&both.gpu);
        ck_assert_uint_eq(c->nonfinite, g->nonfinite);
        ck_assert_msg(fabs(c->sum2 - g->sum2) <= 0x1p-40 * c->sum2, "%a on the CPU, %a on the GPU",
                      c->sum2, g->sum2);
        ck_assert_mem_eq(g, g + 1, sizeof *g);
        ck_assert_mem_eq(g, g + 2, sizeof *g);
        buffer_unref(rc);
        buffer_unref(rg);
        pair_free(&x);
        pair_free(&y);
        free(data);
    }
}
END_TEST

/* The cast of x on one backend, with the sums of its columns in `sums`. */
static struct qtensor *cast_sums(const struct pair *x, const struct pair *sums, bool second,
                                 bool add, struct buffer *state, int side)
{
    struct rig *r = rig_of(side);
    struct qtensor *t = NULL;
    struct cast c = {.src = of(x, side),
                     .fmt = DTYPE_F8_E5M2,
                     .mode = CAST_SITE,
                     .site = state->data,
                     .report =
                         (struct cast_report *)(void *)((char *)state->host + scaler_bytes(1)),
                     .transposed = second,
                     .sums = of(sums, side),
                     .sums_add = add};
    ck_assert_msg(!qtensor_cast(r->q, NULL, &c, "dy", &t, &r->f), "%s", r->f.text);
    return t;
}

static double element(const struct tensor *t, uint64_t i)
{
    uint16_t h = ((const uint16_t *)t->buf->host)[i];
    if (t->dtype == DTYPE_F32)
        return (double)((const float *)t->buf->host)[i];
    return (double)(t->dtype == DTYPE_BF16 ? bf16_decode(h) : f16_decode(h));
}

/* Column c within (128 + 2) 2^-24 of the magnitudes of its sum, `times` over. */
static double sum_off(const struct tensor *x, uint64_t c, double got, int times)
{
    double sum = 0, size = 0x1p-1000;
    for (uint64_t r = 0; r < x->rows; r++) {
        sum += times * element(x, r * x->cols + c);
        size += times * fabs(element(x, r * x->cols + c));
    }
    return fabs(got - sum) / (130 * 0x1p-24 * size);
}

static void same_sums(const struct pair *x, bool second)
{
    uint64_t cols = x->cpu.cols;
    float *zero = calloc(3 * cols + 1, sizeof *zero), *got = zero + cols, *again = got + cols;
    struct pair sums = both_tensor(DTYPE_F32, 1, cols, zero, 1);
    struct twin t = {.master = *x, .state = {state_new(&both.cpu), state_new(&both.gpu)}};
    struct kind k = {.to = x->cpu.dtype, .fmt = DTYPE_F8_E5M2, .second = second};
    struct qtensor *c[2], *g[2];
    double worst = 0;
    for (int i = 0; i < 2; i++) {
        c[i] = cast_sums(x, &sums, second, i == 1, t.state[0], 0);
        g[i] = cast_sums(x, &sums, second, i == 1, t.state[1], 1);
        gpu_read(sums.gpu.buf, sums.gpu.offset, i ? again : got, cols * sizeof *got);
        rig_wait(&both.cpu);
        same_forms(c[i], g[i], &t, &k);
    }
    for (uint64_t i = 0; i < cols; i++) {
        worst = fmax(worst, sum_off(&x->cpu, i, (double)got[i], 1));
        worst = fmax(worst, sum_off(&x->cpu, i, element(&sums.cpu, i), 2));
        ck_assert(again[i] == 2 * got[i]); /* the same sum once more */
    }
    ck_assert_msg(worst <= 1, "[%lu, %lu] %s: %g of the bound", x->cpu.rows, cols,
                  dtype_name(x->cpu.dtype), worst);
    for (int i = 0; i < 2; i++) {
        qtensor_unref(c[i]);
        qtensor_unref(g[i]);
        buffer_unref(t.state[i]);
    }
    pair_free(&sums);
    free(zero);
}

/* Column sums over sizes that fill no tile and both kinds of tiles, against float64; codes, factor
 * and report as on the CPU. */
START_TEST(parity_column_sums)
{
    static const uint64_t sizes[][2] = {{1, 1},      {7, 48},      {64, 128},   {65, 136},
                                        {100, 1008}, {1027, 1008}, {4099, 769}, {8192, 4096}};
    enum dtype t = (enum dtype)(DTYPE_F32 + _i);
    for (unsigned i = 0; i < 8; i++) {
        uint64_t rows = sizes[i][0], cols = sizes[i][1];
        if (!both_takes(rows, cols))
            continue;
        float *data = malloc(rows * cols * sizeof *data);
        both_fill(data, t, rows * cols, DATA_TAME, 60 + i);
        for (unsigned shift = 0; shift < 2; shift++) {
            struct pair x = both_tensor(t, rows, cols, data, shift);
            same_sums(&x, (i + shift) % 2 == 0);
            pair_free(&x);
        }
        free(data);
    }
}
END_TEST

TCase *parity_step_case(void)
{
    TCase *c = tcase_create("step");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, both_setup, both_teardown);
    tcase_add_loop_test(c, parity_steps, 0, 2 * SHAPES);
    tcase_add_loop_test(c, parity_norms, 0, 6);
    tcase_add_loop_test(c, parity_column_sums, 0, 3);
    return c;
}
