/* report.h - what operations say about themselves, in host-readable memory. One text for host and
 * device. */
#ifndef FP8D_KERNELS_REPORT_H
#define FP8D_KERNELS_REPORT_H

#include "kernels/scaler.h"

/* What a cast says about itself, written by the queue into host-readable memory. */
struct cast_report {
    struct amax_slot slot; /* casts = 1 */
    float scale;           /* the snapshot that the bytes were made with */
    float scale_inv;       /* what the tensor carries */
    uint32_t from_tensor;  /* 1: the scale came from this tensor's amax */
    uint32_t pad;
};

/* |a - b| against b, all in float64 over float32 values of both. */
struct compare_report {
    double max_diff;    /* max |a - b| */
    double max_ref;     /* max |b| */
    double sum_diff2;   /* sum (a - b)^2, in an order fixed per backend */
    double sum_ref2;    /* sum b^2 */
    uint64_t nonfinite; /* elements where either is not finite; left out of the four above */
};

/* The square of a tensor's norm. */
struct norm_report {
    double sum2; /* sum x^2 over the finite elements, in float64, in an order fixed per backend:
                    the same tensor gives the same bits, whatever the threads */
    uint64_t nonfinite; /* elements that were NaN or Inf */
};

#endif
