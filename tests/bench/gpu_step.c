/* What a training step adds, of bench_gpu: casts that write both forms, with and without column
 * sums, the optimizer's step with its cast, and norms. Rates count each byte read or written once.
 */
#include "tests/bench/gpu_bench.h"

#include <stdio.h>
#include <stdlib.h>

#define KEPT 24u /* FP8 tensors that may still be in use: more than a burst, which is waited for   \
                  */

enum work { FORMS, SUMS, STEP, NORM };

/* One operation over tensors in sets that take turns. */
struct pass {
    enum work work;
    uint64_t rows, cols;
    unsigned sets, count, kept_count;
    struct buffer **x, **master, **m, **v, **stored; /* x: source or gradient */
    struct buffer *sums, *state, *host;              /* state: a scaler; host: a report */
    struct qtensor *kept[KEPT];
};

static void wait_for_all(void)
{
    drain(bench.queue);
    peer_must((int)cudaStreamSynchronize(stream_of(bench.queue)), "cudaStreamSynchronize");
}

/* --- opening --- */

static struct buffer **buffers(const struct pass *p, enum dtype t)
{
    struct buffer **all = calloc(p->sets, sizeof *all);
    if (!all)
        exit(1);
    for (unsigned i = 0; i < p->sets; i++)
        all[i] = random_buffer(bench.timed, t, p->rows * p->cols * (dtype_bits(t) / 8));
    return all;
}

/* Moments begin as zero: random ones would be no squares. */
static struct buffer **moments(const struct pass *p)
{
    struct buffer **all = buffers(p, DTYPE_F32);
    for (unsigned i = 0; i < p->sets; i++)
        peer_must((int)cudaMemset(all[i]->data, 0, p->rows * p->cols * 4), "cudaMemset");
    return all;
}

/* A site of scale 64. */
static void open_state(struct pass *p)
{
    size_t step = scaler_bytes(1);
    must(buffer_new(bench.timed, NULL, BUFFER_DEVICE, step, "bench", &p->state, &bench.fault));
    must(buffer_new(bench.timed, NULL, BUFFER_HOST, 512 + step, "bench", &p->host, &bench.fault));
    struct scaler *s = (struct scaler *)(void *)((char *)p->host->host + 512);
    scaler_init(s, 1);
    scaler_adopt(s, 1.0f / 64);
    must(backend_copy(bench.queue, p->state, 0, p->host, 512, step, &bench.fault));
    must(buffer_new(bench.timed, NULL, BUFFER_DEVICE, p->cols * 4, "sums", &p->sums, &bench.fault));
    wait_for_all();
}

static void pass_open(struct pass *p)
{
    uint64_t elements = p->rows * p->cols, sets = ROTATE_BYTES / (elements * 2) + 3;
    p->sets = p->work == STEP ? 2 : sets > 64 ? 64 : (unsigned)sets;
    p->count = elements < (uint64_t)1 << 27 ? 20 : 6;
    p->kept_count = p->count + 2;
    open_state(p);
    p->x = buffers(p, p->work == STEP || p->work == NORM ? DTYPE_F32 : DTYPE_BF16);
    if (p->work != STEP)
        return;
    p->master = buffers(p, DTYPE_F32);
    p->m = moments(p);
    p->v = moments(p);
    p->stored = buffers(p, DTYPE_BF16);
}

static void drop(const struct pass *p, struct buffer **all)
{
    for (unsigned i = 0; all && i < p->sets; i++)
        buffer_unref(all[i]);
    free(all);
}

static void pass_close(struct pass *p)
{
    wait_for_all();
    for (unsigned i = 0; i < KEPT; i++)
        qtensor_unref(p->kept[i]);
    drop(p, p->x);
    drop(p, p->master);
    drop(p, p->m);
    drop(p, p->v);
    drop(p, p->stored);
    buffer_unref(p->sums);
    buffer_unref(p->state);
    buffer_unref(p->host);
}

/* --- running --- */

