/* The device's clock, read at a point of a stream. Twin: kernels/cpu/state.c. */
#include "kernels/cuda/device.cuh"

__global__ void stamp_kernel(uint64_t *at)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    *at = now;
}

/* Launched without overlap: a kernel that was launched early would read before its turn. */
extern "C" cudaError_t launch_stamp(uint64_t *at, cudaStream_t stream)
{
    stamp_kernel<<<1, 1, 0, stream>>>(at);
    return cudaGetLastError();
}
