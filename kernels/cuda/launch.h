/* launch.h - our own kernels as C sees them: one launcher each, which enqueues and returns what
 * cudaGetLastError says. For C11 and for C++17 (nvcc), so nothing of the project's atomics in here.
 *
 * Pointers are device-visible: device memory, or pinned and mapped host memory.
 */
#ifndef FP8D_KERNELS_CUDA_LAUNCH_H
#define FP8D_KERNELS_CUDA_LAUNCH_H

#include "base/dtype.h"
#include "kernels/optimizer.h"
#include "kernels/report.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the blocks of one launch add up; all zero between launches. Device memory of the queue. */
struct cast_sums {
    unsigned long long nonfinite, saturated, flushed;
    unsigned amax;  /* bits of a float >= 0, which order as integers do */
    unsigned first; /* the same, of the launch before the cast's */
    unsigned done;  /* blocks that are through */
    unsigned pad;
};

/* cast.cu. Twin: kernels/cpu/cast.inc.c. */
struct cast_launch {
    const void *src;
    enum dtype dtype;
    uint64_t count; /* elements; 0 is fine */
    uint8_t *codes; /* 16-byte aligned */
    float *factor;
    const struct scaler *site; /* NULL: the scale comes from the tensor */
    bool unless_set;           /* it does while the site is unset */
    enum dtype fmt;
    int margin;
    struct cast_report *report;
    struct cast_sums *sums;
    unsigned sms;
    uint8_t *second;            /* the transposed codes, 16-byte aligned; NULL: one form */
    uint64_t rows, cols, pitch; /* of the second form: pitch a multiple of 16, at least rows */
    float *column_sums;         /* [cols]: gets the sums of src's columns; NULL: none */
    bool sums_add;              /* adds to them */
    float *partial;             /* room for cast_partials(rows, cols) where there are column sums */
};
cudaError_t launch_cast(const struct cast_launch *a, cudaStream_t stream);
/* cast_forms.cu: the cast itself where there is a second form; launch_cast calls it. */
cudaError_t launch_cast_forms(const struct cast_launch *a, cudaStream_t stream);

/* cast_sums.cu: the same where there are column sums: of SUMS_ROWS rows in float32 by the cast,
 * into partial [rows / SUMS_ROWS rounded up, cols]; then over those in float64, rounded once. Twin:
 * kernels/cpu/sums.c. */
#define SUMS_ROWS 64u
static inline uint64_t cast_partials(uint64_t rows, uint64_t cols)
{
    return (rows + SUMS_ROWS - 1) / SUMS_ROWS * cols;
}
cudaError_t launch_cast_sums(const struct cast_launch *a, cudaStream_t stream);

/* transpose.cu: to[c, r] = from[r, c], dense, at least one row and column; from and to 16-byte
 * aligned. */
struct transpose_launch {
    const uint8_t *from;
    const float *factor;
    uint8_t *to;
    float *factor_to;
    uint64_t rows, cols;
    unsigned sms;
};
cudaError_t launch_transpose(const struct transpose_launch *a, cudaStream_t stream);

/* measure.cu: amax and nonfinite into report->slot, the rest of the report zero. */
cudaError_t launch_measure(const struct cast_launch *a, cudaStream_t stream);

/* dequantize.cu: out[i] = code[i] * *factor, rounded to dtype. */
cudaError_t launch_dequantize(const uint8_t *codes, enum dtype fmt, const float *factor, void *out,
                              enum dtype dtype, uint64_t count, cudaStream_t stream);

/* apply.cu: one block a site. Twin: scaler.h, through kernels/cpu/state.c. */
struct apply_row {
    struct scaler *site;
    const struct scaler *replace;
    const struct amax_slot *slot;
    struct scaler *mirror;
    enum dtype fmt;
    bool collect;
};
#define APPLY_ROWS_INLINE 8u /* that travel as kernel arguments; more are read from `rows` */
struct apply_launch {
    const struct apply_row *rows; /* device-visible where count > APPLY_ROWS_INLINE */
    uint32_t count;
    enum amax_algo algo;
    int margin;
    bool frozen;
};
cudaError_t launch_apply(const struct apply_launch *a, cudaStream_t stream);

/* compare.cu: partial is room for COMPARE_BLOCKS compare_reports in device memory. */
#define COMPARE_BLOCKS 256u
cudaError_t launch_compare(const void *a, enum dtype ta, const void *b, enum dtype tb,
                           uint64_t count, struct compare_report *partial,
                           struct compare_report *report, cudaStream_t stream);

/* norm.cu: partial is room for NORM_BLOCKS norm_reports in device memory. */
#define NORM_BLOCKS 1024u
cudaError_t launch_norm(const void *src, enum dtype dtype, uint64_t count,
                        struct norm_report *partial, struct norm_report *report,
                        cudaStream_t stream);

/* update.cu: one step of an optimizer. Twin: kernels/cpu/update.c. */
struct update_launch {
    struct optimizer_step step;
    unsigned moments; /* of m and v, how many there are */
    float *master, *m, *v;
    const float *grad;
    enum dtype round_to; /* F32, BF16 or F16 */
    void *stored;        /* of round_to; may be NULL */
    uint64_t rows, cols;
    struct cast_launch cast; /* of a step that casts: all but src, dtype and count */
};
cudaError_t launch_update(const struct update_launch *a, cudaStream_t stream);
/* update_cast.cu: the same with the cast in one pass. */
cudaError_t launch_update_cast(const struct update_launch *a, cudaStream_t stream);

/* stamp.cu: *at = nanoseconds of the device's clock. */
cudaError_t launch_stamp(uint64_t *at, cudaStream_t stream);

/* copy.cu */
cudaError_t launch_copy(void *dst, const void *src, uint64_t bytes, cudaStream_t stream);
cudaError_t launch_store_float(float *dst, float value, cudaStream_t stream);
/* rows x cols bytes, `pitch` from row to row, to the corner of rows_to x cols_to, zeros around. */
cudaError_t launch_pad(uint8_t *dst, uint64_t rows_to, uint64_t cols_to, const uint8_t *src,
                       uint64_t rows, uint64_t cols, uint64_t pitch, cudaStream_t stream);
/* Elements of one dtype to another, each rounded once; NaN becomes the quiet NaN. */
cudaError_t launch_convert(void *dst, enum dtype to, const void *src, enum dtype from,
                           uint64_t count, cudaStream_t stream);
/* Data to time GEMMs on: roughly normal, FP8 or high precision. */
cudaError_t launch_fill(void *dst, enum dtype t, uint64_t count, uint32_t seed,
                        cudaStream_t stream);

/* finish.cu: what a GEMM's accumulators need to become outputs (docs/numerics.md 5). */
struct finish_launch {
    const float *acc; /* [rows, cols], rows `pitch` elements apart; may be `out` */
    uint64_t pitch;
    void *out; /* [rows, cols] */
    enum dtype dtype;
    uint64_t rows, cols;
    const float *factor_a, *factor_b; /* both NULL: no factors */
    const void *bias;                 /* [cols] or NULL; rounded to a 16-bit dtype first */
    enum dtype bias_dtype;
    bool accumulate; /* add to what `out` holds: float32, no bias */
};
cudaError_t launch_finish(const struct finish_launch *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
