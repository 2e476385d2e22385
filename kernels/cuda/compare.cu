/* |a - b| against b in float64. The order of the sums is fixed: thread t of block g adds the
 * elements of its stride in ascending order, a block's threads are added in a tree, the blocks one
 * after the other. Twin: compare_execute in kernels/cpu/state.c, whose order is another. */
#include "kernels/cuda/device.cuh"

__device__ static void add(struct compare_report *r, double a, double b)
{
    if (!(a - a == 0.0) || !(b - b == 0.0)) {
        r->nonfinite++;
        return;
    }
    double diff = a > b ? a - b : b - a, ref = b < 0.0 ? -b : b;
    r->max_diff = diff > r->max_diff ? diff : r->max_diff;
    r->max_ref = ref > r->max_ref ? ref : r->max_ref;
    r->sum_diff2 += diff * diff;
    r->sum_ref2 += ref * ref;
}

__device__ static void merge(struct compare_report *r, const struct compare_report *from)
{
    r->max_diff = from->max_diff > r->max_diff ? from->max_diff : r->max_diff;
    r->max_ref = from->max_ref > r->max_ref ? from->max_ref : r->max_ref;
    r->sum_diff2 += from->sum_diff2;
    r->sum_ref2 += from->sum_ref2;
    r->nonfinite += from->nonfinite;
}

__global__ void __launch_bounds__(BLOCK)
    compare_kernel(const void *a, enum dtype ta, const void *b, enum dtype tb, uint64_t count,
                   struct compare_report *partial)
{
    __shared__ struct compare_report all[BLOCK];
    struct compare_report r = {};
    for (uint64_t i = grid_first(); i < count; i += grid_step())
        add(&r, static_cast<double>(load_as(a, ta, i)), static_cast<double>(load_as(b, tb, i)));
    all[threadIdx.x] = r;
    for (unsigned half = BLOCK / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            merge(&all[threadIdx.x], &all[threadIdx.x + half]);
    }
    if (threadIdx.x == 0)
        partial[blockIdx.x] = all[0];
}

__global__ void sum_kernel(const struct compare_report *partial, struct compare_report *report)
{
    struct compare_report r = {};
    for (unsigned i = 0; i < COMPARE_BLOCKS; i++)
        merge(&r, &partial[i]);
    *report = r;
}

extern "C" cudaError_t launch_compare(const void *a, enum dtype ta, const void *b, enum dtype tb,
                                      uint64_t count, struct compare_report *partial,
                                      struct compare_report *report, cudaStream_t stream)
{
    compare_kernel<<<COMPARE_BLOCKS, BLOCK, 0, stream>>>(a, ta, b, tb, count, partial);
    sum_kernel<<<1, 1, 0, stream>>>(partial, report);
    return cudaGetLastError();
}
