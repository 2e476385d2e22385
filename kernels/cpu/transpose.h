/* transpose.h - FP8 codes the other way round, inside an operation of the CPU backend. */
#ifndef FP8D_KERNELS_CPU_TRANSPOSE_H
#define FP8D_KERNELS_CPU_TRANSPOSE_H

#include "kernels/cpu/queue.h"
#include "kernels/qtensor_impl.h"

/* from [rows, cols], dense, to [cols, rows] with rows of `pitch` >= rows bytes, zeros behind. */
void cpu_transpose_codes(struct cpu_queue *q, const uint8_t *from, uint64_t rows, uint64_t cols,
                         uint8_t *to, uint64_t pitch);

#endif
