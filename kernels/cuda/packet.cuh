/* packet.cuh - eight elements at a time: what a cast sees in them and what it makes of them.
 *
 * Counting is done on packed words wherever an element of note is rare: a packet without NaN, Inf
 * and saturation, which its largest magnitude tells, takes no step per element but the product and
 * the conversion. Elements that were not zero and codes that are not zero are counted, all others
 * follow by subtraction: a zero gives a zero code and a NaN does not.
 */
#ifndef FP8D_KERNELS_CUDA_PACKET_CUH
#define FP8D_KERNELS_CUDA_PACKET_CUH

#include "kernels/cuda/device.cuh"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define PACKET 8

/* A thread's counts; the number of elements of one launch and thread fits 32 bits. */
struct seen {
    uint32_t amax; /* float bits */
    uint32_t nonfinite, saturated, flushed;
};

template <enum dtype T> struct packet;

/* Eight 16-bit elements in four words; LIMIT is the magnitude of Inf. */
template <uint32_t LIMIT> struct packet16 {
    uint32_t w[4];

    __device__ void load(const void *src, uint64_t i)
    {
        uint4 v = __ldg(static_cast<const uint4 *>(src) + i);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
    /* Element i, of a packet that was zero there. */
    __device__ void put(int i, const void *src, uint64_t from)
    {
        w[i / 2] |= static_cast<uint32_t>(static_cast<const uint16_t *>(src)[from]) << 16 * (i & 1);
    }
    __device__ uint32_t bits(int i) const
    {
        return i & 1 ? w[i / 2] >> 16 : w[i / 2] & 0xffffu;
    }
    /* Largest magnitude of all, as 16 bits; above or at LIMIT if one is not finite. */
    __device__ uint32_t largest() const
    {
        uint32_t a = __vmaxu2(w[0] & 0x7fff7fffu, w[1] & 0x7fff7fffu);
        uint32_t b = __vmaxu2(w[2] & 0x7fff7fffu, w[3] & 0x7fff7fffu);
        uint32_t m = __vmaxu2(a, b);
        return max(m & 0xffffu, m >> 16);
    }
    __device__ bool all_finite(uint32_t largest) const
    {
        return largest < LIMIT;
    }
    __device__ bool finite(int i) const
    {
        return (bits(i) & 0x7fffu) < LIMIT;
    }
    __device__ uint32_t magnitude(int i) const
    {
        return bits(i) & 0x7fffu;
    }
    __device__ uint32_t nonzero() const
    {
        uint32_t m = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            m |= (((w[k] & 0x7fff7fffu) + 0x7fff7fffu) & 0x80008000u) >> k;
        return __popc(m);
    }
};

template <> struct packet<DTYPE_BF16> : packet16<0x7f80u> {
    __device__ static float widen(uint32_t magnitude)
    {
        return fp8_bits_float(magnitude << 16);
    }
    __device__ float value(int i) const
    {
        return fp8_bits_float(i & 1 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
    }
};

template <> struct packet<DTYPE_F16> : packet16<0x7c00u> {
    __device__ static float widen(uint32_t magnitude)
    {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(magnitude)));
    }
    __device__ float value(int i) const
    {
        return widen(bits(i));
    }
};

template <> struct packet<DTYPE_F32> {
    uint32_t w[8];

    __device__ void load(const void *src, uint64_t i)
    {
        uint4 a = __ldg(static_cast<const uint4 *>(src) + 2 * i);
        uint4 b = __ldg(static_cast<const uint4 *>(src) + 2 * i + 1);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    }
    __device__ void put(int i, const void *src, uint64_t from)
    {
        w[i] = static_cast<const uint32_t *>(src)[from];
    }
    __device__ uint32_t magnitude(int i) const
    {
        return w[i] & 0x7fffffffu;
    }
    __device__ uint32_t largest() const
    {
        uint32_t m = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            m = max(m, magnitude(i));
        return m;
    }
    __device__ bool all_finite(uint32_t largest) const
    {
        return largest < 0x7f800000u;
    }
    __device__ bool finite(int i) const
    {
        return magnitude(i) < 0x7f800000u;
    }
    __device__ uint32_t nonzero() const
    {
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            n += magnitude(i) != 0;
        return n;
    }
    __device__ static float widen(uint32_t magnitude)
    {
        return fp8_bits_float(magnitude);
    }
    __device__ float value(int i) const
    {
        return fp8_bits_float(w[i]);
    }
};

