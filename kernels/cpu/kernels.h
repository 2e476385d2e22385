/* kernels.h - the arithmetic of the CPU backend as a table, one per compilation of the same text.
 *
 * kernels.inc.c is compiled three times (level_base.c, level_v3.c, level_v4.c), always with
 * -ffp-contract=off, and gives the same bits each time. Functions are pure over the memory they are
 * given, may run on any thread, and expect round-to-nearest without flush-to-zero (fpenv.h).
 *
 * Summation order of the GEMM: element k of a row belongs to lane k mod 16. Each lane starts at +0
 * and adds its products in ascending k, product and sum rounded separately (no FMA); a k beyond the
 * row's end counts as a product of +0. Then lane l += lane l + 8 for l < 8, l += l + 4 for l < 4,
 * l += l + 2 for l < 2, and the sum is lane 0 + lane 1. tests/oracle/gemm_hash.py emulates it.
 */
#ifndef FP8D_KERNELS_CPU_KERNELS_H
#define FP8D_KERNELS_CPU_KERNELS_H

#include "kernels/cpu/cpu.h"

/* A GEMM is cut into tiles of TILE_M x TILE_N outputs, any of which may be computed by any thread;
 * a tile walks k in blocks of BLOCK_K and keeps its lanes in scratch in between, so that scratch
 * does not depend on k. Tiles are multiples of every level's register block. */
#define CPU_TILE_M 72
#define CPU_TILE_N 72
#define CPU_BLOCK_K 512

/* One thread's scratch, 64-byte aligned. */
struct gemm_scratch {
    float a[CPU_TILE_M * CPU_BLOCK_K];
    float b[CPU_TILE_N * CPU_BLOCK_K];
    float lanes[CPU_TILE_M * CPU_TILE_N * 16];
};

struct gemm_operand {
    const void *data; /* row-major */
    enum dtype dtype; /* FP8, F32, BF16 or F16 */
    uint64_t pitch;   /* elements from row to row, at least k */
};

/* out[m, n] = epilogue(a[m, k] * b[n, k]^T), docs/numerics.md 5. */
struct gemm_job {
    struct gemm_operand a, b;
    uint64_t m, n, k;
    float factor_a, factor_b;
    const void *bias; /* [n] or NULL */
    enum dtype bias_dtype;
    void *out;
    enum dtype out_dtype;
    bool accumulate; /* F32 without bias: each product, factors applied and rounded, is added */
};

static inline uint64_t gemm_tiles_m(const struct gemm_job *j)
{
    return (j->m + CPU_TILE_M - 1) / CPU_TILE_M;
}

static inline uint64_t gemm_tiles_n(const struct gemm_job *j)
{
    return (j->n + CPU_TILE_N - 1) / CPU_TILE_N;
}

/* At most this many elements a call, so that counts fit the lanes of a vector. */
#define CPU_CHUNK ((uint64_t)1 << 16)

struct cpu_kernels {
    /* tile < gemm_tiles_m * gemm_tiles_n */
    void (*gemm_tile)(const struct gemm_job *j, uint64_t tile, struct gemm_scratch *s);
    /* amax and nonfinite of n elements, merged into slot. */
    void (*measure)(const void *src, enum dtype t, uint64_t n, struct amax_slot *slot);
    /* The same, and codes written, saturated and flushed counted. */
    void (*cast)(const void *src, enum dtype t, uint64_t n, float scale, enum dtype fmt,
                 uint8_t *codes, struct amax_slot *slot);
    /* n codes times factor, rounded to t. */
    void (*dequantize)(const uint8_t *codes, enum dtype fmt, uint64_t n, float factor, void *out,
                       enum dtype t);
};

extern const struct cpu_kernels cpu_kernels_base, cpu_kernels_v3, cpu_kernels_v4;

/* The level that runs when `wanted` is asked for on a host whose highest is `highest`; 0 if it
 * cannot. Pure. */
enum cpu_level cpu_level_choose(enum cpu_level wanted, enum cpu_level highest);

/* The same against this host. */
enum cpu_level cpu_level_here(enum cpu_level wanted);

const struct cpu_kernels *cpu_kernels_of(enum cpu_level level);

#endif
