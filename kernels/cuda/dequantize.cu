/* out = code * factor in float32, rounded once. Twin: dequantize_of in kernels/cpu/cast.inc.c. */
#include "kernels/cuda/device.cuh"

template <enum dtype FMT, enum dtype T>
__global__ void __launch_bounds__(BLOCK)
    dequantize_kernel(const uint8_t *codes, const float *factor, void *out, uint64_t count)
{
    float f = *factor;
    uint64_t words = count / 4;
    for (uint64_t i = grid_first(); i < words; i += grid_step()) {
        uint32_t four = reinterpret_cast<const uint32_t *>(codes)[i];
#pragma unroll
        for (int k = 0; k < 4; k++)
            store_as(out, T, 4 * i + k, fp8_decode(static_cast<uint8_t>(four >> 8 * k), FMT) * f);
    }
    for (uint64_t i = grid_first(); i < count - 4 * words; i += grid_step())
        store_as(out, T, 4 * words + i, fp8_decode(codes[4 * words + i], FMT) * f);
}

template <enum dtype FMT>
static void launch(const uint8_t *codes, const float *factor, void *out, enum dtype t,
                   uint64_t count, cudaStream_t stream)
{
    unsigned grid = blocks_for(count / 4, 1u << 16);
    if (t == DTYPE_F32)
        dequantize_kernel<FMT, DTYPE_F32><<<grid, BLOCK, 0, stream>>>(codes, factor, out, count);
    else if (t == DTYPE_BF16)
        dequantize_kernel<FMT, DTYPE_BF16><<<grid, BLOCK, 0, stream>>>(codes, factor, out, count);
    else
        dequantize_kernel<FMT, DTYPE_F16><<<grid, BLOCK, 0, stream>>>(codes, factor, out, count);
}

extern "C" cudaError_t launch_dequantize(const uint8_t *codes, enum dtype fmt, const float *factor,
                                         void *out, enum dtype dtype, uint64_t count,
                                         cudaStream_t stream)
{
    if (fmt == DTYPE_F8_E4M3)
        launch<DTYPE_F8_E4M3>(codes, factor, out, dtype, count, stream);
    else
        launch<DTYPE_F8_E5M2>(codes, factor, out, dtype, count, stream);
    return cudaGetLastError();
}
