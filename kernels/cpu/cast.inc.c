/* Casts of one level: measure, cast, dequantise. Rules: docs/numerics.md 1; bits: kernels/fp8.h. */

/* Running counts of up to CPU_CHUNK elements; a lane of a mask is -1. */
struct counts {
    vec_i amax, nonfinite, saturated, flushed;
};

static void counts_add(const struct counts *c, struct amax_slot *slot)
{
    int32_t amax = 0;
    for (unsigned i = 0; i < VEC_LANES; i++) {
        amax = c->amax[i] > amax ? c->amax[i] : amax;
        slot->nonfinite += (uint64_t)-c->nonfinite[i];
        slot->saturated += (uint64_t)-c->saturated[i];
        slot->flushed += (uint64_t)-c->flushed[i];
    }
    float seen = fp8_bits_float((uint32_t)amax);
    if (seen > slot->amax)
        slot->amax = seen;
}

/* Returns the mask of finite elements. Magnitudes compare as integers. */
VEC_INLINE vec_i count_input(struct counts *c, vec_i x)
{
    vec_i mag = x & 0x7fffffff;
    vec_i finite = mag < VEC_INF;
    vec_i seen = mag & finite;
    c->amax = vec_select(seen > c->amax, seen, c->amax);
    c->nonfinite += ~finite;
    return finite;
}

VEC_INLINE vec_i cast_vec(struct counts *c, vec_i x, float scale, enum dtype fmt)
{
    vec_i finite = count_input(c, x);
    vec_i v = (vec_i)((vec_f)x * scale);
    vec_i mag = v & 0x7fffffff;
    vec_i nan = mag > VEC_INF;
    vec_i code;
    if (fmt == DTYPE_F8_E4M3) {
        vec_i top = vec_splat(0x43e00000);           /* 448 */
        c->saturated += (mag > 0x43e80000) & finite; /* 464 */
        code = vec_narrow(vec_select(mag > top, top, mag), 3, 7);
    } else {
        vec_i top = vec_splat(0x47600000);            /* 57344 */
        c->saturated += (mag >= 0x47700000) & finite; /* 61440 */
        code = vec_narrow(vec_select(mag > top, top, mag), 2, 15);
    }
    c->flushed += (code == 0) & ((x & 0x7fffffff) != 0) & ~nan;
    return vec_select(nan, vec_splat(0x7f), code | ((v >> 24) & 0x80));
}

VEC_INLINE void measure_of(const void *src, enum dtype t, uint64_t n, struct amax_slot *slot)
{
    struct counts c = {0};
    uint64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        (void)count_input(&c, vec_load(src, t, i));
    if (i < n) {
        char tail[64] = {0}; /* zeros count as nothing */
        memcpy(tail, (const char *)src + i * element_size(t), (n - i) * element_size(t));
        (void)count_input(&c, vec_load(tail, t, 0));
    }
    counts_add(&c, slot);
}

static void measure(const void *src, enum dtype t, uint64_t n, struct amax_slot *slot)
{
    if (t == DTYPE_F32)
        measure_of(src, DTYPE_F32, n, slot);
    else if (t == DTYPE_BF16)
        measure_of(src, DTYPE_BF16, n, slot);
    else
        measure_of(src, DTYPE_F16, n, slot);
}

VEC_INLINE void cast_of(const void *src, enum dtype t, uint64_t n, float scale, enum dtype fmt,
                        uint8_t *codes, struct amax_slot *slot)
{
    struct counts c = {0};
    uint64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store_8(codes + i, cast_vec(&c, vec_load(src, t, i), scale, fmt));
    if (i < n) {
        char tail[64] = {0};
        uint8_t last[VEC_LANES];
        memcpy(tail, (const char *)src + i * element_size(t), (n - i) * element_size(t));
        vec_store_8(last, cast_vec(&c, vec_load(tail, t, 0), scale, fmt));
        memcpy(codes + i, last, n - i);
    }
    counts_add(&c, slot);
}

VEC_INLINE void cast_to(const void *src, enum dtype t, uint64_t n, float scale, enum dtype fmt,
                        uint8_t *codes, struct amax_slot *slot)
{
    if (t == DTYPE_F32)
        cast_of(src, DTYPE_F32, n, scale, fmt, codes, slot);
    else if (t == DTYPE_BF16)
        cast_of(src, DTYPE_BF16, n, scale, fmt, codes, slot);
    else
        cast_of(src, DTYPE_F16, n, scale, fmt, codes, slot);
}

static void cast(const void *src, enum dtype t, uint64_t n, float scale, enum dtype fmt,
                 uint8_t *codes, struct amax_slot *slot)
{
    if (fmt == DTYPE_F8_E4M3)
        cast_to(src, t, n, scale, DTYPE_F8_E4M3, codes, slot);
    else
        cast_to(src, t, n, scale, DTYPE_F8_E5M2, codes, slot);
}

VEC_INLINE void dequantize_of(const uint8_t *codes, enum dtype fmt, uint64_t n, float factor,
                              char *out, enum dtype t)
{
    uint64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(out, t, i, (vec_f)vec_load(codes, fmt, i) * factor);
    if (i < n) {
        uint8_t tail[VEC_LANES] = {0};
        char last[64];
        memcpy(tail, codes + i, n - i);
        vec_store(last, t, 0, (vec_f)vec_load(tail, fmt, 0) * factor);
        memcpy(out + i * element_size(t), last, (n - i) * element_size(t));
    }
}

VEC_INLINE void dequantize_from(const uint8_t *codes, enum dtype fmt, uint64_t n, float factor,
                                void *out, enum dtype t)
{
    if (t == DTYPE_F32)
        dequantize_of(codes, fmt, n, factor, out, DTYPE_F32);
    else if (t == DTYPE_BF16)
        dequantize_of(codes, fmt, n, factor, out, DTYPE_BF16);
    else
        dequantize_of(codes, fmt, n, factor, out, DTYPE_F16);
}

static void dequantize(const uint8_t *codes, enum dtype fmt, uint64_t n, float factor, void *out,
                       enum dtype t)
{
    if (fmt == DTYPE_F8_E4M3)
        dequantize_from(codes, DTYPE_F8_E4M3, n, factor, out, t);
    else
        dequantize_from(codes, DTYPE_F8_E5M2, n, factor, out, t);
}
