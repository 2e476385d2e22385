/* One step of an optimizer, and the new FP8 bytes of the weight in both forms, with factor, amax
 * and counts, in one pass. Rules: kernels/optimizer.h, docs/numerics.md 1. Twin:
 * kernels/cpu/update.c.
 *
 * A tile of ROWS x 128 elements; a warp takes four rows of it at a time and each lane a patch of 4
 * x 4, so that every float32 tensor is read and written in whole lines of 512 bytes. All loads of a
 * patch (4 rows of up to 4 tensors, 16 bytes each) are in flight together. */
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/cuda/update.cuh"

#define ROWS 64
#define SIDE 4                     /* of a patch */
#define THREADS (ROWS / SIDE * 16) /* tile<ROWS, SIDE>::threads: two patches each */
#define BLOCKS_PER_SM 2

using turned_tile = tile<ROWS, SIDE>;
using tile_place = place<ROWS, SIDE>;

/* Rows and columns of this thread's patches. */
struct patch {
    uint64_t row, col;
    unsigned lane, down;

    __device__ patch(const tile_place &at, int turn)
    {
        lane = threadIdx.x % 32;
        down = threadIdx.x / 32 + turn * (THREADS / 32);
        row = at.row0 + SIDE * down;
        col = at.col0 + SIDE * lane;
    }
};

__device__ static inline float &element(float4 &v, int k)
{
    return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

__device__ static inline float4 load4(const float *p, uint64_t at)
{
    return *reinterpret_cast<const float4 *>(p + at);
}

__device__ static inline void store4(float *p, uint64_t at, float4 v)
{
    *reinterpret_cast<float4 *>(p + at) = v;
}

/* A patch that lies inside; the new master into `value`. */
template <int MOMENTS>
__device__ static inline void move_inside(const struct update_launch &a, const patch &p,
                                          float4 (&value)[SIDE])
{
    uint64_t first = p.row * a.cols + p.col;
    float4 grad[SIDE], m[SIDE], v[SIDE];
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        uint64_t at = first + r * a.cols;
        value[r] = load4(a.master, at);
        grad[r] = load4(a.grad, at);
        m[r] = MOMENTS > 0 ? load4(a.m, at) : float4{};
        v[r] = MOMENTS > 1 ? load4(a.v, at) : float4{};
    }
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        uint64_t at = first + r * a.cols;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            struct optimizer_element e = {element(value[r], k), element(m[r], k), element(v[r], k)};
            e = move_element<MOMENTS>(a, e, element(grad[r], k));
            element(value[r], k) = e.master, element(m[r], k) = e.m, element(v[r], k) = e.v;
        }
        store4(a.master, at, value[r]);
        if (MOMENTS > 0)
            store4(a.m, at, m[r]);
        if (MOMENTS > 1)
            store4(a.v, at, v[r]);
    }
}

/* The same where rows or columns end, or tensors are not aligned: what lies outside is zero, which
 * counts as nothing and gives code 0. */
template <int MOMENTS>
__device__ static inline void move_edge(const struct update_launch &a, const patch &p,
                                        float4 (&value)[SIDE])
{
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        value[r] = float4{};
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (p.row + r < a.rows && p.col + k < a.cols)
                element(value[r], k) = move_one<MOMENTS>(a, (p.row + r) * a.cols + p.col + k);
    }
}

/* A finite or quiet value to T, 16 bits. */
template <enum dtype T> __device__ static inline uint32_t encode(float x)
{
    if (T == DTYPE_BF16)
        return bf16_encode(x);
    return is_nan(x) ? 0x7e00u : __half_as_ushort(__float2half_rn(x));
}

/* Two rows of a patch, rounded to T, as the eight elements of a packet. */
template <enum dtype T> __device__ static inline packet<T> rounded(float4 upper, float4 lower)
{
    packet<T> p = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float a = element(upper, k), b = element(lower, k);
        if constexpr (T == DTYPE_F32) {
            p.w[k] = fp8_float_bits(a), p.w[4 + k] = fp8_float_bits(b);
        } else {
            p.w[k / 2] |= encode<T>(a) << 16 * (k & 1);
            p.w[2 + k / 2] |= encode<T>(b) << 16 * (k & 1);
        }
    }
    return p;
}

/* Row `half` of the packet to where element `at` of `stored` is. */
template <enum dtype T>
__device__ static inline void keep_inside(const struct update_launch &a, uint64_t at,
                                          const packet<T> &p, int half)
{
    if constexpr (T == DTYPE_F32) {
        *reinterpret_cast<uint4 *>(static_cast<uint32_t *>(a.stored) + at) =
            make_uint4(p.w[4 * half], p.w[4 * half + 1], p.w[4 * half + 2], p.w[4 * half + 3]);
    } else {
        *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(a.stored) + at) =
            make_uint2(p.w[2 * half], p.w[2 * half + 1]);
    }
}

template <enum dtype T>
__device__ static inline void keep_one(const struct update_launch &a, uint64_t at,
                                       const packet<T> &p, int i)
{
    if constexpr (T == DTYPE_F32)
        static_cast<uint32_t *>(a.stored)[at] = p.w[i];
    else
        static_cast<uint16_t *>(a.stored)[at] = static_cast<uint16_t>(p.bits(i));
}

