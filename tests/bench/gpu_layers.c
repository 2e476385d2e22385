/* Casts and forwards of bench_gpu. */
#include "tests/bench/gpu_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BURST 20u
#define KEPT 24u /* FP8 inputs that may still be in use: more than a burst, which is waited for */
#define LEN 1024u

/* A layer in sets that take turns; without `n` its input's cast alone. */
struct layer {
    struct backend *b;
    struct queue *q;
    uint64_t m, n, k;
    enum dtype src;
    enum cast_scale mode;
    bool apply;
    unsigned sets;
    struct buffer **x, **y;
    struct qtensor **w;
    struct buffer *state, *host; /* two scalers; a report and mirrors */
    struct qtensor *kept[KEPT];
};

static struct scaler *site_of(const struct layer *l, unsigned i)
{
    return (struct scaler *)(void *)((char *)l->state->data + i * scaler_bytes(LEN));
}

static void wait_for(const struct layer *l)
{
    drain(l->q);
    peer_must((int)cudaStreamSynchronize(stream_of(l->q)), "cudaStreamSynchronize");
}

/* Both sites calibrated. */
static void open_state(struct layer *l)
{
    size_t step = scaler_bytes(LEN);
    must(buffer_new(l->b, NULL, BUFFER_DEVICE, 2 * step, "bench", &l->state, &bench.fault));
    must(buffer_new(l->b, NULL, BUFFER_HOST, 512 + 2 * step, "bench", &l->host, &bench.fault));
    scaler_init(l->host->host, LEN);
    scaler_adopt(l->host->host, 1.0f / 64);
    for (unsigned i = 0; i < 2; i++)
        must(backend_copy(l->q, l->state, i * step, l->host, 0, step, &bench.fault));
    wait_for(l);
}

static void open_weight(struct layer *l, unsigned i)
{
    struct buffer *codes = random_buffer(l->b, DTYPE_F8_E4M3, l->n * l->k);
    must(buffer_new(l->b, NULL, BUFFER_DEVICE, l->m * l->n * 2, "y", &l->y[i], &bench.fault));
    must(qtensor_adopt(l->q, NULL, DTYPE_F8_E4M3, l->n, l->k, codes, 0, 1.0f / 64, "w", &l->w[i],
                       &bench.fault));
    wait_for(l);
    buffer_unref(codes);
}

static void layer_open(struct layer *l)
{
    uint64_t x_bytes = l->m * l->k * (dtype_bits(l->src) / 8);
    uint64_t sets = ROTATE_BYTES / (x_bytes + l->n * l->k + l->m * l->n * 2) + 3;
    l->sets = sets > 256 ? 256 : (unsigned)sets;
    l->x = calloc(l->sets, sizeof *l->x);
    l->y = calloc(l->sets, sizeof *l->y);
    l->w = calloc(l->sets, sizeof *l->w);
    if (!l->x || !l->y || !l->w)
        exit(1);
    open_state(l);
    for (unsigned i = 0; i < l->sets; i++) {
        l->x[i] = random_buffer(l->b, l->src, x_bytes);
        if (l->n)
            open_weight(l, i);
    }
}

static void layer_close(struct layer *l)
{
    wait_for(l);
    for (unsigned i = 0; i < l->sets; i++) {
        buffer_unref(l->x[i]);
        buffer_unref(l->y[i]);
        qtensor_unref(l->w[i]);
    }
    for (unsigned i = 0; i < KEPT; i++)
        qtensor_unref(l->kept[i]);
    buffer_unref(l->state);
    buffer_unref(l->host);
    free(l->x);
    free(l->y);
    free(l->w);
}

static void run_apply(struct layer *l)
{
    struct cast_report *report = l->host->data;
    char *mirrors = (char *)l->host->data + 512;
    struct apply_site at[2] = {{.site = site_of(l, 0),
                                .slot = &report->slot,
                                .mirror = (struct scaler *)(void *)mirrors,
                                .fmt = DTYPE_F8_E4M3},
                               {.site = site_of(l, 1),
                                .mirror = (struct scaler *)(void *)(mirrors + scaler_bytes(LEN)),
                                .fmt = DTYPE_F8_E4M3}};
    struct apply a = {.sites = at, .count = 2, .algo = AMAX_MAX};
    must(backend_apply(l->q, &a, &bench.fault));
}

