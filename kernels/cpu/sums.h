/* sums.h - the sums of a tensor's columns, inside an operation of the CPU backend: each in float64
 * over ascending rows, rounded once to float32, then added to what is there if `add`. */
#ifndef FP8D_KERNELS_CPU_SUMS_H
#define FP8D_KERNELS_CPU_SUMS_H

#include "kernels/cpu/queue.h"

void cpu_column_sums(struct cpu_queue *q, const struct tensor *src, const struct tensor *sums,
                     bool add);

#endif
