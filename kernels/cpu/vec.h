/* vec.h - vectors of the level being compiled, by the extensions that gcc and clang share.
 *
 * Included by kernels.inc.c alone. A vector has VEC_LANES elements; no operation here depends on
 * how many there are.
 */
#ifndef FP8D_KERNELS_CPU_VEC_H
#define FP8D_KERNELS_CPU_VEC_H

#include "kernels/fp8.h"

#include <immintrin.h>

#ifdef __AVX512F__
#define VEC_LANES 16
#elif defined(__AVX2__)
#define VEC_LANES 8
#else
#define VEC_LANES 4
#endif

#define VEC_INLINE static inline __attribute__((always_inline))

typedef float vec_f __attribute__((vector_size(VEC_LANES * 4)));
typedef int32_t vec_i __attribute__((vector_size(VEC_LANES * 4)));
typedef uint32_t vec_u __attribute__((vector_size(VEC_LANES * 4)));

#define VEC_INF 0x7f800000
#define VEC_QUIET 0x7fc00000

VEC_INLINE vec_f vec_load_f32(const float *p)
{
    vec_f v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE vec_i vec_splat(int32_t x)
{
    return (vec_i){0} + x;
}

/* Lanes of a where mask is -1, of b where it is 0. */
VEC_INLINE vec_i vec_select(vec_i mask, vec_i a, vec_i b)
{
    return (mask & a) | (~mask & b);
}

/* Magnitude of a small float, its mantissa already at float32's place, to that of float32; `up` is
 * the difference of the biases. Its subnormals are made by a subtraction of two normals: a float32
 * subnormal as operand would cost an assist on some processors. */
VEC_INLINE vec_i vec_widen(vec_i mag, int32_t up)
{
    int32_t base = (up + 1) << 23;
    vec_i small = (vec_i)((vec_f)(mag + base) - (vec_f)vec_splat(base));
    return vec_select(mag < (1 << 23), small, mag + (up << 23));
}

/* Magnitude of float32 to that of a small float with `mant` mantissa bits and bias `bias`, nearest
 * even, no saturation: mag must be at most its largest. The small float's subnormals are rounded by
 * adding a power of two whose last place is their unit. */
VEC_INLINE vec_i vec_narrow(vec_i mag, int mant, int bias)
{
    int32_t drop = 23 - mant, below = (1 << (drop - 1)) - 1;
    vec_i odd = (mag >> drop) & 1;
    vec_i normal = ((mag + below + odd) >> drop) - ((127 - bias) << mant);
    vec_i flushed = mag & ~(mag < (1 << 23)); /* float32 subnormals are far below half a unit */
    vec_i magic = vec_splat((127 + 24 - bias - mant) << 23);
    vec_i small = (vec_i)((vec_f)flushed + (vec_f)magic) - magic;
    return vec_select(mag < ((128 - bias) << 23), small, normal);
}

/* --- VEC_LANES integers of 8 or 16 bits, zero-extended, and back (they fit) ---
 * Intrinsics, since gcc 12 makes byte-by-byte code of __builtin_convertvector. */

#if VEC_LANES == 16

VEC_INLINE vec_i vec_load_8(const void *p)
{
    return (vec_i)_mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}

VEC_INLINE vec_i vec_load_16(const void *p)
{
    return (vec_i)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
}

VEC_INLINE void vec_store_8(void *p, vec_i v)
{
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8((__m512i)v));
}

VEC_INLINE void vec_store_16(void *p, vec_i v)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)v));
}

#elif VEC_LANES == 8

VEC_INLINE vec_i vec_load_8(const void *p)
{
    return (vec_i)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
}

VEC_INLINE vec_i vec_load_16(const void *p)
{
    return (vec_i)_mm256_cvtepu16_epi32(_mm_loadu_si128(p));
}

VEC_INLINE __m128i vec_pack_16(vec_i v)
{
    __m256i both = _mm256_packus_epi32((__m256i)v, (__m256i)v);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0x08));
}

