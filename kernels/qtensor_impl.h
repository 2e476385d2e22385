/* qtensor_impl.h - the inside of struct qtensor, for qtensor.c and the backends alone. */
#ifndef FP8D_KERNELS_QTENSOR_IMPL_H
#define FP8D_KERNELS_QTENSOR_IMPL_H

#include "kernels/backend.h"

#define QTENSOR_PITCH 16u /* what an FP8 row of cuBLASLt is a multiple of (facts 1.2) */

struct qtensor {
    _Atomic uint32_t refs;
    enum dtype fmt;
    enum granularity granularity;
    uint64_t rows, cols;
    struct buffer *mem;     /* BUFFER_DEVICE: codes at 0, factors at factor_offset */
    uint64_t factor_offset; /* a multiple of 64 */
    uint64_t factors;
    uint64_t second_offset; /* of the transposed codes, a multiple of 256; 0: no second form */
    uint64_t second_pitch;  /* bytes from one of their rows to the next: rows rounded up to 16 */
#ifdef FP8D_MUTANT_SITE_SCALE
    const struct scaler *site;
#endif
};

/* One operand of a GEMM, in the form that was asked for. */
struct qtensor_form {
    const uint8_t *codes; /* backend address */
    uint64_t rows, cols;
    uint64_t pitch; /* bytes from row to row; zeros behind the first `cols` */
};
static inline struct qtensor_form qtensor_form(const struct qtensor *t, bool second)
{
    const uint8_t *data = (const uint8_t *)t->mem->data;
    return second
               ? (struct qtensor_form){data + t->second_offset, t->cols, t->rows, t->second_pitch}
               : (struct qtensor_form){data, t->rows, t->cols, t->cols};
}

#endif
