/* qtensor_impl.h - the inside of struct qtensor, for qtensor.c and the backends alone. */
#ifndef FP8D_KERNELS_QTENSOR_IMPL_H
#define FP8D_KERNELS_QTENSOR_IMPL_H

#include "kernels/backend.h"

struct qtensor {
    _Atomic uint32_t refs;
    enum dtype fmt;
    enum granularity granularity;
    uint64_t rows, cols;
    struct buffer *mem;       /* BUFFER_DEVICE: codes at 0, factors at factor_offset */
    uint64_t factor_offset;   /* a multiple of 64 */
    uint64_t factors;
#ifdef FP8D_MUTANT_SITE_SCALE
    const struct scaler *site;
#endif
};

/* A tensor with its allocation, codes and factor not yet written: only to be filled by the backend
 * operation that is enqueued next. */
int qtensor_alloc(struct backend *b, struct ledger *l, enum dtype fmt, uint64_t rows, uint64_t cols,
                  const char *what, struct qtensor **out, struct fault *f);

#endif
