/* plan.h - cuBLASLt's side of a GEMM: description in, descriptors and a fixed algorithm out.
 *
 * D[m, n] = A[k, m]^T * B[k, n], column-major, A and B K-major (TN, the only form that FP8 has on
 * sm_90). In the terms of backend.h: A is b (the weight), B is a (the input), D is out row-major.
 * Plans are kept by everything that matters; the algorithm is chosen before the first use and stays
 * for as long as the backend is open. A reproducible GEMM has a plan of its own, which the timing of
 * others does not reach. One lock around choosing and launching.
 */
#ifndef FP8D_KERNELS_CUDA_PLAN_H
#define FP8D_KERNELS_CUDA_PLAN_H

#include "kernels/cuda/queue.h"

/* Compared as bytes: zero it first. */
struct plan_key {
    uint64_t m, n, k;
    uint64_t ldd;
    uint8_t a, b, d, bias;                         /* enum dtype; bias DTYPE_NONE: no epilogue */
    uint8_t fast;                                  /* fast accumulation, FP8 alone */
    uint8_t accumulate;                            /* beta is 1: D is added to */
    uint8_t reproducible;                          /* the first answer, else the fastest */
    uint8_t align_a, align_b, align_d, align_bias; /* log2, at most 8 */
    uint8_t pad[5];
};

struct plan_call {
    struct plan_key key;
    const void *a, *b, *bias;
    void *d;
    const float *factor_a, *factor_b; /* device; FP8 alone */
};

struct plans;

/* `reproducible`: all are, whatever their keys say. NULL: no memory. */
struct plans *plans_new(bool reproducible);
void plans_free(struct plans *p);

/* Fill key.align_*, find or make the plan, enqueue. FP8D_EUNIMPLEMENTED where cuBLASLt has no
 * algorithm for it: nothing was enqueued then. */
int plan_run(struct cuda_queue *q, struct plan_call *c, struct fault *f);

#endif
