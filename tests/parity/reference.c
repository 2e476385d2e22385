#include "tests/parity/reference.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 64
#define COLUMNS 16

/* The loader takes the text for the widest vectors that the processor has. Not under sanitizers,
 * which are not up yet when it chooses. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FOR_ALL_PROCESSORS
#else
#define FOR_ALL_PROCESSORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

double reference_decode(uint8_t code, bool e5m2)
{
    int mant = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    int exponent = (code & 0x7f) >> mant, fraction = code & ((1 << mant) - 1);
    double sign = code & 0x80 ? -1.0 : 1.0;
    if (e5m2 && exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    if (!e5m2 && (code & 0x7f) == 0x7f)
        return NAN;
    if (!exponent)
        return sign * ldexp(fraction, 1 - bias - mant);
    return sign * ldexp((1 << mant) + fraction, exponent - bias - mant);
}

double reference_bound_high(uint64_t k, bool float32)
{
    double d = (double)k;
    return float32 ? (d + 8) * 0x1p-24 : (d / 8 + 8) * 0x1p-23;
}

struct work {
    const struct reference *r;
    _Atomic uint64_t next; /* COLUMNS columns */
};

/* A step's sums of COLUMNS outputs. */
struct sums {
    double sum[COLUMNS], magnitude[COLUMNS], reach[COLUMNS];
};

/* b[col..col + COLUMNS) with the columns side by side, zeros behind the last: so that what
 * follows vectorises. */
static void panel_fill(const struct reference *r, uint64_t col, float *panel)
{
    uint64_t columns = r->n - col < COLUMNS ? r->n - col : COLUMNS;
    memset(panel, 0, r->k * COLUMNS * sizeof *panel);
    for (uint64_t c = 0; c < columns; c++)
        for (uint64_t i = 0; i < r->k; i++)
            panel[i * COLUMNS + c] = r->b[(col + c) * r->k + i];
}

/* Not fmax: its rule for NaN does not vectorise. */
static inline double larger(double x, double y)
{
    return x > y ? x : y;
}

FOR_ALL_PROCESSORS
static void step(const float *a, const float *panel, uint64_t k, double least_a, double least_b,
                 struct sums *out)
{
    struct sums s = {0};
    for (uint64_t i = 0; i < k; i++) {
        double x = (double)a[i], far = larger(fabs(x), least_a);
        for (unsigned c = 0; c < COLUMNS; c++) {
            double y = (double)panel[i * COLUMNS + c], p = x * y;
            s.sum[c] += p;
            s.magnitude[c] += fabs(p);
            s.reach[c] = larger(s.reach[c], far * larger(fabs(y), least_b));
        }
    }
    *out = s;
}

/* One row times a panel. */
static void row(const struct reference *r, const float *a, const float *panel, uint64_t columns,
                struct cut *cut)
{
    struct cut_run run[COLUMNS] = {0};
    for (uint64_t i = 0; i < r->k; i += CUT_STEP) {
        struct sums s;
        uint64_t k = r->k - i < CUT_STEP ? r->k - i : CUT_STEP;
        step(a + i, panel + i * COLUMNS, k, r->least_a, r->least_b, &s);
        for (uint64_t c = 0; c < columns; c++)
            cut_step(&run[c], s.sum[c], s.magnitude[c], s.reach[c]);
    }
    for (uint64_t c = 0; c < columns; c++)
        cut[c] = cut_end(&run[c]);
}

static void *run(void *arg)
{
    struct work *w = arg;
    const struct reference *r = w->r;
    float *panel = malloc(r->k * COLUMNS * sizeof *panel + 1);
    uint64_t col;
    if (!panel)
        abort();
    while ((col = COLUMNS * atomic_fetch_add(&w->next, 1)) < r->n) {
        uint64_t columns = r->n - col < COLUMNS ? r->n - col : COLUMNS;
        panel_fill(r, col, panel);
        for (uint64_t i = 0; i < r->rows; i++)
            row(r, r->a + r->row[i] * r->k, panel, columns, r->cut + i * r->n + col);
    }
    free(panel);
    return NULL;
}

void reference_run(const struct reference *r)
{
    struct work w = {.r = r};
    pthread_t thread[THREADS_MAX];
    long n = sysconf(_SC_NPROCESSORS_ONLN), started = 0;
    for (; started < n && started < THREADS_MAX; started++)
        if (pthread_create(&thread[started], NULL, run, &w))
            break;
    (void)run(&w);
    while (started > 0)
        (void)pthread_join(thread[--started], NULL);
}
