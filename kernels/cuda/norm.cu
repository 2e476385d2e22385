/* The square of a norm in float64. The order is fixed by the number of elements alone: thread t of
 * the launch takes packets t, t + threads, ... of eight elements, a block's threads are added in a
 * tree, and so are the blocks. Twin: kernels/cpu/norm.c, whose order is another. */
#include "kernels/cuda/packet.cuh"

__device__ static void add(struct norm_report *r, float x)
{
    if (fp8_finite(x))
        r->sum2 += static_cast<double>(x) * static_cast<double>(x);
    else
        r->nonfinite++;
}

/* Packet i; the elements behind the last one are zeros, which add nothing. */
template <enum dtype T>
__device__ static packet<T> load_packet(const void *src, uint64_t i, uint64_t count, bool aligned)
{
    packet<T> p = {};
    if (aligned && (i + 1) * PACKET <= count) {
        p.load(src, i);
        return p;
    }
#pragma unroll
    for (int k = 0; k < PACKET; k++)
        if (i * PACKET + k < count)
            p.put(k, src, i * PACKET + k);
    return p;
}

/* The block's sums, in thread 0. */
__device__ static void add_threads(struct norm_report *all, const struct norm_report *mine)
{
    all[threadIdx.x] = *mine;
    for (unsigned half = BLOCK / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half)
            continue;
        all[threadIdx.x].sum2 += all[threadIdx.x + half].sum2;
        all[threadIdx.x].nonfinite += all[threadIdx.x + half].nonfinite;
    }
}

template <enum dtype T>
__global__ void __launch_bounds__(BLOCK)
    norm_kernel(const void *src, uint64_t count, struct norm_report *partial)
{
    __shared__ struct norm_report all[BLOCK];
    struct norm_report r = {};
    uint64_t packets = (count + PACKET - 1) / PACKET, step = grid_step();
    bool aligned = reinterpret_cast<uintptr_t>(src) % 16 == 0;
    for (uint64_t i = grid_first(); i < packets; i += 2 * step) {
        packet<T> p[2] = {load_packet<T>(src, i, count, aligned), {}};
        if (i + step < packets)
            p[1] = load_packet<T>(src, i + step, count, aligned);
#pragma unroll
        for (int k = 0; k < 2 * PACKET; k++)
            add(&r, p[k / PACKET].value(k % PACKET));
    }
    add_threads(all, &r);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = all[0];
}

__global__ void __launch_bounds__(BLOCK)
    norm_sum_kernel(const struct norm_report *partial, struct norm_report *report)
{
    __shared__ struct norm_report all[BLOCK];
    struct norm_report r = {};
    for (unsigned i = threadIdx.x; i < NORM_BLOCKS; i += BLOCK) {
        r.sum2 += partial[i].sum2;
        r.nonfinite += partial[i].nonfinite;
    }
    add_threads(all, &r);
    if (threadIdx.x == 0)
        *report = all[0];
}

extern "C" cudaError_t launch_norm(const void *src, enum dtype dtype, uint64_t count,
                                   struct norm_report *partial, struct norm_report *report,
                                   cudaStream_t stream)
{
    if (dtype == DTYPE_F32)
        norm_kernel<DTYPE_F32><<<NORM_BLOCKS, BLOCK, 0, stream>>>(src, count, partial);
    else if (dtype == DTYPE_BF16)
        norm_kernel<DTYPE_BF16><<<NORM_BLOCKS, BLOCK, 0, stream>>>(src, count, partial);
    else
        norm_kernel<DTYPE_F16><<<NORM_BLOCKS, BLOCK, 0, stream>>>(src, count, partial);
    norm_sum_kernel<<<1, BLOCK, 0, stream>>>(partial, report);
    return cudaGetLastError();
}
