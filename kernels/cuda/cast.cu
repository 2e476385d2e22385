/* The cast: codes, factor, amax and counts in one pass (with a second form: cast_forms.cu; with
 * column sums: cast_sums.cu); where the scale may come from the tensor itself, a launch for its
 * amax first, which ends at once if the site turns out to be set. Rules: docs/numerics.md 1, 3, 4.
 */
#include "kernels/cuda/cast.cuh"

/* Measured on an H200: two packets a thread and six blocks an SM beat 4 and 4, 8 and 3, 1 and 6. */
#define BLOCKS_PER_SM 6

/* Packets in flight: two loads of 16 bytes a thread either way. */
template <enum dtype T> constexpr int UNROLL = T == DTYPE_F32 ? 1 : 2;

/* Packets that can be read whole; 0 where the source is not aligned. */
template <enum dtype T> __device__ static inline uint64_t packets_of(const struct cast_launch &a)
{
    bool aligned = reinterpret_cast<uintptr_t>(a.src) % 16 == 0;
    return aligned ? a.count / PACKET : 0;
}

template <enum dtype T> __device__ static void measure_all(const struct cast_launch &a, seen *s)
{
    uint64_t n = packets_of<T>(a), at = grid_first(), stride = grid_step();
    for (uint64_t i = at; i < n; i += stride * UNROLL<T>) {
        packet<T> p[UNROLL<T>];
#pragma unroll
        for (int u = 0; u < UNROLL<T>; u++)
            if (i + u * stride < n)
                p[u].load(a.src, i + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL<T>; u++)
            if (i + u * stride < n)
                s->amax = max(s->amax, fp8_float_bits(packet<T>::widen(packet_measure(p[u], s))));
    }
    for (uint64_t i = n * PACKET + at; i < a.count; i += stride)
        (void)one_measure<T>(a.src, i, s);
}

template <enum dtype T, enum dtype FMT>
__device__ static void cast_all(const struct cast_launch &a, float scale, seen *s)
{
    uint64_t n = packets_of<T>(a), at = grid_first(), stride = grid_step();
    uint2 *codes = reinterpret_cast<uint2 *>(a.codes);
    for (uint64_t i = at; i < n; i += stride * UNROLL<T>) {
        packet<T> p[UNROLL<T>];
#pragma unroll
        for (int u = 0; u < UNROLL<T>; u++)
            if (i + u * stride < n)
                p[u].load(a.src, i + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL<T>; u++)
            if (i + u * stride < n)
                codes[i + u * stride] = packet_cast<T, FMT>(p[u], scale, s);
    }
    for (uint64_t i = n * PACKET + at; i < a.count; i += stride)
        one_cast<T, FMT>(a.src, i, scale, a.codes, s);
}

/* The amax into sums->first. */
template <enum dtype T>
__global__ void __launch_bounds__(BLOCK) first_kernel(const struct cast_launch a)
{
    wait_for_stream();
    if (!takes_tensors_scale(a))
        return;
    seen s = {};
    measure_all<T>(a, &s);
    s.nonfinite = 0; /* the cast counts it */
    seen_add(&s, a.sums, &a.sums->first);
}

template <enum dtype T, enum dtype FMT>
__global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) cast_kernel(const struct cast_launch a)
{
    wait_for_stream();
    const snapshot shot(a, FMT);
    seen s = {};
    cast_all<T, FMT>(a, shot.scale, &s);
    seen_add(&s, a.sums, &a.sums->amax);
    if (is_last_block(a.sums))
        conclude(a, shot);
}

template <enum dtype T, enum dtype FMT>
static cudaError_t launch(const struct cast_launch *a, cudaStream_t stream)
{
    unsigned grid = blocks_for((a->count + PACKET - 1) / PACKET, a->sms * BLOCKS_PER_SM);
    cudaError_t e = cudaSuccess;
    if (!a->site || a->unless_set)
        e = launch_early(first_kernel<T>, grid, BLOCK, stream, *a);
    if (e)
        return e;
    if (a->column_sums)
        return launch_cast_sums(a, stream);
    return a->second ? launch_cast_forms(a, stream)
                     : launch_early(cast_kernel<T, FMT>, grid, BLOCK, stream, *a);
}

template <enum dtype T> static cudaError_t launch_to(const struct cast_launch *a, cudaStream_t s)
{
    return a->fmt == DTYPE_F8_E4M3 ? launch<T, DTYPE_F8_E4M3>(a, s)
                                   : launch<T, DTYPE_F8_E5M2>(a, s);
}

extern "C" cudaError_t launch_cast(const struct cast_launch *a, cudaStream_t stream)
{
    if (a->dtype == DTYPE_F32)
        return launch_to<DTYPE_F32>(a, stream);
    return a->dtype == DTYPE_BF16 ? launch_to<DTYPE_BF16>(a, stream)
                                  : launch_to<DTYPE_F16>(a, stream);
}

/* --- measure: the first pass alone --- */

template <enum dtype T>
__global__ void __launch_bounds__(BLOCK) measure_kernel(struct cast_launch a)
{
    seen s = {};
    measure_all<T>(a, &s);
    seen_add(&s, a.sums, &a.sums->amax);
    if (!is_last_block(a.sums))
        return;
    struct cast_report r = {};
    volatile struct cast_sums *sums = a.sums;
    r.slot = sums_slot(sums, sums->amax);
    *a.report = r;
    *a.sums = cast_sums{};
}

extern "C" cudaError_t launch_measure(const struct cast_launch *a, cudaStream_t stream)
{
    unsigned grid = blocks_for((a->count + PACKET - 1) / PACKET, a->sms * BLOCKS_PER_SM);
    if (a->dtype == DTYPE_F32)
        measure_kernel<DTYPE_F32><<<grid, BLOCK, 0, stream>>>(*a);
    else if (a->dtype == DTYPE_BF16)
        measure_kernel<DTYPE_BF16><<<grid, BLOCK, 0, stream>>>(*a);
    else
        measure_kernel<DTYPE_F16><<<grid, BLOCK, 0, stream>>>(*a);
    return cudaGetLastError();
}
