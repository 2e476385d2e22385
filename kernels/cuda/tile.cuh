/* tile.cuh - codes the other way round, a tile at a time.
 *
 * A tile is ROWS x 128 codes. Each thread has HIGH rows of eight codes, which it turns in registers
 * to eight columns of HIGH. Through shared memory the columns meet, so that both forms are read and
 * written in whole lines. A column is units of four codes, at places that its number permutes: with
 * HIGH 8 and ROWS 128 neither side has bank conflicts. Fewer rows a thread are more threads for the
 * same codes: what a small tensor needs to fill the device.
 */
#ifndef FP8D_KERNELS_CUDA_TILE_CUH
#define FP8D_KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/device.cuh"

#define TILE_COLS 128
#define WIDE 8 /* codes of a row that a thread has */
#define ACROSS (TILE_COLS / WIDE)

template <int ROWS, int HIGH> struct tile {
    static constexpr unsigned threads = ROWS / HIGH * ACROSS;
    static constexpr unsigned units = ROWS / 4;
    uint32_t unit[TILE_COLS * units];

    /* What the places of the units of a column are exchanged by: even where two go together. */
    __device__ static unsigned exchange(unsigned across)
    {
        return HIGH == 8 ? 2 * (across & (units / 2 - 1)) : across & (units - 1);
    }
};

/* Where this thread's codes begin, and where the tile does. */
template <int ROWS, int HIGH> struct place {
    uint64_t row0, col0;
    unsigned across, down; /* from the tile's corner, in steps of WIDE and HIGH */

    __device__ place(uint64_t index, uint64_t cols)
    {
        uint64_t wide = (cols + TILE_COLS - 1) / TILE_COLS;
        row0 = index / wide * ROWS;
        col0 = index % wide * TILE_COLS;
        across = threadIdx.x % ACROSS;
        down = threadIdx.x / ACROSS;
    }
    __device__ uint64_t row() const
    {
        return row0 + down * HIGH;
    }
    __device__ uint64_t col() const
    {
        return col0 + across * WIDE;
    }
};

__host__ __device__ static inline uint64_t tiles_of(uint64_t high, uint64_t rows, uint64_t cols)
{
    return (rows + high - 1) / high * ((cols + TILE_COLS - 1) / TILE_COLS);
}

/* 4 x 4 codes: byte j of out[i] is byte i of in[j]. */
__device__ static inline void turn4(const uint32_t (&in)[4], uint32_t (&out)[4])
{
    uint32_t low = __byte_perm(in[0], in[1], 0x5140), low2 = __byte_perm(in[2], in[3], 0x5140);
    uint32_t high = __byte_perm(in[0], in[1], 0x7362), high2 = __byte_perm(in[2], in[3], 0x7362);
    out[0] = __byte_perm(low, low2, 0x5410);
    out[1] = __byte_perm(low, low2, 0x7632);
    out[2] = __byte_perm(high, high2, 0x5410);
    out[3] = __byte_perm(high, high2, 0x7632);
}

/* Four rows from `first` on to eight columns of four codes. */
template <int HIGH>
__device__ static inline void turn_four(const uint2 (&row)[HIGH], int first, uint32_t (&col)[WIDE])
{
    uint32_t left[4], right[4], a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        left[i] = row[first + i].x, right[i] = row[first + i].y;
    turn4(left, a);
    turn4(right, b);
#pragma unroll
    for (int i = 0; i < 4; i++)
        col[i] = a[i], col[4 + i] = b[i];
}

