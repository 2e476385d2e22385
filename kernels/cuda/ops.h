/* ops.h - the operations of the CUDA backend, as the table wants them. Contracts: backend.h. */
#ifndef FP8D_KERNELS_CUDA_OPS_H
#define FP8D_KERNELS_CUDA_OPS_H

#include "kernels/backend.h"

/* casts.c */
int cuda_cast(struct queue *q, const struct cast *c, struct qtensor *out, struct fault *f);
int cuda_measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                 struct fault *f);
int cuda_adopt(struct queue *q, const struct buffer *bytes, uint64_t offset, float scale_inv,
               struct qtensor *out, struct fault *f);
int cuda_export(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg,
                struct fault *f);
int cuda_dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                    struct fault *f);

int cuda_transpose(struct queue *q, const struct qtensor *t, struct qtensor *out, struct fault *f);

/* gemm.c, gemm_high.c */
int cuda_gemm(struct queue *q, const struct gemm *g, struct fault *f);
int cuda_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f);

/* fill.c */
int cuda_convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                 struct fault *f);
int cuda_zero(struct queue *q, const struct tensor *t, struct fault *f);

/* state.c */
int cuda_copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
              uint64_t src_off, uint64_t bytes, struct fault *f);
int cuda_apply(struct queue *q, const struct apply *a, struct fault *f);
int cuda_compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                 struct compare_report *report, struct fault *f);
int cuda_stamp(struct queue *q, uint64_t *at, struct fault *f);

/* updates.c */
int cuda_update(struct queue *q, const struct update *u, const struct cast *c, struct qtensor *out,
                struct fault *f);
int cuda_norm(struct queue *q, const struct tensor *t, struct norm_report *report, struct fault *f);

static inline void *tensor_data(const struct tensor *t)
{
    return (char *)t->buf->data + t->offset;
}

#endif
