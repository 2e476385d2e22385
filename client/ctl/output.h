/* output.h - a tensor that came back: looked at, written to a file, and said. */
#ifndef FP8D_CLIENT_CTL_OUTPUT_H
#define FP8D_CLIENT_CTL_OUTPUT_H

#include "client/ctl/ctl.h"
#include "client/ctl/json.h"

struct output {
    const struct fp8d_tensor *tensor; /* part of a result */
    const char *file;                 /* it was written to; NULL: none */
    float max_abs;                    /* over finite elements */
    uint64_t nonfinite;               /* elements */
};

/* Look at t, and write it as tensor `name` of a safetensors file unless file is NULL.
 * FP8D_EPROTOCOL for a tensor whose bytes did not come, or not F32, BF16 or F16. */
int output_take(struct output *o, const char *name, const struct fp8d_tensor *t, const char *file,
                struct fault *f);

/* "dtype", "shape", "max_abs", "nonfinite", "file". */
json_t *output_json(struct ctl *ctl, const struct output *o);

/* "TITLE F32 [2, 3], max|SYMBOL| 1.5, written to FILE", without a newline. */
void output_print(const struct output *o, const char *title, const char *symbol);

#endif
