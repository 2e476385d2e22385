/* fpenv.h - the floating-point environment that every kernel expects: round to nearest, subnormals
 * neither flushed nor read as zero, all exceptions masked. */
#ifndef FP8D_KERNELS_CPU_FPENV_H
#define FP8D_KERNELS_CPU_FPENV_H

#include <xmmintrin.h>

#define FPENV_DEFAULT 0x1f80u

/* Returns what was set before, for fpenv_leave. */
static inline unsigned fpenv_enter(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(FPENV_DEFAULT);
    return before;
}

static inline void fpenv_leave(unsigned before)
{
    _mm_setcsr(before);
}

#endif
