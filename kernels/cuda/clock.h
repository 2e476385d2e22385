/* clock.h - how the threads of a queue wait: a little by looking, then asleep. */
#ifndef FP8D_KERNELS_CUDA_CLOCK_H
#define FP8D_KERNELS_CUDA_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void nap(long ns)
{
    struct timespec t = {0, ns};
    (void)nanosleep(&t, NULL);
}

static inline void relax(void)
{
    for (int i = 0; i < 16; i++)
        __builtin_ia32_pause();
}

#endif
