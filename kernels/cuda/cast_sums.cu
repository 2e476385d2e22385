/* The cast that adds up the source's columns as well (the gradient of a bias), with or without a
 * second form: a tile's sums in float32 by the cast, then a small launch that adds the tiles of a
 * column in float64. No atomics: the same tensor gives the same bits. Rules: docs/numerics.md 5.5.
 */
#include "kernels/cuda/cast_forms.cuh"

#define LARGE_FROM 528u /* squares of 128 x 128, as in cast_forms.cu */

#define STRIP 32              /* columns of a block that adds tiles */
#define LANES (BLOCK / STRIP) /* threads of a column, which take the tiles in turn */

__global__ void __launch_bounds__(BLOCK) column_sums_kernel(const struct cast_launch a)
{
    __shared__ double part[LANES][STRIP];
    wait_for_stream();
    unsigned x = threadIdx.x % STRIP, lane = threadIdx.x / STRIP;
    uint64_t col = static_cast<uint64_t>(blockIdx.x) * STRIP + x;
    uint64_t tiles = (a.rows + SUMS_ROWS - 1) / SUMS_ROWS;
    double sum = 0;
#pragma unroll 4
    for (uint64_t i = lane; i < tiles && col < a.cols; i += LANES)
        sum += static_cast<double>(a.partial[i * a.cols + col]);
    part[lane][x] = sum;
    __syncthreads();
    if (lane || col >= a.cols)
        return;
    for (int k = 1; k < LANES; k++)
        sum += part[k][x];
    float rounded = static_cast<float>(sum);
    a.column_sums[col] = optimizer_quiet(a.sums_add ? a.column_sums[col] + rounded : rounded);
}

static cudaError_t launch_column_sums(const struct cast_launch *a, cudaStream_t stream)
{
    unsigned grid = static_cast<unsigned>((a->cols + STRIP - 1) / STRIP);
    return launch_early(column_sums_kernel, grid, BLOCK, stream, *a);
}

/* SUMS_ROWS rows a tile, whatever the size: the order of a sum depends on the shape alone. */
template <enum dtype T, enum dtype FMT>
static cudaError_t launch(const struct cast_launch *a, cudaStream_t stream)
{
    constexpr int rows = SUMS_ROWS;
    if (tiles_of(128, a->rows, a->cols) < LARGE_FROM)
        return launch_tiles < T, FMT, rows, 4, T == DTYPE_F32 ? 3 : 4, true > (a, 1, stream);
    return launch_tiles < T, FMT, rows, 8, T == DTYPE_F32 ? 4 : 6, true > (a, 2, stream);
}

template <enum dtype T> static cudaError_t launch_to(const struct cast_launch *a, cudaStream_t s)
{
    return a->fmt == DTYPE_F8_E4M3 ? launch<T, DTYPE_F8_E4M3>(a, s)
                                   : launch<T, DTYPE_F8_E5M2>(a, s);
}

extern "C" cudaError_t launch_cast_sums(const struct cast_launch *a, cudaStream_t stream)
{
    cudaError_t e = a->dtype == DTYPE_F32    ? launch_to<DTYPE_F32>(a, stream)
                    : a->dtype == DTYPE_BF16 ? launch_to<DTYPE_BF16>(a, stream)
                                             : launch_to<DTYPE_F16>(a, stream);
    return e ? e : launch_column_sums(a, stream);
}
