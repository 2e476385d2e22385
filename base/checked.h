/* checked.h - arithmetic on sizes that cannot wrap. Returns false (output untouched) on overflow. */
#ifndef FP8D_BASE_CHECKED_H
#define FP8D_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool ck_add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool ck_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Round up to a multiple of `step`, a power of two. */
static inline bool ck_round_up(uint64_t a, uint64_t step, uint64_t *out)
{
    uint64_t r;
    if (!ck_add(a, step - 1, &r))
        return false;
    *out = r & ~(step - 1);
    return true;
}

/* Product of n dimensions; the empty product is 1 (a scalar). */
static inline bool ck_product(const uint64_t *dims, unsigned n, uint64_t *out)
{
    uint64_t r = 1;
    for (unsigned i = 0; i < n; i++)
        if (!ck_mul(r, dims[i], &r))
            return false;
    *out = r;
    return true;
}

#endif
