/* recipe.h - scaling arithmetic: pure functions, one text for host and device.
 *
 * The rules are those of docs/numerics.md sections 3 and 4. Nothing here allocates or has state.
 */
#ifndef FP8D_KERNELS_RECIPE_H
#define FP8D_KERNELS_RECIPE_H

#include "base/dtype.h"
#include "base/fault.h"
#include "kernels/fp8.h" /* FP8_HD: static inline, __host__ __device__ under nvcc */

#include <stdbool.h>
#include <stdint.h>

enum recipe_kind {
    RECIPE_DELAYED = 1, /* scale from the amax history of earlier casts */
    RECIPE_CURRENT = 2, /* scale from the tensor at hand; stateless */
};

enum recipe_format {
    RECIPE_HYBRID = 1, /* E4M3 for input and weight, E5M2 for gradients */
    RECIPE_E4M3 = 2,   /* E4M3 throughout */
};

enum amax_algo {
    AMAX_MAX = 1,         /* largest of the history */
    AMAX_MOST_RECENT = 2, /* newest entry alone */
};

/* How a forward's FP8 GEMM adds; gradients are always precise (docs/numerics.md 5.2). No cast
 * depends on it. */
enum recipe_accumulation {
    ACCUMULATION_FAST = 1,    /* in the tensor core throughout, where the backend has that */
    ACCUMULATION_PRECISE = 2, /* promoted to float32 on the way; the CPU backend always is */
};

#define RECIPE_HISTORY_MAX 65536u
#define RECIPE_MARGIN_MAX 31

/* Numbers above are those of the wire. */
struct recipe {
    enum recipe_kind kind;
    enum recipe_format format;
    enum amax_algo algo;
    uint32_t history_len; /* 1 to RECIPE_HISTORY_MAX, row 0 (the collecting one) included */
    int margin;           /* 0 to RECIPE_MARGIN_MAX; divides the scale by 2^margin */
    enum recipe_accumulation fprop;
};

#define RECIPE_DEFAULT                                                                             \
    ((struct recipe){RECIPE_DELAYED, RECIPE_HYBRID, AMAX_MAX, 1024, 0, ACCUMULATION_FAST})

/* One quantisation site of a layer. OUTPUT and GRAD_INPUT are reserved: nothing is cast there yet.
 */
enum site_kind {
    SITE_INPUT = 0,
    SITE_WEIGHT = 1,
    SITE_OUTPUT = 2,
    SITE_GRAD_OUTPUT = 3,
    SITE_GRAD_INPUT = 4,
    SITE_KINDS = 5,
};

/* "input", "weight", "output", "grad_output", "grad_input". */
const char *site_name(enum site_kind kind);

/* FP8D_EINVALID_ARGUMENT with field, value found and value needed. */
int recipe_check(const struct recipe *r, struct fault *f);

/* "delayed, hybrid, history 1024, max, margin 0, fast accumulation" into out. */
const char *recipe_text(const struct recipe *r, char *out, unsigned size);

/* They differ in accumulation, and in nothing that scales and casts depend on. */
bool recipe_differs_in_sums_alone(const struct recipe *a, const struct recipe *b);

/* DTYPE_F8_E4M3 or DTYPE_F8_E5M2: what the recipe casts a site to. */
enum dtype recipe_dtype(const struct recipe *r, enum site_kind kind);

/* fp8_max * 2^-margin, an exact float32. */
FP8_HD float recipe_target(enum dtype fmt, int margin)
{
    /* 2^-margin assembled as bits: exact, and the same text on the device. */
    return fp8_max(fmt) * fp8_bits_float((uint32_t)(127 - margin) << 23);
}

/* a / b, correctly rounded, subnormal results kept. Not for nvcc -ftz=true or -use_fast_math. */
FP8_HD float recipe_div(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b); /* whatever -prec-div says */
#else
    return a / b;
#endif
}

/* To [FLT_MIN, FLT_MAX]; Inf becomes FLT_MAX. */
FP8_HD float recipe_clamp(float scale)
{
    if (scale > FP8_FLT_MAX)
        return FP8_FLT_MAX;
    return scale < FP8_FLT_MIN ? FP8_FLT_MIN : scale;
}

/* scale = target / amax: one correctly rounded division, clamped to [FLT_MIN, FLT_MAX].
 * amax must be finite and >= 0; for 0 the result is 1 (a tensor of zeros). */
FP8_HD float recipe_scale(float amax, enum dtype fmt, int margin)
{
    return amax > 0.0f ? recipe_clamp(recipe_div(recipe_target(fmt, margin), amax)) : 1.0f;
}

/* scale_inv = 1/scale, correctly rounded; 1/FLT_MAX is subnormal and kept. */
FP8_HD float recipe_scale_inv(float scale)
{
    return recipe_div(1.0f, scale);
}

/* The scale beside a factor that came from a file: 1/scale_inv, clamped. */
FP8_HD float recipe_scale_of(float scale_inv)
{
    return recipe_clamp(recipe_div(1.0f, scale_inv));
}

/* A factor from a file may be used: finite and >= 2^-128, which is 1/FLT_MAX rounded. On bits,
 * since 2^-128 is subnormal. */
FP8_HD bool recipe_factor_ok(float scale_inv)
{
    uint32_t u = fp8_float_bits(scale_inv);
    return u >= 0x00200000u && u < 0x7f800000u;
}

#endif
