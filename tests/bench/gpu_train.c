/* Forward and backward of one linear layer, of bench_gpu, against PyTorch's (torch_training.py):
 * delayed scaling, the weight's two forms there already (a step makes them), BF16 activations and
 * gradients, the weight's gradient in float32. */
#include "tests/bench/gpu_bench.h"

#include <stdio.h>
#include <stdlib.h>

#define BURST 10u
#define KEPT                                                                                       \
    24u /* FP8 tensors that may still be in use: more than a burst makes, which is waited for */
#define LEN 1024u
#define SITES 3

enum {
    PART_CAST_X = 1,
    PART_FPROP = 2,
    PART_CAST_DY = 4,
    PART_DGRAD = 8,
    PART_WGRAD = 16,
    ALL = 31
};

/* A layer whose tensors, in sets, take turns. */
struct trained {
    uint64_t m, n, k;  /* tokens, out, in */
    bool precise;      /* gradients */
    bool reproducible; /* the first algorithm, not the fastest; what plans = auto trains with */
    unsigned parts;    /* what is run, of PART_* */
    unsigned sets, made;
    struct buffer **x, **y, **dy, **dx, **dw;
    struct qtensor **w;
    struct buffer *state, *host; /* three scalers; two reports and mirrors */
    struct qtensor *xq, *gq, *kept[KEPT];
};

static void wait_for_all(void)
{
    drain(bench.queue);
    peer_must((int)cudaStreamSynchronize(stream_of(bench.queue)), "cudaStreamSynchronize");
}

/* --- opening --- */

static struct buffer **buffers(const struct trained *t, enum dtype dtype, uint64_t elements)
{
    struct buffer **all = calloc(t->sets, sizeof *all);
    if (!all)
        exit(1);
    for (unsigned i = 0; i < t->sets; i++)
        all[i] = random_buffer(bench.timed, dtype, elements * (dtype_bits(dtype) / 8));
    return all;
}

static struct scaler *site_of(const struct trained *t, unsigned i)
{
    return (struct scaler *)(void *)((char *)t->state->data + i * scaler_bytes(LEN));
}

/* All sites calibrated. */
static void open_state(struct trained *t)
{
    size_t step = scaler_bytes(LEN);
    must(buffer_new(bench.timed, NULL, BUFFER_DEVICE, SITES * step, "bench", &t->state,
                    &bench.fault));
    must(buffer_new(bench.timed, NULL, BUFFER_HOST, 1024 + SITES * step, "bench", &t->host,
                    &bench.fault));
    scaler_init(t->host->host, LEN);
    scaler_adopt(t->host->host, 1.0f / 64);
    for (unsigned i = 0; i < SITES; i++)
        must(backend_copy(bench.queue, t->state, i * step, t->host, 0, step, &bench.fault));
    wait_for_all();
}

static void cast(struct trained *t, struct buffer *from, uint64_t rows, uint64_t cols,
                 unsigned site, struct qtensor **out)
{
    struct cast c = {.src = {.buf = from, .dtype = DTYPE_BF16, .rows = rows, .cols = cols},
                     .fmt = site == 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3,
                     .mode = CAST_SITE,
                     .site = site_of(t, site),
                     .report =
                         (struct cast_report *)(void *)((char *)t->host->data + 512 * (site / 2)),
                     .transposed = true};
    must(qtensor_cast(bench.queue, NULL, &c, "bench", out, &bench.fault));
}

static void trained_open(struct trained *t)
{
    uint64_t bytes = 4 * t->m * t->k + 4 * t->m * t->n + 6 * t->n * t->k;
    t->sets = (unsigned)(ROTATE_BYTES / bytes) + 3;
    open_state(t);
    t->x = buffers(t, DTYPE_BF16, t->m * t->k);
    t->y = buffers(t, DTYPE_BF16, t->m * t->n);
    t->dy = buffers(t, DTYPE_BF16, t->m * t->n);
    t->dx = buffers(t, DTYPE_BF16, t->m * t->k);
    t->dw = buffers(t, DTYPE_F32, t->n * t->k);
    t->w = calloc(t->sets, sizeof *t->w);
    if (!t->w)
        exit(1);
    for (unsigned i = 0; i < t->sets; i++) {
        struct buffer *w = random_buffer(bench.timed, DTYPE_BF16, t->n * t->k * 2);
        cast(t, w, t->n, t->k, 1, &t->w[i]);
        wait_for_all();
        buffer_unref(w);
    }
}

