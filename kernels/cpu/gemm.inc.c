/* The GEMM of one level: pack a block of k as float32, multiply with the lanes in registers, put
 * them back, and at the end of k sum the lanes and round. Order of summation: kernels.h. */

/* Register block: BLOCK_M * BLOCK_N accumulators, with room for operands in 32 or 16 registers. */
#if VEC_LANES == 16
#define BLOCK_M 4
#define BLOCK_N 6
#else
#define BLOCK_M 3
#define BLOCK_N 4
#endif

/* Block loops must be unrolled whole, or the accumulators live in memory. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

_Static_assert(CPU_TILE_M % BLOCK_M == 0 && CPU_TILE_N % BLOCK_N == 0, "tiles are whole blocks");
_Static_assert(CPU_BLOCK_K % 16 == 0, "only the end of a row may end within the 16 lanes");

VEC_INLINE unsigned element_size(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : t == DTYPE_BF16 || t == DTYPE_F16 ? 2 : 1;
}

/* 16 elements a step, steps `stride` floats apart, zeros after `len`. */
VEC_INLINE void pack_row_of(float *dst, unsigned stride, const char *src, enum dtype t,
                            unsigned len)
{
    char tail[64] = {0};
    unsigned whole = len / 16;
    for (unsigned s = 0; s < whole; s++)
        for (unsigned i = 0; i < 16; i += VEC_LANES) {
            vec_i v = vec_load(src, t, (uint64_t)s * 16 + i);
            memcpy(dst + (size_t)s * stride + i, &v, sizeof v);
        }
    if (len % 16 == 0)
        return;
    memcpy(tail, src + (size_t)whole * 16 * element_size(t), (len % 16) * element_size(t));
    for (unsigned i = 0; i < 16; i += VEC_LANES) {
        vec_i v = vec_load(tail, t, i);
        memcpy(dst + (size_t)whole * stride + i, &v, sizeof v);
    }
}

static void pack_row(float *dst, unsigned stride, const char *src, enum dtype t, unsigned len)
{
    switch (t) {
    case DTYPE_F32:
        pack_row_of(dst, stride, src, DTYPE_F32, len);
        break;
    case DTYPE_BF16:
        pack_row_of(dst, stride, src, DTYPE_BF16, len);
        break;
    case DTYPE_F16:
        pack_row_of(dst, stride, src, DTYPE_F16, len);
        break;
    case DTYPE_F8_E4M3:
        pack_row_of(dst, stride, src, DTYPE_F8_E4M3, len);
        break;
    default:
        pack_row_of(dst, stride, src, DTYPE_F8_E5M2, len);
        break;
    }
}

/* A rectangle of an operand: `rows` rows from row0, `len` elements of each from k0. */
struct slab {
    const struct gemm_operand *from;
    uint64_t row0, k0;
    unsigned rows, len;
};

/* Panels of `high` rows; within a panel, step after step, 16 elements of each row. */
static void pack_slab(float *dst, const struct slab *s, unsigned high)
{
    unsigned size = element_size(s->from->dtype);
    unsigned steps = (s->len + 15) / 16;
    const char *src = (const char *)s->from->data + (s->row0 * s->from->pitch + s->k0) * size;
    for (unsigned row = 0; row < s->rows; row++) {
        float *panel = dst + (size_t)(row / high) * high * steps * 16;
        pack_row(panel + row % high * 16, high * 16, src + row * s->from->pitch * size,
                 s->from->dtype, s->len);
    }
}

/* clang-format off */ /* which takes UNROLL for a statement */

/* BLOCK_N columns times `high` rows over `steps` steps, VEC_LANES of the 16 lanes. With `first` the
 * lanes start at +0. */
VEC_INLINE void multiply_of(const float *a, const float *b, unsigned steps, float *lanes,
                            bool first, unsigned high)
{
    vec_f acc[BLOCK_M][BLOCK_N];
    UNROLL
    for (unsigned i = 0; i < high; i++)
        UNROLL
        for (unsigned j = 0; j < BLOCK_N; j++)
            acc[i][j] = first ? (vec_f){0} : vec_load_f32(lanes + (i * BLOCK_N + j) * 16);
    for (unsigned s = 0; s < steps; s++, a += BLOCK_M * 16, b += BLOCK_N * 16) {
        vec_f row[BLOCK_M];
        UNROLL
        for (unsigned i = 0; i < high; i++)
            row[i] = vec_load_f32(a + i * 16);
        UNROLL
        for (unsigned j = 0; j < BLOCK_N; j++) {
            vec_f col = vec_load_f32(b + j * 16);
            UNROLL
            for (unsigned i = 0; i < high; i++)
                acc[i][j] += row[i] * col;
        }
    }
    UNROLL
    for (unsigned i = 0; i < high; i++)
        UNROLL
        for (unsigned j = 0; j < BLOCK_N; j++)
            memcpy(lanes + (i * BLOCK_N + j) * 16, &acc[i][j], sizeof(vec_f));
}

/* clang-format on */

static void multiply(const float *a, const float *b, unsigned steps, float *lanes, bool first,
                     unsigned high)
{
    for (unsigned l = 0; l < 16; l += VEC_LANES, a += VEC_LANES, b += VEC_LANES, lanes += VEC_LANES)
        switch (high) {
        case 1:
            multiply_of(a, b, steps, lanes, first, 1);
            break;
        case 2:
            multiply_of(a, b, steps, lanes, first, 2);
            break;
        case 3:
            multiply_of(a, b, steps, lanes, first, 3);
            break;
        default:
            multiply_of(a, b, steps, lanes, first, BLOCK_M);
            break;
        }
}