static void layer_run(void *arg, unsigned set)
{
    struct layer *l = arg;
    unsigned i = set % l->sets;
    struct qtensor **xq = &l->kept[set % KEPT];
    struct tensor y = {.buf = l->y[i], .dtype = DTYPE_BF16, .rows = l->m, .cols = l->n};
    struct cast c = {.src = {.buf = l->x[i], .dtype = l->src, .rows = l->m, .cols = l->k},
                     .fmt = DTYPE_F8_E4M3,
                     .mode = l->mode,
                     .site = l->mode == CAST_TENSOR ? NULL : site_of(l, 0),
                     .report = l->host->data};
    qtensor_unref(*xq);
    *xq = NULL;
    must(qtensor_cast(l->q, NULL, &c, "x", xq, &bench.fault));
    if (!l->n)
        return;
    struct gemm g = {.a = *xq, .b = l->w[i], .out = y};
    must(backend_gemm(l->q, &g, &bench.fault));
    if (l->apply)
        run_apply(l);
}

/* --- casts --- */

static void bench_cast(uint64_t rows, uint64_t cols, enum dtype src, enum cast_scale mode)
{
    struct layer l = {
        .b = bench.timed, .q = bench.queue, .m = rows, .k = cols, .src = src, .mode = mode};
    double us[ROUNDS_MAX], size = (double)(dtype_bits(src) / 8);
    char name[96];
    unsigned count = rows * cols < (uint64_t)1 << 27 ? BURST : 6;
    layer_open(&l);
    (void)burst(stream_of(l.q), layer_run, &l, count);
    for (unsigned r = 0; r < bench.rounds; r++)
        us[r] = burst(stream_of(l.q), layer_run, &l, count);
    bench.runs = bench.rounds * count;
    double mid = median(us, bench.rounds), bytes = (double)rows * (double)cols * (size + 1);
    (void)snprintf(name, sizeof name, "quantise_%s_%s_%lux%lu", dtype_name(src),
                   mode == CAST_SITE     ? "delayed"
                   : mode == CAST_TENSOR ? "current"
                                         : "eval",
                   rows, cols);
    if (mode == CAST_SITE && bytes * size / (size + 1) >= 0x1p26)
        print_value(name, bytes / mid * 1e-6, "TB/s", "at least", 3.6);
    else
        print_value(name, mid, "us", rows <= 1024 && mode == CAST_SITE ? "at most" : NULL, 5.0);
    layer_close(&l);
}

void bench_casts(void)
{
    static const uint64_t shapes[][2] = {{512, 512},   {1024, 1024},  {2048, 2048}, {4096, 4096},
                                         {8192, 4096}, {32768, 4096}, {65536, 8192}};
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        bench_cast(shapes[i][0], shapes[i][1], DTYPE_BF16, CAST_SITE);
        bench_cast(shapes[i][0], shapes[i][1], DTYPE_BF16, CAST_SITE_OR_TENSOR);
        bench_cast(shapes[i][0], shapes[i][1], DTYPE_BF16, CAST_TENSOR);
    }
    bench_cast(16384, 4096, DTYPE_F32, CAST_SITE);
}

/* --- forwards --- */

/* EVAL: the caller knows from its mirror that the site is set. EVAL_ASK: the device finds out. */
enum kind { RAW, EVAL, EVAL_ASK, TRAIN, CURRENT, TRAIN_FIRST, KINDS };

static void raw_run(void *arg, unsigned set)
{
    peer_run(arg, set);
}

static void print_kind(enum kind kind, double us, double raw, const struct layer *l, double aim)
{
    static const char *const names[KINDS] = {
        "raw_gemm",      "forward_eval",    "forward_eval_asks_device",
        "forward_train", "forward_current", "forward_train_reproducible"};
    double elements = (double)l->m * (double)l->k;
    bool train = kind == TRAIN || kind == TRAIN_FIRST;
    char name[96];
    (void)snprintf(name, sizeof name, "%s_%lux%lux%lu", names[kind], l->m, l->n, l->k);
    if (kind == RAW)
        print_value(name, us, "us", NULL, 0);
    else
        print_ratio(name, us, raw + (train ? 4 : 3) * elements / bench.copy_rate, "us", aim);
}

