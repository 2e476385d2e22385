#include "tests/oracle/cut.h"

#include <math.h>

#define CUTS 34.0 /* 32 products, the accumulator, the result */
#define UNIT 0x1p-13
#define CHUNK_STEPS 4 /* 128 products */

double cut_least(bool e5m2)
{
    return e5m2 ? 0x1p-14 : 0x1p-6;
}

void cut_scale(struct cut *c, double factor)
{
    c->sum *= factor;
    c->magnitude *= factor;
    c->fast *= factor;
    c->precise *= factor;
}

struct cut cut_at_most(uint64_t k, double magnitude)
{
    struct cut_run r = {0};
    for (uint64_t i = 0; i < k; i += CUT_STEP)
        cut_step(&r, 0, i ? 0 : magnitude, magnitude);
    return cut_end(&r);
}

/* Not fmax, whose rule for NaN costs a call. */
static double larger(double x, double y)
{
    return x > y ? x : y;
}

static void span_step(struct cut_span *s, double sum, double reach)
{
    s->steps++;
    s->sum += sum;
    s->largest = larger(s->largest, larger(fabs(s->sum), reach));
}

static double span_cuts(const struct cut_span *s)
{
    return CUTS * (double)s->steps * s->largest;
}

static void chunk_end(struct cut_run *r)
{
    r->chunks += span_cuts(&r->chunk);
    r->chunk = (struct cut_span){0};
}

void cut_step(struct cut_run *r, double sum, double magnitude, double reach)
{
    if (r->chunk.steps == CHUNK_STEPS)
        chunk_end(r);
    span_step(&r->all, sum, reach);
    span_step(&r->chunk, sum, reach);
    r->magnitude += magnitude;
}

struct cut cut_end(struct cut_run *r)
{
    double chunks = ceil((double)r->all.steps / CHUNK_STEPS);
    chunk_end(r);
    return (struct cut){.sum = r->all.sum,
                        .magnitude = r->magnitude,
                        .fast = UNIT * span_cuts(&r->all),
                        .precise = UNIT * r->chunks + chunks * 0x1p-24 * r->magnitude};
}

struct cut cut_of(const float *a, const float *b, uint64_t k, double least_a, double least_b)
{
    struct cut_run r = {0};
    for (uint64_t i = 0; i < k;) {
        double sum = 0, magnitude = 0, reach = 0;
        for (uint64_t end = k - i < CUT_STEP ? k : i + CUT_STEP; i < end; i++) {
            double x = (double)a[i], y = (double)b[i];
            sum += x * y;
            magnitude += fabs(x * y);
            reach = larger(reach, larger(fabs(x), least_a) * larger(fabs(y), least_b));
        }
        cut_step(&r, sum, magnitude, reach);
    }
    return cut_end(&r);
}
