/* One step of an optimizer without FP8 bytes: biases, and tensors of any size and alignment. Rules:
 * kernels/optimizer.h. Twin: kernels/cpu/update.c. */
#include "kernels/cuda/update.cuh"

#define UPDATE_BLOCKS 1056 /* of 256 threads: what an H200 holds at once */

template <int MOMENTS>
__global__ void __launch_bounds__(BLOCK) update_kernel(const struct update_launch a)
{
    wait_for_stream();
    uint64_t count = a.rows * a.cols;
    for (uint64_t i = grid_first(); i < count; i += grid_step()) {
        float master = move_one<MOMENTS>(a, i);
        if (a.stored)
            store_as(a.stored, a.round_to, i, master);
    }
}

extern "C" cudaError_t launch_update(const struct update_launch *a, cudaStream_t stream)
{
    unsigned grid = blocks_for(a->rows * a->cols, UPDATE_BLOCKS);
    if (a->moments == 2)
        return launch_early(update_kernel<2>, grid, BLOCK, stream, *a);
    return a->moments == 1 ? launch_early(update_kernel<1>, grid, BLOCK, stream, *a)
                           : launch_early(update_kernel<0>, grid, BLOCK, stream, *a);
}
