/* ops.h - the operations of the CPU backend, as the table wants them. Contracts: backend.h. */
#ifndef FP8D_KERNELS_CPU_OPS_H
#define FP8D_KERNELS_CPU_OPS_H

#include "kernels/backend.h"

/* cast.c */
int cpu_cast(struct queue *q, const struct cast *c, struct qtensor *out, struct fault *f);
int cpu_measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                struct fault *f);
int cpu_adopt(struct queue *q, const struct buffer *bytes, uint64_t offset, float scale_inv,
              struct qtensor *out, struct fault *f);
int cpu_export(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg,
               struct fault *f);
int cpu_dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                   struct fault *f);

/* transpose.c */
int cpu_transpose(struct queue *q, const struct qtensor *t, struct qtensor *out, struct fault *f);

/* gemm.c */
int cpu_gemm(struct queue *q, const struct gemm *g, struct fault *f);
int cpu_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f);

/* fill.c */
int cpu_convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                struct fault *f);
int cpu_zero(struct queue *q, const struct tensor *t, struct fault *f);

/* state.c */
int cpu_copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
             uint64_t src_off, uint64_t bytes, struct fault *f);
int cpu_apply(struct queue *q, const struct apply *a, struct fault *f);
int cpu_compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                struct compare_report *report, struct fault *f);
int cpu_stamp(struct queue *q, uint64_t *at, struct fault *f);

/* update.c, norm.c */
int cpu_update(struct queue *q, const struct update *u, const struct cast *c, struct qtensor *out,
               struct fault *f);
int cpu_norm(struct queue *q, const struct tensor *t, struct norm_report *report, struct fault *f);

static inline void *tensor_data(const struct tensor *t)
{
    return (char *)t->buf->data + t->offset;
}

#endif
