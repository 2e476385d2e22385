#include "tests/oracle/scaler_ref.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two roundings, to double and to float32, are one here: a quotient of 24-bit numbers is no closer
 * than 2^-49 to a float32 tie that it does not hit, and double has 53 bits. */
static float bounded(double scale)
{
    return (float)fmin(fmax(scale, FLT_MIN), FLT_MAX);
}

static void set_scale(struct scaler_ref *r, double amax, int margin)
{
    r->scale = bounded(ldexp(r->fp8_max, -margin) / amax);
    r->scale_inv = (float)(1.0 / (double)r->scale);
    r->set = true;
}

static void enter(struct scaler_ref *r, double amax)
{
    r->last = amax;
    if (r->len == 1)
        return;
    size_t kept = r->seen_count < r->len - 1 ? r->seen_count : r->len - 2;
    memmove(r->seen + 1, r->seen, kept * sizeof *r->seen);
    r->seen[0] = amax;
    r->seen_count = kept + 1;
}

struct scaler_ref *scaler_ref_new(double fp8_max, size_t len)
{
    struct scaler_ref *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->fp8_max = fp8_max;
    scaler_ref_resize(r, len);
    scaler_ref_reset(r);
    return r;
}

void scaler_ref_free(struct scaler_ref *r)
{
    if (r)
        free(r->seen);
    free(r);
}

void scaler_ref_collect(struct scaler_ref *r, double amax, uint64_t nonfinite, uint64_t saturated,
                        uint64_t flushed)
{
    r->collected = fmax(r->collected, amax);
    r->collected_bad |= nonfinite > 0;
    r->nonfinite += nonfinite;
    r->saturated += saturated;
    r->flushed += flushed;
}

void scaler_ref_apply(struct scaler_ref *r, bool most_recent, int margin, bool frozen)
{
    double amax = r->collected;
    if (frozen || r->collected_bad || amax == 0) {
        r->skipped++;
    } else {
        for (size_t i = 0; i < r->seen_count && !most_recent; i++)
            amax = fmax(amax, r->seen[i]);
        set_scale(r, amax, margin);
        enter(r, r->collected);
        r->updates++;
    }
    r->collected = 0;
    r->collected_bad = false;
}

void scaler_ref_calibrate(struct scaler_ref *r, double amax, int margin)
{
    if (amax == 0)
        return;
    set_scale(r, amax, margin);
    enter(r, amax);
}

void scaler_ref_adopt(struct scaler_ref *r, float scale_inv)
{
    r->scale = bounded(1.0 / (double)scale_inv);
    r->scale_inv = scale_inv;
    r->set = true;
}

void scaler_ref_reset(struct scaler_ref *r)
{
    struct scaler_ref kept = *r;
    *r = (struct scaler_ref){.fp8_max = kept.fp8_max, .len = kept.len, .seen = kept.seen};
    r->scale = r->scale_inv = 1;
}

void scaler_ref_resize(struct scaler_ref *r, size_t len)
{
    r->seen = realloc(r->seen, len * sizeof *r->seen);
    if (!r->seen)
        abort();
    r->len = len;
    if (r->seen_count > len - 1)
        r->seen_count = len - 1;
}

double scaler_ref_row(const struct scaler_ref *r, size_t i)
{
    if (i == 0)
        return r->collected;
    size_t age = r->len - 1 - i; /* 0: the newest */
    return age < r->seen_count ? r->seen[age] : 0;
}
