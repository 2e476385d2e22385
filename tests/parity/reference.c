#include "tests/parity/reference.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#define THREADS_MAX 64
#define COLUMNS 4

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

double reference_bound_fp8(uint64_t k, bool fast)
{
    double d = (double)k;
    return fast ? (d / 32 + 2) * 0x1p-13 : 6 * 0x1p-13 + d / 128 * 0x1p-24;
}

double reference_bound_high(uint64_t k, bool float32)
{
    double d = (double)k;
    return float32 ? (d + 8) * 0x1p-24 : (d / 8 + 8) * 0x1p-23;
}

struct work {
    const struct reference *r;
    _Atomic uint64_t next; /* a row */
};

/* COLUMNS outputs at a time, for as many chains of additions. */
static void columns(const struct reference *r, const float *a, uint64_t col, double *sum,
                    double *magnitude)
{
    double s[COLUMNS] = {0}, m[COLUMNS] = {0};
    const float *b = r->b + col * r->k;
    for (uint64_t i = 0; i < r->k; i++)
        for (int c = 0; c < COLUMNS; c++) {
            double p = (double)a[i] * (double)b[(uint64_t)c * r->k + i];
            s[c] += p;
            m[c] += fabs(p);
        }
    for (int c = 0; c < COLUMNS; c++) {
        sum[col + (uint64_t)c] = s[c];
        magnitude[col + (uint64_t)c] = m[c];
    }
}

static void *run(void *arg)
{
    struct work *w = arg;
    const struct reference *r = w->r;
    for (;;) {
        uint64_t i = atomic_fetch_add(&w->next, 1);
        if (i >= r->rows)
            return NULL;
        for (uint64_t col = 0; col < r->n; col += COLUMNS)
            columns(r, r->a + r->row[i] * r->k, col, r->sum + i * r->n, r->magnitude + i * r->n);
    }
}

/* n is a multiple of COLUMNS. */
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