/* What PyTorch does instead. The graphs are its best case: no gap between its kernels. */
struct against {
    const char *torch, *row;
    enum kind ours;
};
static const struct against against[] = {
    {"dynamic", "forward_current_vs_torch_dynamic", CURRENT},
    {"static", "forward_eval_vs_torch_static", EVAL},
    {"dynamic_graph", "forward_current_vs_torch_dynamic_graph", CURRENT},
    {"static_graph", "forward_eval_vs_torch_static_graph", EVAL},
};
#define AGAINST (sizeof against / sizeof against[0])

struct shape {
    uint64_t m, n, k;
    double eval, train; /* aims; 0: none */
    bool with_torch;
    double torch_aims[AGAINST];
};

static void open_kinds(const struct shape *s, struct layer l[KINDS])
{
    for (int i = EVAL; i < KINDS; i++) {
        bool first = i == TRAIN_FIRST;
        l[i] = (struct layer){.b = first ? bench.first : bench.timed,
                              .q = first ? bench.queue_first : bench.queue,
                              .m = s->m,
                              .n = s->n,
                              .k = s->k,
                              .src = DTYPE_BF16,
                              .mode = i == EVAL_ASK  ? CAST_SITE_OR_TENSOR
                                      : i == CURRENT ? CAST_TENSOR
                                                     : CAST_SITE,
                              .apply = i == TRAIN || first};
        layer_open(&l[i]);
        layer_run(&l[i], 0); /* the plan */
        wait_for(&l[i]);
    }
}

static void print_torch(const struct shape *s, const double mid[KINDS], double us[][ROUNDS_MAX])
{
    char name[96];
    for (size_t t = 0; t < AGAINST; t++) {
        double theirs = median(us[t], bench.rounds); /* which sorts: the first is the least */
        (void)snprintf(name, sizeof name, "%s_%lux%lux%lu", against[t].row, s->m, s->n, s->k);
        print_ratio(name, mid[against[t].ours], us[t][0] > 0 ? theirs : -1, "us", s->torch_aims[t]);
    }
}

static void bench_forward(const struct shape *s)
{
    struct layer l[KINDS];
    struct peer peer;
    double us[KINDS][ROUNDS_MAX], torch[AGAINST][ROUNDS_MAX], mid[KINDS];
    const double aims[KINDS] = {[EVAL] = s->eval, [TRAIN] = s->train};
    open_kinds(s, l);
    peer_open(&peer, s->m, s->n, s->k, l[EVAL].sets, random_codes(), CODES, stream_of(bench.queue));
    if (s->with_torch)
        torch_open(&bench.torch, s->m, s->n, s->k, "dynamic static dynamic_graph static_graph");
    (void)burst(stream_of(bench.queue), raw_run, &peer, BURST);
    for (unsigned r = 0; r < bench.rounds; r++) {
        us[RAW][r] = burst(stream_of(bench.queue), raw_run, &peer, BURST);
        for (int i = EVAL; i < KINDS; i++)
            us[i][r] = burst(stream_of(l[i].q), layer_run, &l[i], BURST);
        for (size_t t = 0; t < AGAINST && s->with_torch; t++)
            torch[t][r] = torch_run(&bench.torch, against[t].torch);
    }
    bench.runs = bench.rounds * BURST;
    for (int i = 0; i < KINDS; i++)
        mid[i] = median(us[i], bench.rounds);
    for (int i = 0; i < KINDS; i++)
        print_kind((enum kind)i, mid[i], mid[RAW], &l[EVAL], aims[i]);
    if (s->with_torch)
        print_torch(s, mid, torch);
    for (int i = EVAL; i < KINDS; i++)
        layer_close(&l[i]);
    peer_close(&peer);
}

void bench_forwards(void)
{
    static const struct shape shapes[] = {
        {4096, 4096, 4096, 1.05, 1.08, true, {0.60, 0.95, 0, 0}},
        {8192, 8192, 8192, 1.05, 1.05, true, {0.75, 0.95, 0, 0}},
        {4096, 14336, 4096, 1.05, 1.05, true, {0, 0.95, 0, 0}},
        {16, 4096, 4096, 0, 0, false, {0}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        bench_forward(&shapes[i]);
}