static void drop(const struct trained *t, struct buffer **all)
{
    for (unsigned i = 0; i < t->sets; i++)
        buffer_unref(all[i]);
    free(all);
}

static void trained_close(struct trained *t)
{
    wait_for_all();
    for (unsigned i = 0; i < KEPT; i++)
        qtensor_unref(t->kept[i]);
    qtensor_unref(t->xq);
    qtensor_unref(t->gq);
    for (unsigned i = 0; i < t->sets; i++)
        qtensor_unref(t->w[i]);
    free(t->w);
    drop(t, t->x);
    drop(t, t->y);
    drop(t, t->dy);
    drop(t, t->dx);
    drop(t, t->dw);
    buffer_unref(t->state);
    buffer_unref(t->host);
}

/* --- running --- */

/* Sites first to first + count - 1, as the end of a request's own scope does. */
static void apply(struct trained *t, unsigned first, unsigned count)
{
    struct apply_site at[2];
    for (unsigned i = 0; i < count; i++) {
        unsigned site = first + i;
        struct cast_report *report =
            (struct cast_report *)(void *)((char *)t->host->data + 512 * (site / 2));
        at[i] =
            (struct apply_site){.site = site_of(t, site),
                                .slot = site == 1 ? NULL : &report->slot,
                                .mirror = (struct scaler *)(void *)((char *)t->host->data + 1024 +
                                                                    site * scaler_bytes(LEN)),
                                .fmt = site == 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3};
    }
    struct apply a = {.sites = at, .count = count, .algo = AMAX_MAX};
    must(backend_apply(bench.queue, &a, &bench.fault));
}

static struct tensor tensor(struct buffer *buf, enum dtype t, uint64_t rows, uint64_t cols)
{
    return (struct tensor){.buf = buf, .dtype = t, .rows = rows, .cols = cols};
}

/* A tensor that the work before may still use is kept for a while. */
static struct qtensor **next_of(struct trained *t, struct qtensor **now)
{
    struct qtensor **old = &t->kept[t->made++ % KEPT];
    qtensor_unref(*old);
    *old = *now;
    *now = NULL;
    return now;
}

static void multiply(const struct trained *t, unsigned part, struct gemm g)
{
    g.reproducible = t->reproducible;
    if (t->parts & part)
        must(backend_gemm(bench.queue, &g, &bench.fault));
}

/* Parts alone multiply what the last whole run left. */
static void trained_run(void *arg, unsigned set)
{
    struct trained *t = arg;
    unsigned i = set % t->sets;
    if (t->parts & PART_CAST_X)
        cast(t, t->x[i], t->m, t->k, 0, next_of(t, &t->xq));
    multiply(
        t, PART_FPROP,
        (struct gemm){.a = t->xq, .b = t->w[i], .out = tensor(t->y[i], DTYPE_BF16, t->m, t->n)});
    if (t->parts & PART_CAST_X)
        apply(t, 0, 2);
    if (t->parts & PART_CAST_DY)
        cast(t, t->dy[i], t->m, t->n, 2, next_of(t, &t->gq));
    multiply(t, PART_DGRAD,
             (struct gemm){.a = t->gq,
                           .b = t->w[i],
                           .b_transposed = true,
                           .precise = t->precise,
                           .out = tensor(t->dx[i], DTYPE_BF16, t->m, t->k)});
    multiply(t, PART_WGRAD,
             (struct gemm){.a = t->gq,
                           .a_transposed = true,
                           .b = t->xq,
                           .b_transposed = true,
                           .precise = t->precise,
                           .out = tensor(t->dw[i], DTYPE_F32, t->n, t->k)});
    if (t->parts & PART_CAST_DY)
        apply(t, 2, 1);
}

/* --- against PyTorch --- */

enum { EAGER, COMPILED, SCALED_MM, PEERS };

static const char *const peers[PEERS] = {"train_bf16", "train_bf16_compiled", "train_scaled_mm"};