/* The largest finite magnitude, as T has it; NaN and Inf are counted. */
template <enum dtype T>
__device__ static inline uint32_t packet_measure(const packet<T> &p, struct seen *s)
{
    uint32_t largest = p.largest();
    if (p.all_finite(largest))
        return largest;
    largest = 0;
#pragma unroll
    for (int i = 0; i < PACKET; i++) {
        if (p.finite(i))
            largest = max(largest, p.magnitude(i));
        else
            s->nonfinite++;
    }
    return largest;
}

template <enum dtype FMT> __device__ static inline uint32_t convert_pair(float a, float b)
{
    constexpr __nv_fp8_interpretation_t kind = FMT == DTYPE_F8_E4M3 ? __NV_E4M3 : __NV_E5M2;
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kind);
}

/* Eight codes, low byte first. */
template <enum dtype T, enum dtype FMT>
__device__ static inline uint2 packet_cast(const packet<T> &p, float scale, struct seen *s)
{
    uint32_t half[4];
    uint32_t largest = packet_measure(p, s);
    s->amax = max(s->amax, fp8_float_bits(packet<T>::widen(largest)));
    /* The product is monotone: no finite element saturates if the largest does not. */
    if (fp8_saturates(packet<T>::widen(largest) * scale, FMT)) {
#pragma unroll
        for (int i = 0; i < PACKET; i++)
            s->saturated += p.finite(i) && fp8_saturates(p.value(i) * scale, FMT);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        half[i] = convert_pair<FMT>(p.value(2 * i) * scale, p.value(2 * i + 1) * scale);
    uint2 codes = make_uint2(half[0] | half[1] << 16, half[2] | half[3] << 16);
    uint32_t some = (((codes.x & 0x7f7f7f7fu) + 0x7f7f7f7fu) & 0x80808080u) |
                    (((codes.y & 0x7f7f7f7fu) + 0x7f7f7f7fu) & 0x80808080u) >> 1;
    s->flushed += p.nonzero() - __popc(some);
    return codes;
}

/* One element alone: the ends of rows, and sources that are not aligned. */
template <enum dtype T>
__device__ static inline float one_measure(const void *src, uint64_t i, struct seen *s)
{
    float x = load_as(src, T, i);
    if (fp8_finite(x))
        s->amax = max(s->amax, fp8_float_bits(x) & 0x7fffffffu);
    else
        s->nonfinite++;
    return x;
}

template <enum dtype T, enum dtype FMT>
__device__ static inline void one_cast(const void *src, uint64_t i, float scale, uint8_t *codes,
                                       struct seen *s)
{
    float x = one_measure<T>(src, i, s), v = x * scale;
    uint8_t code = fp8_encode(v, FMT);
    s->saturated += fp8_finite(x) && fp8_saturates(v, FMT);
    s->flushed += fp8_flushed(x, code);
    codes[i] = code;
}

/* --- from threads to the launch --- */

/* The block's counts into the launch's sums; all threads of the block call it. */
__device__ static inline void seen_add(const struct seen *s, struct cast_sums *sums,
                                       unsigned *amax_of)
{
    __shared__ struct seen block;
    if (threadIdx.x == 0)
        block = seen{};
    __syncthreads();
    uint32_t amax = __reduce_max_sync(0xffffffffu, s->amax);
    uint32_t nonfinite = __reduce_add_sync(0xffffffffu, s->nonfinite);
    uint32_t saturated = __reduce_add_sync(0xffffffffu, s->saturated);
    uint32_t flushed = __reduce_add_sync(0xffffffffu, s->flushed);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&block.amax, amax);
        if (nonfinite)
            atomicAdd(&block.nonfinite, nonfinite);
        if (saturated)
            atomicAdd(&block.saturated, saturated);
        if (flushed)
            atomicAdd(&block.flushed, flushed);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMax(amax_of, block.amax);
        if (block.nonfinite)
            atomicAdd(&sums->nonfinite, static_cast<unsigned long long>(block.nonfinite));
        if (block.saturated)
            atomicAdd(&sums->saturated, static_cast<unsigned long long>(block.saturated));
        if (block.flushed)
            atomicAdd(&sums->flushed, static_cast<unsigned long long>(block.flushed));
    }
}

/* True in thread 0 of the block that ends last, which sees what all others added. */
__device__ static inline bool is_last_block(struct cast_sums *sums)
{
    if (threadIdx.x)
        return false;
    __threadfence();
    bool last = atomicAdd(&sums->done, 1u) == gridDim.x - 1;
    __threadfence();
    return last;
}

__device__ static inline struct amax_slot sums_slot(const volatile struct cast_sums *sums,
                                                    unsigned amax)
{
    struct amax_slot slot;
    slot.amax = fp8_bits_float(amax);
    slot.casts = 1;
    slot.nonfinite = sums->nonfinite;
    slot.saturated = sums->saturated;
    slot.flushed = sums->flushed;
    return slot;
}

#endif
