/* safetensors_entry.h - one member of a safetensors header: what it says about one tensor.
 *
 * Internal to ckpt/safetensors*.c. Every rule that concerns one tensor alone is checked here:
 * types, dtype, rank, product of the dimensions, whole bytes, data_offsets against shape.
 */
#ifndef FP8D_CKPT_SAFETENSORS_ENTRY_H
#define FP8D_CKPT_SAFETENSORS_ENTRY_H

#include "ckpt/json.h"
#include "ckpt/safetensors.h"

#define SAFETENSORS_SHAPE_TEXT 192 /* the longest "[d, d, ...]" with its NUL */

/* Read an entry. t->offset is its begin, still from the start of the data; t->name is not touched.
 * FP8D_EDATA_LOSS without the tensor's name in the sentence: the caller puts it in front. */
int safetensors_entry(const json_t *entry, struct safetensors_tensor *t, struct fault *f);

/* Bytes that dtype, rank and dims need. FP8D_EDATA_LOSS if there is no such number. */
int safetensors_need(const struct safetensors_tensor *t, uint64_t *bytes, struct fault *f);

/* "[2, 3]" into out. Returns out. */
const char *safetensors_shape_text(const struct safetensors_tensor *t,
                                   char out[SAFETENSORS_SHAPE_TEXT]);

#endif
