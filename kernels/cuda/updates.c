/* What a training step needs besides gradients: the optimizer's update, and norms. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/queue.h"
#include "kernels/qtensor_impl.h"

struct update_run {
    struct update_launch launch;
    bool casts;
};

static int update_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct update_run *r = args;
    const struct update_launch *a = &r->launch;
    return cuda_check(
        q->cuda, r->casts ? launch_update_cast(a, q->stream) : launch_update(a, q->stream), f,
        "the update of [%llu, %llu]", (unsigned long long)a->rows, (unsigned long long)a->cols);
}

static struct cast_launch cast_of(const struct cuda_queue *q, const struct cast *c,
                                  const struct qtensor *out)
{
    uint8_t *codes = out->mem->data;
    return (struct cast_launch){
        .codes = codes,
        .factor = (float *)(void *)(codes + out->factor_offset),
        .site = c->site,
        .fmt = c->fmt,
        .margin = c->margin,
        .report = c->report,
        .sums = queue_sums(q),
        .sms = q->cuda->sms,
        .second = out->second_offset ? codes + out->second_offset : NULL,
        .rows = out->rows,
        .cols = out->cols,
        .pitch = out->second_pitch,
    };
}

static void *data_of(const struct tensor *t)
{
    return t->buf ? tensor_data(t) : NULL;
}

int cuda_update(struct queue *base, const struct update *u, const struct cast *c,
                struct qtensor *out, struct fault *f)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    struct update_run r = {
        .launch =
            {
                .step = optimizer_step_of(&u->options, u->step, u->grad_scale),
                .moments = optimizer_moments(&u->options),
                .master = tensor_data(&u->master),
                .m = data_of(&u->m),
                .v = data_of(&u->v),
                .grad = tensor_data(&u->grad),
                .round_to = u->round_to == DTYPE_NONE ? DTYPE_F32 : u->round_to,
                .stored = data_of(&u->stored),
                .rows = u->master.rows,
                .cols = u->master.cols,
            },
        .casts = c != NULL,
    };
    if (c)
        r.launch.cast = cast_of(q, c, out);
    return cuda_post(q, update_run, &r, sizeof r, f);
}

struct norm_run {
    struct tensor tensor;
    struct norm_report *report;
};

static int norm_run(struct cuda_queue *q, void *args, struct fault *f)
{
    const struct norm_run *r = args;
    const struct tensor *t = &r->tensor;
    void *partial;
    int rc = cuda_scratch(q, NORM_BLOCKS * sizeof *r->report, "a norm", &partial, f);
    return rc ? rc
              : cuda_check(q->cuda,
                           launch_norm(tensor_data(t), t->dtype, t->rows * t->cols, partial,
                                       r->report, q->stream),
                           f, "the norm of [%llu, %llu]", (unsigned long long)t->rows,
                           (unsigned long long)t->cols);
}

int cuda_norm(struct queue *q, const struct tensor *t, struct norm_report *report, struct fault *f)
{
    struct norm_run r = {*t, report};
    return cuda_post((struct cuda_queue *)q, norm_run, &r, sizeof r, f);
}
