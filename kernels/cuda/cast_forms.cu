/* The cast that writes both forms: codes and their transpose, factor, amax and counts in one pass
 * over the source. Rules: docs/numerics.md 1. Twin: kernels/cpu/cast.c with transpose.c. */
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/tile.cuh"

/* How many squares of 128 x 128 the tensor covers says how it is cut. Measured on an H200 (us for
 * 1024^2, 2048^2, 4096^2 of BF16): 32 x 128 with two rows a thread 4.7, 9.8, -; 64 x 128 with four
 * 4.8, 7.6, 24; 64 x 128 with eight and two tiles a block -, 8.5, 20.7. Persistent blocks, tiles of
 * 128 or 256 rows, loads one tile ahead, stores past the L2 and launching the next kernel early
 * were slower where the tensor is large. */
#define MIDDLE_FROM 128u
#define LARGE_FROM 528u

/* A thread's packets of a tile that lies inside. */
template <enum dtype T, int HIGH>
__device__ static inline void load_inside(const struct cast_launch &a, uint64_t first,
                                          packet<T> (&p)[HIGH])
{
    const char *from = static_cast<const char *>(a.src) + first * sizeof(packet<T>) / PACKET;
    uint64_t step = a.cols * sizeof(packet<T>) / PACKET;
#pragma unroll
    for (int i = 0; i < HIGH; i++)
        p[i].load(from + i * step, 0);
}

/* The same where rows or columns end: what lies outside is zero, which counts as nothing and gives
 * code 0. */
template <enum dtype T, bool WHOLE, int HIGH>
__device__ static inline void load_edge(const struct cast_launch &a, uint64_t row, uint64_t col,
                                        packet<T> (&p)[HIGH])
{
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
        p[i] = packet<T>{};
        if (WHOLE && row + i < a.rows && col < a.cols)
            p[i].load(a.src, ((row + i) * a.cols + col) / PACKET);
#pragma unroll
        for (int k = 0; k < PACKET && !WHOLE; k++)
            if (row + i < a.rows && col + k < a.cols)
                p[i].put(k, a.src, (row + i) * a.cols + col + k);
    }
}

template <int HIGH>
__device__ static inline void store_inside(const struct cast_launch &a, uint64_t first,
                                           const uint2 (&codes)[HIGH])
{
#pragma unroll
    for (int i = 0; i < HIGH; i++)
        *reinterpret_cast<uint2 *>(a.codes + first + i * a.cols) = codes[i];
}

template <bool WHOLE, int HIGH>
__device__ static inline void store_edge(const struct cast_launch &a, uint64_t row, uint64_t col,
                                         const uint2 (&codes)[HIGH])
{
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
        uint8_t *to = a.codes + (row + i) * a.cols + col;
        if (WHOLE && row + i < a.rows && col < a.cols)
            *reinterpret_cast<uint2 *>(to) = codes[i];
#pragma unroll
        for (int k = 0; k < PACKET && !WHOLE; k++)
            if (row + i < a.rows && col + k < a.cols)
                to[k] = static_cast<uint8_t>((k < 4 ? codes[i].x : codes[i].y) >> 8 * (k % 4));
    }
}

/* WHOLE: packets of a row can be read, and their codes written, at once. */
template <enum dtype T, enum dtype FMT, int ROWS, int HIGH, int BLOCKS, bool WHOLE>
__global__ void __launch_bounds__(tile<ROWS, HIGH>::threads, BLOCKS)
    cast_forms_kernel(const struct cast_launch a)
{
    __shared__ __align__(16) tile<ROWS, HIGH> turned;
    wait_for_stream();
    const snapshot shot(a, FMT);
    uint64_t tiles = tiles_of(ROWS, a.pitch, a.cols);
    seen s = {};
    for (uint64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const place<ROWS, HIGH> at(i, a.cols);
        uint64_t row = at.row(), col = at.col(), first = row * a.cols + col;
        bool inside = WHOLE && at.row0 + ROWS <= a.rows && at.col0 + TILE_COLS <= a.cols;
        packet<T> p[HIGH];
        uint2 codes[HIGH];
        if (inside)
            load_inside(a, first, p);
        else
            load_edge<T, WHOLE>(a, row, col, p);
#pragma unroll
        for (int k = 0; k < HIGH; k++)
            codes[k] = packet_cast<T, FMT>(p[k], shot.scale, &s);
        if (inside)
            store_inside(a, first, codes);
        else
            store_edge<WHOLE>(a, row, col, codes);
        tile_put(&turned, at, codes);
        __syncthreads();
        if (inside)
            tile_out_inside(&turned, at, a.second, a.pitch);
        else
            tile_out(&turned, at, a.second, a.rows, a.cols, a.pitch);
        if (i + gridDim.x < tiles)
            __syncthreads();
    }
    seen_add(&s, a.sums, &a.sums->amax);
    if (is_last_block(a.sums))
        conclude(a, shot);
}

/* BLOCKS: that an SM holds at once; `per`: tiles of a block. */
template <enum dtype T, enum dtype FMT, int ROWS, int HIGH, int BLOCKS>
static cudaError_t launch_tiles(const struct cast_launch *a, unsigned per, cudaStream_t stream)
{
    bool whole = a->cols % PACKET == 0 && reinterpret_cast<uintptr_t>(a->src) % 16 == 0;
    uint64_t tiles = (tiles_of(ROWS, a->pitch, a->cols) + per - 1) / per;
    unsigned grid = static_cast<unsigned>(tiles ? tiles : 1);
    return whole ? launch_early(cast_forms_kernel<T, FMT, ROWS, HIGH, BLOCKS, true>, grid,
                                tile<ROWS, HIGH>::threads, stream, *a)
                 : launch_early(cast_forms_kernel<T, FMT, ROWS, HIGH, BLOCKS, false>, grid,
                                tile<ROWS, HIGH>::threads, stream, *a);
}

template <enum dtype T, enum dtype FMT>
static cudaError_t launch(const struct cast_launch *a, cudaStream_t stream)
{
    uint64_t squares = tiles_of(128, a->pitch, a->cols);
    if (squares < MIDDLE_FROM)
        return launch_tiles<T, FMT, 32, 2, 4>(a, 1, stream);
    if (squares < LARGE_FROM)
        return launch_tiles<T, FMT, 64, 4, 4>(a, 1, stream);
    return launch_tiles < T, FMT, 64, 8, T == DTYPE_F32 ? 4 : 8 > (a, 2, stream);
}

template <enum dtype T> static cudaError_t launch_to(const struct cast_launch *a, cudaStream_t s)
{
    return a->fmt == DTYPE_F8_E4M3 ? launch<T, DTYPE_F8_E4M3>(a, s)
                                   : launch<T, DTYPE_F8_E5M2>(a, s);
}

extern "C" cudaError_t launch_cast_forms(const struct cast_launch *a, cudaStream_t stream)
{
    if (a->dtype == DTYPE_F32)
        return launch_to<DTYPE_F32>(a, stream);
    return a->dtype == DTYPE_BF16 ? launch_to<DTYPE_BF16>(a, stream)
                                  : launch_to<DTYPE_F16>(a, stream);
}
