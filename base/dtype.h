/* dtype.h - element types of tensors, in files, on the wire and in memory.
 *
 * The list has every dtype of the safetensors format; which of them a function accepts is said
 * there. Sizes are in bits, since some are below a byte. Numbers are those of the wire (enum DType
 * in fp8d.proto) and are never reused.
 */
#ifndef FP8D_BASE_DTYPE_H
#define FP8D_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* X(name, number, bits); the name is the spelling in a safetensors header. */
#define DTYPE_LIST(X)                                                                              \
    X(F32, 1, 32)                                                                                  \
    X(BF16, 2, 16)                                                                                 \
    X(F16, 3, 16)                                                                                  \
    X(F8_E4M3, 4, 8)                                                                               \
    X(F8_E5M2, 5, 8)                                                                               \
    X(F64, 6, 64)                                                                                  \
    X(BOOL, 7, 8)                                                                                  \
    X(F4, 8, 4)                                                                                    \
    X(F6_E2M3, 9, 6)                                                                               \
    X(F6_E3M2, 10, 6)                                                                              \
    X(U8, 11, 8)                                                                                   \
    X(I8, 12, 8)                                                                                   \
    X(F8_E8M0, 13, 8)                                                                              \
    X(F8_E4M3FNUZ, 14, 8)                                                                          \
    X(F8_E5M2FNUZ, 15, 8)                                                                          \
    X(I16, 16, 16)                                                                                 \
    X(U16, 17, 16)                                                                                 \
    X(I32, 18, 32)                                                                                 \
    X(U32, 19, 32)                                                                                 \
    X(C64, 20, 64)                                                                                 \
    X(I64, 21, 64)                                                                                 \
    X(U64, 22, 64)

enum dtype {
    DTYPE_NONE = 0,
#define X(name, number, bits) DTYPE_##name = (number),
    DTYPE_LIST(X)
#undef X
};

/* Bits of one element; 0 for DTYPE_NONE and numbers outside the list. */
unsigned dtype_bits(enum dtype t);

/* Spelling, e.g. "BF16"; "?" for numbers outside the list. */
const char *dtype_name(enum dtype t);

/* The dtype spelled by exactly len bytes of s, or DTYPE_NONE. */
enum dtype dtype_parse(const char *s, unsigned long len);

/* F32, BF16, F16: what a high-precision tensor may be. */
static inline bool dtype_is_high(enum dtype t)
{
    return t == DTYPE_F32 || t == DTYPE_BF16 || t == DTYPE_F16;
}

/* F8_E4M3, F8_E5M2: what may exist only together with a factor. */
static inline bool dtype_is_fp8(enum dtype t)
{
    return t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
}

/* Bytes of n elements: false where n * bits overflows or is no whole number of bytes. */
bool dtype_bytes(enum dtype t, uint64_t n, uint64_t *bytes);

#endif
