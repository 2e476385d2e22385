/* tensor_file.h - tensors on the command line: safetensors files, in and out. */
#ifndef FP8D_CLIENT_CTL_TENSOR_FILE_H
#define FP8D_CLIENT_CTL_TENSOR_FILE_H

#include "base/fault.h"
#include "client/fp8d.h"

/* A tensor read from a file: tensor.data is mem_pages of tensor.size. */
struct tensor_file {
    struct fp8d_tensor tensor;
    void *pages;
};

/* Read FILE or FILE:TENSOR. The last colon splits, unless a file exists as written; a file with one
 * tensor needs no name. Faults name the file, and the tensors there are. */
int tensor_file_read(const char *spec, struct tensor_file *out, struct fault *f);
void tensor_file_fini(struct tensor_file *t); /* also zeroed */

/* Write one tensor under `name` as a safetensors file: to a temporary beside, then renamed over. */
int tensor_file_write(const char *path, const char *name, const struct fp8d_tensor *t,
                      struct fault *f);

/* max |x| over finite elements and how many are not finite, of an F32, BF16 or F16 tensor. */
void tensor_max_abs(const struct fp8d_tensor *t, float *max, uint64_t *nonfinite);

/* Square root of the sum of x^2 over finite elements, added up in double. Likewise. */
double tensor_norm(const struct fp8d_tensor *t);

#endif
