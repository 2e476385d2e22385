/* noise.h - random tensors to measure with: roughly normal numbers of variance 4/3, none of them 0.
 *
 * What a GPU computes with decides what power it draws, and with that how fast it runs: zeros would
 * flatter it.
 */
#ifndef FP8D_CLIENT_CTL_NOISE_H
#define FP8D_CLIENT_CTL_NOISE_H

#include "base/status.h"
#include "client/fp8d.h"

#include <stdint.h>

/* Element i is the sum of four numbers uniform in (-1, 1), from `seed` and i alone, cut to the
 * dtype: F32, BF16 or F16. `to` has room for `count` elements. */
void noise_fill(void *to, enum fp8d_dtype dtype, uint64_t count, uint64_t seed);

#endif
