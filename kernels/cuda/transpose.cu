/* FP8 codes [rows, cols] to [cols, rows], and the factor with them. Twin:
 * kernels/cpu/transpose.c. */
#include "kernels/cuda/tile.cuh"

#define ROWS 128
#define HIGH 8
#define BLOCKS_PER_SM 4u

__device__ static inline uint8_t code_at(const struct transpose_launch &t, uint64_t row,
                                         uint64_t col)
{
    return row < t.rows && col < t.cols ? t.from[row * t.cols + col] : 0;
}

/* Eight codes along a row; zeros outside. */
__device__ static inline uint2 eight_at(const struct transpose_launch &t, uint64_t row,
                                        uint64_t col)
{
    if (t.cols % WIDE == 0)
        return row < t.rows && col < t.cols
                   ? __ldg(reinterpret_cast<const uint2 *>(t.from + row * t.cols + col))
                   : make_uint2(0, 0);
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < WIDE; k++)
        w[k / 4] |= static_cast<uint32_t>(code_at(t, row, col + k)) << 8 * (k % 4);
    return make_uint2(w[0], w[1]);
}

__global__ void __launch_bounds__(tile<ROWS, HIGH>::threads)
    transpose_kernel(const struct transpose_launch t)
{
    __shared__ __align__(16) tile<ROWS, HIGH> turned;
    uint64_t tiles = tiles_of(ROWS, t.rows, t.cols);
    for (uint64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const place<ROWS, HIGH> p(i, t.cols);
        uint2 row[HIGH];
#pragma unroll
        for (int k = 0; k < HIGH; k++)
            row[k] = eight_at(t, p.row() + k, p.col());
        tile_put(&turned, p, row);
        __syncthreads();
        tile_out(&turned, p, t.to, t.rows, t.cols, t.rows);
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *t.factor_to = *t.factor;
}

extern "C" cudaError_t launch_transpose(const struct transpose_launch *a, cudaStream_t stream)
{
    uint64_t tiles = tiles_of(ROWS, a->rows, a->cols), most = a->sms * BLOCKS_PER_SM;
    transpose_kernel<<<static_cast<unsigned>(tiles > most ? most : tiles),
                       tile<ROWS, HIGH>::threads, 0, stream>>>(*a);
    return cudaGetLastError();
}