struct shape {
    uint64_t m, n, k;
    double bf16, fast; /* aims: that many times as fast as bf16; with fast gradients; 0: none */
};

static void print_against(const struct shape *s, const char *ours, unsigned peer, double us,
                          double theirs, double aim)
{
    static const char *const names[PEERS] = {"torch_bf16_eager", "torch_bf16_compiled",
                                             "torch_scaled_mm"};
    char name[96];
    (void)snprintf(name, sizeof name, "%s_vs_%s_%lux%lux%lu", ours, names[peer], s->m, s->n, s->k);
    print_ratio(name, us, theirs, "us", aim > 0 ? 1 / aim : 0);
}

enum { PRECISE, FAST, REPRODUCIBLE, WAYS };

static void set_way(struct trained *t, int way)
{
    t->precise = way != FAST;
    t->reproducible = way == REPRODUCIBLE;
}

/* What the whole consists of, each alone: where time goes that the ratios above do not explain. */
static void bench_parts(struct trained *t, const struct shape *s)
{
    static const struct {
        const char *name;
        unsigned part;
    } parts[] = {{"cast_x", PART_CAST_X},
                 {"fprop", PART_FPROP},
                 {"cast_grad_output", PART_CAST_DY},
                 {"dgrad", PART_DGRAD},
                 {"wgrad", PART_WGRAD}};
    double us[ROUNDS_MAX];
    set_way(t, PRECISE);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        t->parts = parts[p].part;
        for (unsigned r = 0; r < bench.rounds; r++)
            us[r] = burst(stream_of(bench.queue), trained_run, t, BURST);
        char name[96];
        (void)snprintf(name, sizeof name, "forward_backward_part_%s_%lux%lux%lu", parts[p].name,
                       s->m, s->n, s->k);
        print_value(name, median(us, bench.rounds), "us", NULL, 0);
    }
    t->parts = ALL;
}

static void print_shape(const struct shape *s, double us[WAYS][ROUNDS_MAX],
                        double torch[PEERS][ROUNDS_MAX])
{
    double ours[WAYS];
    for (int w = 0; w < WAYS; w++)
        ours[w] = median(us[w], bench.rounds);
    for (unsigned p = 0; p < PEERS; p++) {
        double theirs = median(torch[p], bench.rounds); /* which sorts: the first is the least */
        theirs = torch[p][0] > 0 ? theirs : -1;
        print_against(s, "forward_backward", p, ours[PRECISE], theirs,
                      p == SCALED_MM ? 1.15 : s->bf16);
        print_against(s, "forward_backward_reproducible", p, ours[REPRODUCIBLE], theirs, 0);
        if (p != SCALED_MM)
            print_against(s, "forward_backward_fast_gradients", p, ours[FAST], theirs, s->fast);
    }
}

static void bench_shape(const struct shape *s)
{
    struct trained t = {.m = s->m, .n = s->n, .k = s->k, .parts = ALL};
    double us[WAYS][ROUNDS_MAX], torch[PEERS][ROUNDS_MAX];
    trained_open(&t);
    for (int w = 0; w < WAYS; w++) { /* plans */
        set_way(&t, w);
        trained_run(&t, 0);
        wait_for_all();
    }
    torch_open(&bench.torch, s->m, s->n, s->k, "train_bf16 train_bf16_compiled train_scaled_mm");
    for (unsigned r = 0; r < bench.rounds; r++) {
        for (int w = 0; w < WAYS; w++) {
            set_way(&t, w);
            us[w][r] = burst(stream_of(bench.queue), trained_run, &t, BURST);
        }
        for (int p = 0; p < PEERS; p++)
            torch[p][r] = torch_run(&bench.torch, peers[p]);
    }
    bench.runs = bench.rounds * BURST;
    print_shape(s, us, torch);
    bench_parts(&t, s);
    trained_close(&t);
}

void bench_training(void)
{
    static const struct shape shapes[] = {
        {8192, 8192, 8192, 1.60, 1.70},
        {4096, 14336, 4096, 1.55, 0},
        {16384, 16384, 4096, 1.58, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        bench_shape(&shapes[i]);
}
