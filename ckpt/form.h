/* form.h - dtype and shape of a tensor in a file: shown, and checked against what is needed.
 *
 * Refusals are FP8D_EINVALID_ARGUMENT with the tensor's name, the form found and the form needed.
 * Pure functions; any thread.
 */
#ifndef FP8D_CKPT_FORM_H
#define FP8D_CKPT_FORM_H

#include "ckpt/safetensors.h"

#define FORM_TEXT 256

/* "F32 [2, 3]", "BF16 []" into out; returns out. */
const char *form_text(const struct safetensors_tensor *t, char out[FORM_TEXT]);

/* Exactly this dtype, rank (at most 2) and dimensions. */
int form_check(const struct safetensors_tensor *t, enum dtype dtype, unsigned rank, uint64_t d0,
               uint64_t d1, struct fault *f);

/* One number: F32, BF16 or F16 of shape [], [1] or [1, 1]. `what` says what it is for. */
int form_check_number(const struct safetensors_tensor *t, const char *what, struct fault *f);

#endif
