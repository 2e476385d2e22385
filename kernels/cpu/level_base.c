/* x86-64: compiled with -march=x86-64 -ffp-contract=off. */
#ifdef __AVX__
#error "level_base.c must be compiled for x86-64"
#endif
#define CPU_KERNELS cpu_kernels_base
#include "kernels/cpu/kernels.inc.c"
