/* tune.h - which of several algorithms is the fastest, by the clock of the device.
 *
 * Random data in memory of its own, the L2 overwritten before each run, rounds over all candidates
 * in turn, the median of each. Waits for the device: once for each plan, before its first use.
 */
#ifndef FP8D_KERNELS_CUDA_TUNE_H
#define FP8D_KERNELS_CUDA_TUNE_H

#include "kernels/cuda/queue.h"

#define TUNE_CANDIDATES 8
#define TUNE_ROUNDS 5

struct tune_shape {
    enum dtype a, b, d, bias;
    uint64_t count_a, count_b, count_d, count_bias; /* elements */
    bool reads_d;
};

struct tune_operands {
    void *a, *b, *d, *bias;
};

/* Enqueue one run of a candidate on these operands. */
typedef int (*tune_run_cb)(void *arg, const struct tune_operands *o,
                           const cublasLtMatmulHeuristicResult_t *candidate, struct fault *f);

/* Index of the fastest; 0 where there is one candidate alone or no memory to time on. */
int tune_best(struct cuda_queue *q, const struct tune_shape *s,
              const cublasLtMatmulHeuristicResult_t *candidates, int count, tune_run_cb run,
              void *arg);

#endif
