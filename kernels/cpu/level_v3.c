/* x86-64-v3: compiled with -march=x86-64-v3 -ffp-contract=off. */
#if !defined(__AVX2__) || defined(__AVX512F__)
#error "level_v3.c must be compiled for x86-64-v3"
#endif
#define CPU_KERNELS cpu_kernels_v3
#include "kernels/cpu/kernels.inc.c"
