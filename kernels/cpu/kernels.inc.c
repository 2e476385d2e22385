/* The kernel text: compiled by level_base.c, level_v3.c and level_v4.c, which define CPU_KERNELS,
 * the name of the table. No FMA may be formed: that would be another rounding. */
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

#include <string.h>

#include "kernels/cpu/gemm.inc.c"

#include "kernels/cpu/cast.inc.c"

const struct cpu_kernels CPU_KERNELS = {
    .gemm_tile = gemm_tile,
    .measure = measure,
    .cast = cast,
    .dequantize = dequantize,
};
