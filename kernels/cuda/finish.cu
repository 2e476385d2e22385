/* From accumulators to outputs, as docs/numerics.md 5 says. Twin: finish_row_of in
 * kernels/cpu/gemm.inc.c. */
#include "kernels/cuda/device.cuh"

__global__ void __launch_bounds__(BLOCK) finish_kernel(const struct finish_launch a)
{
    float fa = a.factor_a ? *a.factor_a : 1.0f, fb = a.factor_b ? *a.factor_b : 1.0f;
    float both = fa * fb;
    bool normal = both >= FP8_FLT_MIN && both <= FP8_FLT_MAX;
    for (uint64_t i = grid_first(); i < a.rows * a.cols; i += grid_step()) {
        uint64_t row = i / a.cols, col = i % a.cols;
        float y = a.acc[row * a.pitch + col];
        y = normal ? y * both : y * fa * fb;
        if (a.bias)
            y += round_to(load_as(a.bias, a.bias_dtype, col), a.dtype);
        if (a.accumulate)
            y += load_as(a.out, a.dtype, i);
        store_as(a.out, a.dtype, i, y);
    }
}

extern "C" cudaError_t launch_finish(const struct finish_launch *a, cudaStream_t stream)
{
    finish_kernel<<<blocks_for(a->rows * a->cols, 1u << 14), BLOCK, 0, stream>>>(*a);
    return cudaGetLastError();
}