/* The rounded values where they are kept, and the codes. */
template <enum dtype T>
__device__ static inline void store_patch(const struct update_launch &a, const patch &p,
                                          bool inside, const packet<T> (&pair)[2],
                                          const uint32_t (&codes)[SIDE])
{
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        uint64_t at = (p.row + r) * a.cols + p.col;
        if (inside) {
            *reinterpret_cast<uint32_t *>(a.cast.codes + at) = codes[r];
            if (a.stored)
                keep_inside(a, at, pair[r / 2], r % 2);
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (p.row + r >= a.rows || p.col + k >= a.cols)
                continue;
            a.cast.codes[at + k] = static_cast<uint8_t>(codes[r] >> 8 * k);
            if (a.stored)
                keep_one(a, at + k, pair[r / 2], r % 2 * 4 + k);
        }
    }
}

/* The patch's four columns of four codes; tile_get finds them. */
__device__ static inline void put_patch(turned_tile *t, const patch &p,
                                        const uint32_t (&codes)[SIDE])
{
    uint32_t col[SIDE];
    turn4(codes, col);
#pragma unroll
    for (unsigned c = 0; c < SIDE; c++) {
        unsigned at = SIDE * p.lane + c;
        t->unit[at * turned_tile::units + (p.down ^ t->exchange(at / WIDE))] = col[c];
    }
}

template <enum dtype T, enum dtype FMT, int MOMENTS>
__device__ static inline void update_patch(const struct update_launch &a, const patch &p,
                                           bool whole, float scale, seen *s, turned_tile *turned)
{
    float4 value[SIDE];
    bool inside = whole && p.row + SIDE <= a.rows && p.col + SIDE <= a.cols;
    if (inside)
        move_inside<MOMENTS>(a, p, value);
    else
        move_edge<MOMENTS>(a, p, value);
    const packet<T> pair[2] = {rounded<T>(value[0], value[1]), rounded<T>(value[2], value[3])};
    uint2 upper = packet_cast<T, FMT>(pair[0], scale, s);
    uint2 lower = packet_cast<T, FMT>(pair[1], scale, s);
    const uint32_t codes[SIDE] = {upper.x, upper.y, lower.x, lower.y};
    store_patch(a, p, inside, pair, codes);
    if (a.cast.second)
        put_patch(turned, p, codes);
}

__device__ static inline void write_turned(const struct update_launch &a, const tile_place &at,
                                           const turned_tile *turned)
{
    __syncthreads();
    if (at.row0 + ROWS <= a.rows && at.col0 + TILE_COLS <= a.cols)
        tile_out_inside(turned, at, a.cast.second, a.cast.pitch);
    else
        tile_out(turned, at, a.cast.second, a.rows, a.cols, a.cast.pitch);
}

/* A tile a block. whole: patches can be read and written at once. */
template <enum dtype T, enum dtype FMT, int MOMENTS>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    update_cast_kernel(const struct update_launch a, bool whole)
{
    __shared__ __align__(16) turned_tile turned;
    wait_for_stream();
    const snapshot shot(a.cast, FMT);
    const tile_place at(blockIdx.x, a.cols);
    seen s = {};
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++)
        update_patch<T, FMT, MOMENTS>(a, patch(at, turn), whole, shot.scale, &s, &turned);
    if (a.cast.second)
        write_turned(a, at, &turned);
    seen_add(&s, a.cast.sums, &a.cast.sums->amax);
    if (is_last_block(a.cast.sums))
        conclude(a.cast, shot);
}

static bool aligned(const void *p, unsigned to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

template <enum dtype T, enum dtype FMT, int MOMENTS>
static cudaError_t launch(const struct update_launch *a, cudaStream_t stream)
{
    bool whole = a->cols % SIDE == 0 && aligned(a->master, 16) && aligned(a->grad, 16) &&
                 aligned(a->m, 16) && aligned(a->v, 16) &&
                 aligned(a->stored, T == DTYPE_F32 ? 16 : 8);
    uint64_t high = a->cast.second ? a->cast.pitch : a->rows;
    uint64_t tiles = tiles_of(ROWS, high, a->cols); /* none: the report alone */
    return launch_early(update_cast_kernel<T, FMT, MOMENTS>,
                        static_cast<unsigned>(tiles ? tiles : 1), THREADS, stream, *a, whole);
}

template <enum dtype T, enum dtype FMT>
static cudaError_t launch_moments(const struct update_launch *a, cudaStream_t s)
{
    if (a->moments == 2)
        return launch<T, FMT, 2>(a, s);
    return a->moments == 1 ? launch<T, FMT, 1>(a, s) : launch<T, FMT, 0>(a, s);
}

template <enum dtype T> static cudaError_t launch_to(const struct update_launch *a, cudaStream_t s)
{
    return a->cast.fmt == DTYPE_F8_E4M3 ? launch_moments<T, DTYPE_F8_E4M3>(a, s)
                                        : launch_moments<T, DTYPE_F8_E5M2>(a, s);
}

extern "C" cudaError_t launch_update_cast(const struct update_launch *a, cudaStream_t stream)
{
    if (a->round_to == DTYPE_F32)
        return launch_to<DTYPE_F32>(a, stream);
    return a->round_to == DTYPE_BF16 ? launch_to<DTYPE_BF16>(a, stream)
                                     : launch_to<DTYPE_F16>(a, stream);
}