template <int ROWS, int HIGH>
__device__ static inline void tile_put(tile<ROWS, HIGH> *t, const place<ROWS, HIGH> &p,
                                       const uint2 (&row)[HIGH])
{
    constexpr unsigned units = tile<ROWS, HIGH>::units;
    unsigned exchange = t->exchange(p.across), first = p.across * WIDE;
    if constexpr (HIGH == 8) {
        uint32_t upper[WIDE], lower[WIDE];
        turn_four(row, 0, upper);
        turn_four(row, 4, lower);
#pragma unroll
        for (unsigned c = 0; c < WIDE; c++)
            *reinterpret_cast<uint2 *>(&t->unit[(first + c) * units + (2 * p.down ^ exchange)]) =
                make_uint2(upper[c], lower[c]);
    } else if constexpr (HIGH == 4) {
        uint32_t col[WIDE];
        turn_four(row, 0, col);
#pragma unroll
        for (unsigned c = 0; c < WIDE; c++)
            t->unit[(first + c) * units + (p.down ^ exchange)] = col[c];
    } else {
        const uint32_t pair[4] = {
            __byte_perm(row[0].x, row[1].x, 0x5140), __byte_perm(row[0].x, row[1].x, 0x7362),
            __byte_perm(row[0].y, row[1].y, 0x5140), __byte_perm(row[0].y, row[1].y, 0x7362)};
        uint16_t *half = reinterpret_cast<uint16_t *>(t->unit);
#pragma unroll
        for (unsigned c = 0; c < WIDE; c++)
            half[2 * ((first + c) * units + (p.down / 2 ^ exchange)) + p.down % 2] =
                static_cast<uint16_t>(pair[c / 2] >> 16 * (c % 2));
    }
}

/* Sixteen codes of a column. */
template <int ROWS, int HIGH>
__device__ static inline uint4 tile_get(const tile<ROWS, HIGH> *t, unsigned col, unsigned sixteen)
{
    constexpr unsigned units = tile<ROWS, HIGH>::units;
    unsigned exchange = t->exchange(col / WIDE);
    const uint4 *from = reinterpret_cast<const uint4 *>(&t->unit[col * units]);
    uint4 v = from[sixteen ^ exchange >> 2];
    if (HIGH < 8 && exchange & 1)
        v = make_uint4(v.y, v.x, v.w, v.z);
    return exchange & 2 ? make_uint4(v.z, v.w, v.x, v.y) : v;
}

/* The tile's columns to rows of `out`, `pitch` bytes apart, all of which exist. */
template <int ROWS, int HIGH>
__device__ static inline void tile_out_inside(const tile<ROWS, HIGH> *t, const place<ROWS, HIGH> &p,
                                              uint8_t *out, uint64_t pitch)
{
    constexpr unsigned sixteens = ROWS / 16, threads = tile<ROWS, HIGH>::threads;
    unsigned c = threadIdx.x / sixteens, sixteen = threadIdx.x % sixteens;
    uint8_t *to = out + (p.col0 + c) * pitch + p.row0 + 16 * sixteen;
#pragma unroll
    for (unsigned k = 0; k < TILE_COLS * sixteens / threads; k++)
        *reinterpret_cast<uint4 *>(to + k * (threads / sixteens) * pitch) =
            tile_get(t, c + k * (threads / sixteens), sixteen);
}

/* The same where rows or columns end; whole vectors where pitch is a multiple
 * of 16, and then up to the pitch, else `rows` codes. */
template <int ROWS, int HIGH>
__device__ static inline void tile_out(const tile<ROWS, HIGH> *t, const place<ROWS, HIGH> &p,
                                       uint8_t *out, uint64_t rows, uint64_t cols, uint64_t pitch)
{
    constexpr unsigned sixteens = ROWS / 16;
#pragma unroll
    for (unsigned k = 0; k < TILE_COLS * sixteens / tile<ROWS, HIGH>::threads; k++) {
        unsigned i = threadIdx.x + k * tile<ROWS, HIGH>::threads;
        unsigned c = i / sixteens, sixteen = i % sixteens;
        uint64_t row = p.row0 + 16 * sixteen, at = (p.col0 + c) * pitch + row;
        if (p.col0 + c >= cols || row >= pitch)
            continue;
        uint4 v = tile_get(t, c, sixteen);
        if (pitch % 16 == 0) {
            *reinterpret_cast<uint4 *>(out + at) = v;
            continue;
        }
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int b = 0; b < 16; b++)
            if (row + b < rows)
                out[at + b] = static_cast<uint8_t>(w[b / 4] >> 8 * (b % 4));
    }
}

#endif
