/* element.h - one element of a tensor of a run-time dtype. */
#ifndef FP8D_KERNELS_CPU_ELEMENT_H
#define FP8D_KERNELS_CPU_ELEMENT_H

#include "kernels/cpu/ops.h"

#include <string.h>

static inline float tensor_element(const struct tensor *t, uint64_t i)
{
    const char *p = tensor_data(t);
    uint16_t half;
    float x;
    if (t->dtype == DTYPE_F32) {
        memcpy(&x, p + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, p + 2 * i, sizeof half);
    return t->dtype == DTYPE_BF16 ? bf16_decode(half) : f16_decode(half);
}

#endif
