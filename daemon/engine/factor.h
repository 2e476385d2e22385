/* factor.h - the number in a file that FP8 codes are multiplied with: real = code * factor.
 *
 * weight_scale and weight_scale_inv are the same thing under two names, and input_scale is one for
 * inputs (facts in docs/numerics.md 1 and 3). Pure functions; any thread.
 */
#ifndef FP8D_DAEMON_ENGINE_FACTOR_H
#define FP8D_DAEMON_ENGINE_FACTOR_H

#include "ckpt/safetensors.h"

#define FACTOR_BYTES 4 /* the most that one takes in a file */

/* F32, BF16 or F16 of shape [], [1] or [1, 1]. */
int factor_check(const struct safetensors_tensor *t, struct fault *f);

/* The value of t's bytes, widened to float32: finite and at least 2^-128, else
 * FP8D_EINVALID_ARGUMENT with what was found. */
int factor_take(const struct safetensors_tensor *t, const void *bytes, float *out, struct fault *f);

#endif