/* The lanes' fixed tree: 8, 4, 2, 1. */
VEC_INLINE float sum_lanes(const float *p)
{
    typedef float quad __attribute__((vector_size(16)));
    quad v[4];
    memcpy(v, p, sizeof v);
    quad x = (v[0] + v[2]) + (v[1] + v[3]);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

/* One tile: where it lies, how wide and high it is, and its bias as float32. */
struct tile {
    const struct gemm_job *job;
    uint64_t row0, col0;
    unsigned rows, cols;
    float bias[CPU_TILE_N + 16]; /* or what is accumulated into, of the row that ends */
};

VEC_INLINE void finish_row_of(const struct tile *t, const float *sums, char *out, enum dtype type)
{
    const struct gemm_job *j = t->job;
    float both = j->factor_a * j->factor_b;
    bool normal = both >= FP8_FLT_MIN && both <= FP8_FLT_MAX;
    for (unsigned i = 0; i < t->cols; i += VEC_LANES) {
        vec_f y = vec_load_f32(sums + i);
        y = normal ? y * both : y * j->factor_a * j->factor_b;
        if (j->bias || j->accumulate)
            y += vec_load_f32(t->bias + i);
        if (i + VEC_LANES <= t->cols) {
            vec_store(out, type, i, y);
            continue;
        }
        char last[64];
        unsigned size = element_size(type);
        vec_store(last, type, 0, y);
        memcpy(out + (size_t)i * size, last, (size_t)(t->cols - i) * size);
    }
}

static void finish_row(struct tile *t, const float *sums, unsigned row)
{
    const struct gemm_job *j = t->job;
    uint64_t at = (t->row0 + row) * j->n + t->col0;
    char *out = (char *)j->out + at * element_size(j->out_dtype);
    if (j->accumulate)
        memcpy(t->bias, out, t->cols * sizeof(float));
    if (j->out_dtype == DTYPE_F32)
        finish_row_of(t, sums, out, DTYPE_F32);
    else if (j->out_dtype == DTYPE_BF16)
        finish_row_of(t, sums, out, DTYPE_BF16);
    else
        finish_row_of(t, sums, out, DTYPE_F16);
}

/* Bias as it is added: exact, or rounded once to a 16-bit output's dtype. */
static void load_bias(struct tile *t)
{
    const struct gemm_job *j = t->job;
    if (!j->bias)
        return;
    unsigned size = element_size(j->bias_dtype);
    memset(t->bias, 0, sizeof t->bias);
    pack_row(t->bias, 16, (const char *)j->bias + t->col0 * size, j->bias_dtype, t->cols);
    for (unsigned i = 0; i < t->cols && j->out_dtype != DTYPE_F32; i += VEC_LANES) {
        uint16_t rounded[VEC_LANES];
        vec_i back;
        if (j->out_dtype == DTYPE_BF16) {
            vec_store(rounded, DTYPE_BF16, 0, vec_load_f32(t->bias + i));
            back = vec_load(rounded, DTYPE_BF16, 0);
        } else {
            vec_store(rounded, DTYPE_F16, 0, vec_load_f32(t->bias + i));
            back = vec_load(rounded, DTYPE_F16, 0);
        }
        memcpy(t->bias + i, &back, sizeof back);
    }
}

static unsigned blocks(unsigned n, unsigned of)
{
    return (n + of - 1) / of;
}

/* One block of k: pack both operands, then every register block of the tile. */
static void multiply_slab(const struct tile *t, uint64_t k0, struct gemm_scratch *s)
{
    const struct gemm_job *j = t->job;
    unsigned len = j->k - k0 < CPU_BLOCK_K ? (unsigned)(j->k - k0) : CPU_BLOCK_K;
    unsigned steps = blocks(len, 16);
    unsigned high = blocks(t->rows, BLOCK_M), wide = blocks(t->cols, BLOCK_N);
    pack_slab(s->a, &(struct slab){&j->a, t->row0, k0, t->rows, len}, BLOCK_M);
    pack_slab(s->b, &(struct slab){&j->b, t->col0, k0, t->cols, len}, BLOCK_N);
    float *lanes = s->lanes;
    for (unsigned c = 0; c < wide; c++)
        for (unsigned r = 0; r < high; r++, lanes += BLOCK_M * BLOCK_N * 16) {
            unsigned left = t->rows - r * BLOCK_M;
            multiply(s->a + (size_t)r * BLOCK_M * steps * 16,
                     s->b + (size_t)c * BLOCK_N * steps * 16, steps, lanes, k0 == 0,
                     left < BLOCK_M ? left : BLOCK_M);
        }
}

static void gemm_tile(const struct gemm_job *j, uint64_t index, struct gemm_scratch *s)
{
    struct tile t = {.job = j};
    t.row0 = index % gemm_tiles_m(j) * CPU_TILE_M;
    t.col0 = index / gemm_tiles_m(j) * CPU_TILE_N;
    t.rows = j->m - t.row0 < CPU_TILE_M ? (unsigned)(j->m - t.row0) : CPU_TILE_M;
    t.cols = j->n - t.col0 < CPU_TILE_N ? (unsigned)(j->n - t.col0) : CPU_TILE_N;
    for (uint64_t k0 = 0; k0 < j->k; k0 += CPU_BLOCK_K)
        multiply_slab(&t, k0, s);
    load_bias(&t);
    unsigned high = blocks(t.rows, BLOCK_M);
    for (unsigned row = 0; row < t.rows; row++) {
        float sums[CPU_TILE_N + 16] = {0};
        for (unsigned c = 0; c < t.cols; c++) {
            unsigned block = c / BLOCK_N * high + row / BLOCK_M;
            unsigned at = (block * BLOCK_M + row % BLOCK_M) * BLOCK_N + c % BLOCK_N;
            sums[c] = sum_lanes(s->lanes + (size_t)at * 16);
        }
        finish_row(&t, sums, row);
    }
}
