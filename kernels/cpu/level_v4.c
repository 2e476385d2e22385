/* x86-64-v4: compiled with -march=x86-64-v4 -ffp-contract=off. */
#ifndef __AVX512F__
#error "level_v4.c must be compiled for x86-64-v4"
#endif
#define CPU_KERNELS cpu_kernels_v4
#include "kernels/cpu/kernels.inc.c"