VEC_INLINE void vec_store_16(void *p, vec_i v)
{
    _mm_storeu_si128(p, vec_pack_16(v));
}

VEC_INLINE void vec_store_8(void *p, vec_i v)
{
    __m128i h = vec_pack_16(v);
    _mm_storel_epi64(p, _mm_packus_epi16(h, h));
}

#else

VEC_INLINE vec_i vec_load_8(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    __m128i zero = _mm_setzero_si128();
    return (vec_i)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
}

VEC_INLINE vec_i vec_load_16(const void *p)
{
    return (vec_i)_mm_unpacklo_epi16(_mm_loadl_epi64(p), _mm_setzero_si128());
}

VEC_INLINE void vec_store_8(void *p, vec_i v)
{
    __m128i h = _mm_packs_epi32((__m128i)v, (__m128i)v);
    int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(h, h));
    memcpy(p, &four, sizeof four);
}

VEC_INLINE void vec_store_16(void *p, vec_i v)
{
    /* SSE2 packs with signed saturation only: make 0x8000 and above negative first. */
    __m128i s = (__m128i)((v << 16) >> 16);
    _mm_storel_epi64(p, _mm_packs_epi32(s, s));
}

#endif

VEC_INLINE vec_i vec_from_f16(vec_i h)
{
    vec_i mag = (h & 0x7fff) << 13;
    vec_i wide = vec_widen(mag, 112);
    return (wide | ((mag >= (0x7c00 << 13)) & VEC_INF)) | (h & 0x8000) << 16;
}

VEC_INLINE vec_i vec_from_e4m3(vec_i c)
{
    vec_i mag = (c & 0x7f) << 20;
    vec_i wide = vec_widen(mag, 120);
    return (wide | ((mag == (0x7f << 20)) & VEC_QUIET)) | (c & 0x80) << 24;
}

/* Bits of VEC_LANES float32 values of elements i, i + 1, ... of src; t is a constant. E5M2 is the
 * upper byte of f16. Exact. */
VEC_INLINE vec_i vec_load(const void *src, enum dtype t, uint64_t i)
{
    const char *p = src;
    switch (t) {
    case DTYPE_F32:
        return (vec_i)vec_load_f32((const float *)src + i);
    case DTYPE_BF16:
        return vec_load_16(p + 2 * i) << 16;
    case DTYPE_F16:
        return vec_from_f16(vec_load_16(p + 2 * i));
    case DTYPE_F8_E4M3:
        return vec_from_e4m3(vec_load_8(p + i));
    default:
        return vec_from_f16(vec_load_8(p + i) << 8);
    }
}

VEC_INLINE vec_i vec_to_f16(vec_i mag)
{
    vec_i over = mag >= 0x477ff000; /* 65520 and above round to Inf */
    return vec_select(over, vec_splat(0x7c00), vec_narrow(mag & ~over, 10, 15));
}

/* Round to F32, BF16 or F16 (t is a constant) and store as elements i, i + 1, ... of dst. */
VEC_INLINE void vec_store(void *dst, enum dtype t, uint64_t i, vec_f x)
{
    char *p = dst;
    vec_i bits = (vec_i)x;
    vec_i mag = bits & 0x7fffffff;
    vec_i nan = mag > VEC_INF;
    bits = vec_select(nan, vec_splat(VEC_QUIET), bits);
    if (t == DTYPE_F32) {
        memcpy(p + 4 * i, &bits, sizeof bits);
    } else if (t == DTYPE_BF16) {
        vec_u u = (vec_u)bits;
        vec_store_16(p + 2 * i, (vec_i)((u + 0x7fff + (u >> 16 & 1)) >> 16));
    } else {
        vec_i code = vec_select(nan, vec_splat(0x7e00), vec_to_f16(mag & ~nan));
        vec_store_16(p + 2 * i, code | ((bits >> 16) & 0x8000));
    }
}

#endif
