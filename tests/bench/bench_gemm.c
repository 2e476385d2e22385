/* GEMM speed of the CPU backend on one thread, beside a plain dot-product loop and the peak of one
 * core's separate multiplications and additions (no FMA: the backend forms none). Interleaved
 * rounds, medians; one JSON object per line, keys as tests/bench/run says.
 *
 *     bench_gemm [ROUNDS]
 */
#include "base/mem.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS_MAX 99
#define BASE_ROWS 32 /* of the plain loop, which is slow; its rate does not depend on rows */

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- peak: six chains of multiplications and six of additions, in at most 16 registers --- */

#define CHAINS 6
#define PEAK_STEPS 4000000u

#define PEAK_ONE(i)                                                                                \
    m[i] = m[i] * f;                                                                               \
    a[i] = a[i] + t;

/* The two constants are not known to the compiler, and keep every value finite. */
#define DEFINE_PEAK(name, target_text, bytes)                                                      \
    __attribute__((noinline, target(target_text))) static float name(float one, float zero)        \
    {                                                                                              \
        typedef float vec __attribute__((vector_size(bytes)));                                     \
        vec m[CHAINS], a[CHAINS], f = (vec){0} + one, t = (vec){0} + zero;                         \
        for (int i = 0; i < CHAINS; i++)                                                           \
            m[i] = a[i] = f;                                                                       \
        for (unsigned s = 0; s < PEAK_STEPS; s++) {                                                \
            PEAK_ONE(0) PEAK_ONE(1) PEAK_ONE(2) PEAK_ONE(3) PEAK_ONE(4) PEAK_ONE(5)                \
        }                                                                                          \
        for (int i = 1; i < CHAINS; i++)                                                           \
            m[0] += m[i] + a[i];                                                                   \
        return m[0][0];                                                                            \
    }

DEFINE_PEAK(peak_v4, "avx512f", 64)
DEFINE_PEAK(peak_v3, "avx2", 32)
DEFINE_PEAK(peak_base, "sse2", 16)

static double peak_rate(void)
{
    static volatile float sink;
    volatile float one = 1.0f, zero = 0.0f;
    double lanes = cpu_level_runs(CPU_LEVEL_V4) ? 16 : cpu_level_runs(CPU_LEVEL_V3) ? 8 : 4;
    double start = now();
    if (lanes == 16)
        sink = peak_v4(one, zero);
    else if (lanes == 8)
        sink = peak_v3(one, zero);
    else
        sink = peak_base(one, zero);
    (void)sink;
    return 2.0 * CHAINS * lanes * PEAK_STEPS / (now() - start) * 1e-9;
}

/* --- what is compared --- */

struct setup {
    const char *name;
    uint64_t m, n, k;
    struct backend *b;
    struct queue *q;
    struct qtensor *x, *w;
    struct tensor y;
    float *fx, *fw, *fy; /* the plain loop's */
};

static struct fault fault;

static void must(int rc)
{
    if (!rc)
        return;
    (void)fprintf(stderr, "bench_gemm: %s\n", fault.text);
    exit(1);
}

static struct qtensor *operand(struct setup *s, uint64_t rows)
{
    struct buffer *buf = NULL;
    struct qtensor *t = NULL;
    must(buffer_new(s->b, NULL, BUFFER_HOST, rows * s->k, "bench", &buf, &fault));
    for (uint64_t i = 0; i < rows * s->k; i++)
        ((uint8_t *)buf->host)[i] = (uint8_t)(i * 2654435761u >> 13) % 0x70;
    must(qtensor_adopt(s->q, NULL, DTYPE_F8_E4M3, rows, s->k, buf, 0, 0.01f, "bench", &t, &fault));
    buffer_unref(buf);
    return t;
}

static float *floats(uint64_t n)
{
    float *p = mem_pages(n * sizeof *p);
    for (uint64_t i = 0; p && i < n; i++)
        p[i] = (float)(i % 13) - 6.0f;
    if (!p)
        exit(1);
    return p;
}

static void setup_open(struct setup *s)
{
    must(cpu_open(&(struct cpu_options){.inline_queues = true}, &s->b, &fault));
    must(queue_open(s->b, "bench", &s->q, &fault));
    s->x = operand(s, s->m);
    s->w = operand(s, s->n);
    s->y = (struct tensor){.dtype = DTYPE_F32, .rows = s->m, .cols = s->n};
    must(buffer_new(s->b, NULL, BUFFER_HOST, s->m * s->n * 4, "bench", &s->y.buf, &fault));
    s->fx = floats(BASE_ROWS * s->k);
    s->fw = floats(s->n * s->k);
    s->fy = floats(BASE_ROWS * s->n);
}

static void setup_close(struct setup *s)
{
    qtensor_unref(s->x);
    qtensor_unref(s->w);
    buffer_unref(s->y.buf);
    mem_pages_free(s->fx, BASE_ROWS * s->k * sizeof(float));
    mem_pages_free(s->fw, s->n * s->k * sizeof(float));
    mem_pages_free(s->fy, BASE_ROWS * s->n * sizeof(float));
    queue_close(s->q);
    backend_close(s->b);
}

__attribute__((noinline)) static void plain(float *y, const float *x, const float *w, uint64_t m,
                                            uint64_t n, uint64_t k)
{
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (uint64_t l = 0; l < k; l++)
                sum += x[i * k + l] * w[j * k + l];
            y[i * n + j] = sum;
        }
}

static double plain_rate(const struct setup *s)
{
    double start = now();
    plain(s->fy, s->fx, s->fw, BASE_ROWS, s->n, s->k);
    return 2.0 * BASE_ROWS * (double)s->n * (double)s->k / (now() - start) * 1e-9;
}

static double gemm_rate(const struct setup *s)
{
    double start = now();
    must(backend_gemm(s->q, &(struct gemm){.a = s->x, .b = s->w, .out = s->y}, &fault));
    return 2.0 * (double)s->m * (double)s->n * (double)s->k / (now() - start) * 1e-9;
}

/* --- medians --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* With what the project aims for: 10 times the loop, 0.4 of the peak. */
static void print(const char *shape, const char *against, double value, double baseline, double aim)
{
    (void)printf("{\"name\": \"gemm_%s_vs_%s\", \"value\": %.2f, \"unit\": \"GFLOP/s\", "
                 "\"ratio\": %.3f, \"baseline\": %.2f, \"aim\": \"at least\", "
                 "\"aim_ratio\": %.1f}\n",
                 shape, against, value, value / baseline, baseline, aim);
}

static void bench(struct setup *s, unsigned rounds)
{
    double gemm[ROUNDS_MAX], loop[ROUNDS_MAX], peak[ROUNDS_MAX];
    setup_open(s);
    (void)gemm_rate(s); /* first touch of every page */
    for (unsigned i = 0; i < rounds; i++) {
        gemm[i] = gemm_rate(s);
        loop[i] = plain_rate(s);
        peak[i] = peak_rate();
    }
    double value = median(gemm, rounds);
    print(s->name, "plain_loop", value, median(loop, rounds), 10.0);
    print(s->name, "core_peak", value, median(peak, rounds), 0.4);
    setup_close(s);
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 9;
    struct setup shapes[] = {
        {.name = "1024x1024x1024", .m = 1024, .n = 1024, .k = 1024},
        {.name = "64x2048x2048", .m = 64, .n = 2048, .k = 2048},
    };
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: bench_gemm [ROUNDS], 1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        bench(&shapes[i], (unsigned)rounds);
    return 0;
}
