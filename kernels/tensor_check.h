/* tensor_check.h - the checks that the front functions share. Pure; for backend.c and qtensor.c.
 *
 * `field` is the name of the argument in the sentence, e.g. "gemm.out". All return 0 or
 * FP8D_EINVALID_ARGUMENT with field, value found and value needed.
 */
#ifndef FP8D_KERNELS_TENSOR_CHECK_H
#define FP8D_KERNELS_TENSOR_CHECK_H

#include "kernels/backend.h"

/* [offset, offset + bytes) lies inside buf, and buf belongs to b. */
int check_range(const struct backend *b, const struct buffer *buf, uint64_t offset, uint64_t bytes,
                const char *field, struct fault *f);

/* F32, BF16 or F16; at least one column; offset a multiple of the element; inside its buffer. Zero
 * rows are fine. */
int check_tensor(const struct backend *b, const struct tensor *t, const char *field,
                 struct fault *f);

/* There, and of backend b. In qtensor.c, which alone sees the inside. */
int check_qtensor(const struct backend *b, const struct qtensor *t, const char *field,
                  struct fault *f);

/* All that backend_update and qtensor_update have in common; in update.c. */
int check_update(const struct backend *b, const struct update *u, struct fault *f);

/* a and b, both well, share no byte. */
int check_apart(const struct tensor *a, const char *a_field, const struct tensor *b,
                const char *b_field, struct fault *f);

/* F8_E4M3 or F8_E5M2. */
int check_fp8(enum dtype fmt, const char *field, struct fault *f);

/* found == needed, both a number of rows or columns. */
int check_dim(uint64_t found, uint64_t needed, const char *field, struct fault *f);

#endif