static struct tensor tensor(const struct pass *p, struct buffer *buf, enum dtype t)
{
    return (struct tensor){.buf = buf, .dtype = t, .rows = p->rows, .cols = p->cols};
}

static void run_step(const struct pass *p, unsigned i, unsigned set, const struct cast *c,
                     struct qtensor **out)
{
    struct update u = {.options = optimizer_default(OPTIMIZER_ADAM),
                       .step = set + 1,
                       .grad_scale = 1.0f,
                       .master = tensor(p, p->master[i], DTYPE_F32),
                       .grad = tensor(p, p->x[i], DTYPE_F32),
                       .m = tensor(p, p->m[i], DTYPE_F32),
                       .v = tensor(p, p->v[i], DTYPE_F32),
                       .round_to = DTYPE_BF16,
                       .stored = tensor(p, p->stored[i], DTYPE_BF16)};
    must(qtensor_update(bench.queue, NULL, &u, c, "w", out, &bench.fault));
}

static void pass_run(void *arg, unsigned set)
{
    struct pass *p = arg;
    unsigned i = set % p->sets;
    struct qtensor **out = &p->kept[set % p->kept_count];
    struct cast c = {.fmt = p->work == STEP ? DTYPE_F8_E4M3 : DTYPE_F8_E5M2,
                     .mode = CAST_SITE,
                     .site = p->state->data,
                     .report = p->host->data,
                     .transposed = true};
    qtensor_unref(*out);
    *out = NULL;
    if (p->work == NORM) {
        struct tensor x = tensor(p, p->x[i], DTYPE_F32);
        must(backend_norm(bench.queue, &x, p->host->data, &bench.fault));
        return;
    }
    if (p->work == STEP) {
        run_step(p, i, set, &c, out);
        return;
    }
    c.src = tensor(p, p->x[i], DTYPE_BF16);
    if (p->work == SUMS)
        c.sums = (struct tensor){.buf = p->sums, .dtype = DTYPE_F32, .rows = 1, .cols = p->cols};
    must(qtensor_cast(bench.queue, NULL, &c, "x", out, &bench.fault));
}

/* Bytes an element: BF16 and two forms; four float32 read, three written, BF16 and two forms;
 * float32. */
static void bench_pass(enum work work, uint64_t rows, uint64_t cols, double aim)
{
    static const char *const names[] = {"quantise_two_forms_BF16", "gradient_with_sums_BF16",
                                        "adam_step_BF16", "norm_F32"};
    static const double bytes[] = {4, 4, 32, 4};
    struct pass p = {.work = work, .rows = rows, .cols = cols};
    double us[ROUNDS_MAX], elements = (double)rows * (double)cols;
    char name[96];
    pass_open(&p);
    (void)burst(stream_of(bench.queue), pass_run, &p, p.count);
    for (unsigned r = 0; r < bench.rounds; r++)
        us[r] = burst(stream_of(bench.queue), pass_run, &p, p.count);
    bench.runs = bench.rounds * p.count;
    double mid = median(us, bench.rounds);
    (void)snprintf(name, sizeof name, "%s_%lux%lu", names[work], rows, cols);
    if (elements < 0x1p22)
        print_value(name, mid, "us", aim > 0 ? "at most" : NULL, aim);
    else
        print_value(name, bytes[work] * elements / mid * 1e-6, "TB/s", aim > 0 ? "at least" : NULL,
                    aim);
    pass_close(&p);
}

void bench_steps(void)
{
    bench_pass(FORMS, 1024, 1024, 5.0);
    bench_pass(FORMS, 8192, 4096, 0);
    bench_pass(FORMS, 32768, 4096, 3.6);
    bench_pass(FORMS, 65536, 8192, 0);
    bench_pass(SUMS, 1024, 1024, 0);
    bench_pass(SUMS, 8192, 4096, 0);
    bench_pass(SUMS, 32768, 4096, 0);
    bench_pass(STEP, 1024, 1024, 0);
    bench_pass(STEP, 4096, 4096, 3.4);
    bench_pass(STEP, 8192, 8192, 3.4);
    bench_pass(NORM, 8192, 8192, 0);
}
