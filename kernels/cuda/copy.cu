/* Moving and making bytes: copies that must not wait for the host, padding, dtype conversion, data
 * to time on. */
#include "kernels/cuda/device.cuh"

#define MOST_BLOCKS 2048u

__global__ void __launch_bounds__(BLOCK) copy16_kernel(uint4 *dst, const uint4 *src, uint64_t n)
{
    for (uint64_t i = grid_first(); i < n; i += grid_step())
        dst[i] = src[i];
}

__global__ void __launch_bounds__(BLOCK) copy1_kernel(uint8_t *dst, const uint8_t *src, uint64_t n)
{
    for (uint64_t i = grid_first(); i < n; i += grid_step())
        dst[i] = src[i];
}

extern "C" cudaError_t launch_copy(void *dst, const void *src, uint64_t bytes, cudaStream_t stream)
{
    uintptr_t both = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src);
    if (!bytes)
        return cudaSuccess;
    if (both % 16 == 0 && bytes % 16 == 0)
        copy16_kernel<<<blocks_for(bytes / 16, MOST_BLOCKS), BLOCK, 0, stream>>>(
            static_cast<uint4 *>(dst), static_cast<const uint4 *>(src), bytes / 16);
    else
        copy1_kernel<<<blocks_for(bytes, MOST_BLOCKS), BLOCK, 0, stream>>>(
            static_cast<uint8_t *>(dst), static_cast<const uint8_t *>(src), bytes);
    return cudaGetLastError();
}

__global__ void store_kernel(float *dst, float value)
{
    *dst = value;
}

extern "C" cudaError_t launch_store_float(float *dst, float value, cudaStream_t stream)
{
    store_kernel<<<1, 1, 0, stream>>>(dst, value);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(BLOCK)
    pad_kernel(uint8_t *dst, uint64_t rows_to, uint64_t cols_to, const uint8_t *src, uint64_t rows,
               uint64_t cols, uint64_t pitch)
{
    for (uint64_t i = grid_first(); i < rows_to * cols_to; i += grid_step()) {
        uint64_t row = i / cols_to, col = i % cols_to;
        dst[i] = row < rows && col < cols ? src[row * pitch + col] : 0;
    }
}

extern "C" cudaError_t launch_pad(uint8_t *dst, uint64_t rows_to, uint64_t cols_to,
                                  const uint8_t *src, uint64_t rows, uint64_t cols, uint64_t pitch,
                                  cudaStream_t stream)
{
    pad_kernel<<<blocks_for(rows_to * cols_to, MOST_BLOCKS * 8), BLOCK, 0, stream>>>(
        dst, rows_to, cols_to, src, rows, cols, pitch);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(BLOCK)
    convert_kernel(void *dst, enum dtype to, const void *src, enum dtype from, uint64_t count)
{
    for (uint64_t i = grid_first(); i < count; i += grid_step())
        store_as(dst, to, i, load_as(src, from, i));
}

extern "C" cudaError_t launch_convert(void *dst, enum dtype to, const void *src, enum dtype from,
                                      uint64_t count, cudaStream_t stream)
{
    convert_kernel<<<blocks_for(count, MOST_BLOCKS * 8), BLOCK, 0, stream>>>(dst, to, src, from,
                                                                             count);
    return cudaGetLastError();
}

/* Sum of four uniform numbers in [-1, 1): near enough to normal for the power that it draws. */
__global__ void __launch_bounds__(BLOCK)
    fill_kernel(void *dst, enum dtype t, uint64_t count, uint32_t seed)
{
    for (uint64_t i = grid_first(); i < count; i += grid_step()) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        float sum = 0.0f;
        for (int k = 0; k < 4; k++)
            sum += static_cast<float>(z >> 16 * k & 0xffff) * (1.0f / 32768.0f) - 1.0f;
        store_as(dst, t, i, sum);
    }
}

extern "C" cudaError_t launch_fill(void *dst, enum dtype t, uint64_t count, uint32_t seed,
                                   cudaStream_t stream)
{
    fill_kernel<<<blocks_for(count, MOST_BLOCKS * 8), BLOCK, 0, stream>>>(dst, t, count, seed);
    return cudaGetLastError();
}
