/* cast_forms.cuh - the cast of a tile at a time, for the two-form cast and the one with column
 * sums.
 */
#ifndef FP8D_KERNELS_CUDA_CAST_FORMS_CUH
#define FP8D_KERNELS_CUDA_CAST_FORMS_CUH

#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/tile.cuh"

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

/* Sums of the source's columns over the rows of a tile, in float32 and a fixed order: a thread's rows
 * (in registers), the two threads of a warp that have the same columns, then the warps. */
template <int ROWS, int HIGH, bool SUMS> struct column_sums {
    static constexpr unsigned warps = tile<ROWS, HIGH>::threads / 32;
    float part[warps][TILE_COLS];

    struct rows {
        float sum[WIDE];

        template <enum dtype T> __device__ void add(const packet<T> &p, bool first)
        {
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                sum[k] = first ? p.value(k) : sum[k] + p.value(k);
        }
    };
    __device__ void put(const place<ROWS, HIGH> &at, const rows &r)
    {
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            float sum = r.sum[k] + __shfl_xor_sync(0xffffffffu, r.sum[k], ACROSS);
            if (at.down % 2 == 0)
                part[at.down / 2][at.across * WIDE + k] = sum;
        }
    }
    /* Once all threads of the block have put theirs. */
    __device__ void out(const place<ROWS, HIGH> &at, const struct cast_launch &a) const
    {
        unsigned c = threadIdx.x;
        if (c >= TILE_COLS || at.row0 >= a.rows || at.col0 + c >= a.cols)
            return;
        float sum = part[0][c];
#pragma unroll
        for (unsigned w = 1; w < warps; w++)
            sum += part[w][c];
        a.partial[at.row0 / ROWS * a.cols + at.col0 + c] = sum;
    }
};

/* None. */
template <int ROWS, int HIGH> struct column_sums<ROWS, HIGH, false> {
    struct rows {
        template <enum dtype T> __device__ void add(const packet<T> &, bool)
        {
        }
    };
    __device__ void put(const place<ROWS, HIGH> &, const rows &)
    {
    }
    __device__ void out(const place<ROWS, HIGH> &, const struct cast_launch &) const
    {
    }
};

/* Where the tiles end: behind the rows of the second form, or of the source alone. */
__host__ __device__ static inline uint64_t height(const struct cast_launch &a)
{
    return a.second ? a.pitch : a.rows;
}

/* WHOLE: packets of a row can be read, and their codes written, at once. SUMS: of columns too, and
 * the second form only where there is one. */
template <enum dtype T, enum dtype FMT, int ROWS, int HIGH, int BLOCKS, bool WHOLE, bool SUMS>
__global__ void __launch_bounds__(tile<ROWS, HIGH>::threads, BLOCKS)
    cast_forms_kernel(const struct cast_launch a)
{
    __shared__ __align__(16) tile<ROWS, HIGH> turned;
    __shared__ column_sums<ROWS, HIGH, SUMS> sums;
    wait_for_stream();
    const snapshot shot(a, FMT);
    uint64_t tiles = tiles_of(ROWS, SUMS ? height(a) : a.pitch, a.cols);
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
        typename column_sums<ROWS, HIGH, SUMS>::rows r;
#pragma unroll
        for (int k = 0; k < HIGH; k++) {
            codes[k] = packet_cast<T, FMT>(p[k], shot.scale, &s);
            r.add(p[k], k == 0);
        }
        sums.put(at, r);
        if (inside)
            store_inside(a, first, codes);
        else
            store_edge<WHOLE>(a, row, col, codes);
        if (!SUMS || a.second)
            tile_put(&turned, at, codes);
        __syncthreads();
        if (inside && (!SUMS || a.second))
            tile_out_inside(&turned, at, a.second, a.pitch);
        else if (!SUMS || a.second)
            tile_out(&turned, at, a.second, a.rows, a.cols, a.pitch);
        sums.out(at, a);
        if (i + gridDim.x < tiles)
            __syncthreads();
    }
    seen_add(&s, a.sums, &a.sums->amax);
    if (is_last_block(a.sums))
        conclude(a, shot);
}

/* BLOCKS: that an SM holds at once; `per`: tiles of a block. */
template <enum dtype T, enum dtype FMT, int ROWS, int HIGH, int BLOCKS, bool SUMS>
static cudaError_t launch_tiles(const struct cast_launch *a, unsigned per, cudaStream_t stream)
{
    bool whole = a->cols % PACKET == 0 && reinterpret_cast<uintptr_t>(a->src) % 16 == 0;
    uint64_t tiles = (tiles_of(ROWS, height(*a), a->cols) + per - 1) / per;
    unsigned grid = static_cast<unsigned>(tiles ? tiles : 1);
    return whole ? launch_early(cast_forms_kernel<T, FMT, ROWS, HIGH, BLOCKS, true, SUMS>, grid,
                                tile<ROWS, HIGH>::threads, stream, *a)
                 : launch_early(cast_forms_kernel<T, FMT, ROWS, HIGH, BLOCKS, false, SUMS>, grid,
                                tile<ROWS, HIGH>::threads, stream, *a);
}

#endif
