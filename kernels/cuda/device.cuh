/* device.cuh - what the kernels share: elements of a run-time dtype, grid sizes, and launches that
 * overlap with the end of the kernel before. */
#ifndef FP8D_KERNELS_CUDA_DEVICE_CUH
#define FP8D_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/launch.h"

#include <stdint.h>

#define BLOCK 256

__device__ static inline float load_as(const void *p, enum dtype t, uint64_t i)
{
    switch (t) {
    case DTYPE_F32:
        return static_cast<const float *>(p)[i];
    case DTYPE_BF16:
        return bf16_decode(static_cast<const uint16_t *>(p)[i]);
    case DTYPE_F16:
        return f16_decode(static_cast<const uint16_t *>(p)[i]);
    default:
        return fp8_decode(static_cast<const uint8_t *>(p)[i], t);
    }
}

__device__ static inline bool is_nan(float x)
{
    return (fp8_float_bits(x) & 0x7fffffffu) > 0x7f800000u;
}

/* Rounded once; every NaN becomes the quiet NaN, sign dropped. */
__device__ static inline void store_as(void *p, enum dtype t, uint64_t i, float x)
{
    if (is_nan(x))
        x = fp8_bits_float(0x7fc00000u);
    switch (t) {
    case DTYPE_F32:
        static_cast<float *>(p)[i] = x;
        break;
    case DTYPE_BF16:
        static_cast<uint16_t *>(p)[i] = bf16_encode(x);
        break;
    case DTYPE_F16:
        static_cast<uint16_t *>(p)[i] = f16_encode(x);
        break;
    default:
        static_cast<uint8_t *>(p)[i] = fp8_encode(x, t);
        break;
    }
}

/* Rounded to t and back. */
__device__ static inline float round_to(float x, enum dtype t)
{
    if (t == DTYPE_BF16)
        return bf16_decode(bf16_encode(x));
    return t == DTYPE_F16 ? f16_decode(f16_encode(x)) : x;
}

/* Blocks for `work` threads' worth of steps, at most `most`, at least one. */
static inline unsigned blocks_for(uint64_t work, unsigned most)
{
    uint64_t n = (work + BLOCK - 1) / BLOCK;
    return n > most ? most : n ? static_cast<unsigned>(n) : 1u;
}

/* A kernel launched by launch_early begins with this: all before it on the stream is complete and
 * visible behind it. */
__device__ static inline void wait_for_stream()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Programmatic dependent launch: blocks are placed while the kernel before still drains, about 1.5
 * us earlier. */
template <typename... P, typename... A>
static cudaError_t launch_early(void (*kernel)(P...), unsigned grid, unsigned threads,
                                cudaStream_t stream, A... args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = threads;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* for (uint64_t i = grid_first(); i < n; i += grid_step()): all threads of the launch share n. */
__device__ static inline uint64_t grid_first()
{
    return blockIdx.x * static_cast<uint64_t>(BLOCK) + threadIdx.x;
}

__device__ static inline uint64_t grid_step()
{
    return gridDim.x * static_cast<uint64_t>(BLOCK);
}

#endif
