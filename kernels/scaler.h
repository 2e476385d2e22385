/* scaler.h - amax history and current scale of one quantisation site, and how they move.
 *
 * A scaler is plain memory of fixed layout that lives where the backend computes (host memory on
 * the CPU backend, device memory on a GPU), owned by a layer and touched only by backend operations
 * in queue order. The engine reads a host mirror, refreshed when a request completes.
 *
 * Two phases, so that a reduction across ranks can go between them: a request's casts fill slots;
 * `scaler_collect` puts a slot into row 0; `scaler_apply` moves history and scale.
 * Rules: docs/numerics.md section 3. Pure functions, one text for host and device.
 */
#ifndef FP8D_KERNELS_SCALER_H
#define FP8D_KERNELS_SCALER_H

#include "kernels/recipe.h"

#include <stddef.h>

/* What the casts of one site in one request, or in one scope, saw. Merging is max and sum, thus
 * independent of order. */
struct amax_slot {
    float amax;         /* max |x| over finite elements of the unscaled tensor, itself finite */
    uint32_t casts;     /* tensors that were fed */
    uint64_t nonfinite; /* elements that were NaN or Inf */
    uint64_t saturated; /* finite elements whose scaled value rounds beyond fp8_max */
    uint64_t flushed;   /* non-zero elements whose code is a zero */
};

struct scaler {
    float scale;              /* what the next cast multiplies with */
    float scale_inv;          /* 1/scale, or verbatim from a file */
    float amax_last;          /* newest amax that entered the history; 0 before any */
    uint32_t set;             /* 0: never updated, loaded, calibrated nor given: "unset" */
    uint32_t len;             /* L, rows of history; at least 1 */
    uint32_t row0_nonfinite;  /* 1: a non-finite element since the last apply */
    uint64_t updates;         /* applies that moved the history */
    uint64_t skipped_updates; /* applies that were skipped whole */
    uint64_t nonfinite, saturated, flushed; /* sums over all collected slots */
    float history[]; /* [len]; row 0 collects, row 1 oldest, row len-1 newest */
};

/* Bytes of a scaler with `len` rows, a multiple of 64. */
FP8_HD size_t scaler_bytes(uint32_t len)
{
    return (sizeof(struct scaler) + (size_t)len * sizeof(float) + 63) & ~(size_t)63;
}

FP8_HD void slot_merge(struct amax_slot *into, const struct amax_slot *from)
{
    if (from->amax > into->amax)
        into->amax = from->amax;
    into->casts += from->casts;
    into->nonfinite += from->nonfinite;
    into->saturated += from->saturated;
    into->flushed += from->flushed;
}

/* Scale 1, history 0, unset, counters 0. The memory holds scaler_bytes(len). */
void scaler_init(struct scaler *s, uint32_t len);

/* First phase: row 0 = max(row 0, slot->amax), flags and counters added. A slot with casts == 0
 * changes nothing. */
FP8_HD void scaler_collect(struct scaler *s, const struct amax_slot *slot)
{
    if (!slot->casts)
        return;
    if (slot->amax > s->history[0])
        s->history[0] = slot->amax;
    if (slot->nonfinite)
        s->row0_nonfinite = 1;
    s->nonfinite += slot->nonfinite;
    s->saturated += slot->saturated;
    s->flushed += slot->flushed;
}

/* Put `amax` (finite, > 0) into the history as its newest row. L = 1: the value alone stays in
 * amax_last, row 0 is cleared. */
FP8_HD void scaler_roll(struct scaler *s, float amax)
{
    for (uint32_t i = 1; i + 1 < s->len; i++)
        s->history[i] = s->history[i + 1];
    if (s->len > 1)
        s->history[s->len - 1] = amax;
    s->history[0] = 0.0f;
    s->amax_last = amax;
}

/* max(amax, history[1..L-1]) before the roll: the oldest value takes part once more and then
 * leaves. */
FP8_HD float scaler_window(const struct scaler *s, float amax)
{
    for (uint32_t i = 1; i < s->len; i++)
        if (s->history[i] > amax)
            amax = s->history[i];
    return amax;
}

/* The parts of an apply, for the device, which rolls and looks for the largest in parallel.
 * First: what was collected; row 0 and its flag are cleared. 0 (counted) where nothing is to move:
 * nothing collected, a non-finite element, or a frozen model. */
FP8_HD float scaler_take(struct scaler *s, bool frozen)
{
    float collected = s->history[0];
    bool skip = frozen || s->row0_nonfinite || !(collected > 0.0f);
    s->history[0] = 0.0f;
    s->row0_nonfinite = 0;
    if (!skip)
        return collected;
    s->skipped_updates++;
    return 0.0f;
}

/* Last: the scale from the window's amax. */
FP8_HD void scaler_set(struct scaler *s, enum dtype fmt, int margin, float amax)
{
    s->scale = recipe_scale(amax, fmt, margin);
    s->scale_inv = recipe_scale_inv(s->scale);
    s->set = 1;
    s->updates++;
}

/* Second phase. Nothing collected, a non-finite element, or a frozen model: skipped whole (no roll,
 * scale kept, row 0 cleared, counted). Otherwise rolled, and the scale set from the window. */
FP8_HD void scaler_apply(struct scaler *s, enum dtype fmt, enum amax_algo algo, int margin,
                         bool frozen)
{
    float collected = scaler_take(s, frozen);
    if (!(collected > 0.0f))
        return;
    float amax = algo == AMAX_MAX ? scaler_window(s, collected) : collected;
    scaler_roll(s, collected);
    scaler_set(s, fmt, margin, amax);
}

/* Calibration's end, and FP8 primary weights of an unset site: the scale comes from `amax` alone,
 * which is finite and enters as the newest row; row 0 and its flag stay, for the next apply.
 * amax 0: nothing changes (an unset site stays unset, its scale 1). */
void scaler_calibrate(struct scaler *s, enum dtype fmt, int margin, float amax);

/* A static factor of a checkpoint: scale_inv is kept verbatim, scale = 1/scale_inv clamped to
 * [FLT_MIN, FLT_MAX]. The caller has checked recipe_factor_ok. The history is left alone. */
void scaler_adopt(struct scaler *s, float scale_inv);

/* Back to scaler_init, the length kept. */
void scaler_reset(struct scaler *s);

/* Copy `from` into `to` (other memory, whose len is set): the newest rows are kept, growing inserts
 * zeros as the oldest, everything else is copied. A site of L = 1 has no rows beside row 0 to keep.
 */
void scaler_resize(struct scaler *to, const struct scaler *from);

#endif
