/* The checks of struct update (backend.h), and the front function of a step that makes no bytes. */
#include "kernels/tensor_check.h"

#include <stdio.h>

/* A tensor of the master's shape, in F32. */
static int check_f32(const struct backend *b, const struct tensor *t, const struct tensor *master,
                     const char *field, struct fault *f)
{
    char part[64];
    int rc = check_tensor(b, t, field, f);
    if (!rc && t->dtype != DTYPE_F32)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.dtype is %s, needed F32", field,
                       dtype_name(t->dtype));
    (void)snprintf(part, sizeof part, "%s.rows", field);
    if (!rc)
        rc = check_dim(t->rows, master->rows, part, f);
    (void)snprintf(part, sizeof part, "%s.cols", field);
    return rc ? rc : check_dim(t->cols, master->cols, part, f);
}

static int check_moment(const struct backend *b, const struct update *u, const struct tensor *t,
                        bool needed, const char *field, struct fault *f)
{
    if (needed)
        return check_f32(b, t, &u->master, field, f);
    if (!t->buf)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "%s has a buffer, needed none: optimizer.kind %d keeps %u moments here", field,
                     (int)u->options.kind, optimizer_moments(&u->options));
}

static int check_stored(const struct backend *b, const struct update *u, struct fault *f)
{
    enum dtype to = u->round_to == DTYPE_NONE ? DTYPE_F32 : u->round_to;
    if (!dtype_is_high(to))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "update.round_to is %s, needed F32, BF16, F16 or none", dtype_name(to));
    if (!u->stored.buf)
        return 0;
    int rc = check_tensor(b, &u->stored, "update.stored", f);
    if (!rc && u->stored.dtype != to)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "update.stored.dtype is %s, needed %s",
                       dtype_name(u->stored.dtype), dtype_name(to));
    if (!rc)
        rc = check_dim(u->stored.rows, u->master.rows, "update.stored.rows", f);
    return rc ? rc : check_dim(u->stored.cols, u->master.cols, "update.stored.cols", f);
}

static int check_all_apart(const struct update *u, struct fault *f)
{
    const struct tensor *t[] = {&u->master, &u->grad, &u->m, &u->v, &u->stored};
    static const char *const fields[] = {"update.master", "update.grad", "update.m", "update.v",
                                         "update.stored"};
    int rc = 0;
    for (unsigned i = 0; i < 5 && !rc; i++)
        for (unsigned k = 0; k < i && !rc; k++)
            if (t[i]->buf && t[k]->buf)
                rc = check_apart(t[i], fields[i], t[k], fields[k], f);
    return rc;
}

static int check_tensors(const struct backend *b, const struct update *u, struct fault *f)
{
    unsigned moments = optimizer_moments(&u->options);
    int rc = check_f32(b, &u->master, &u->master, "update.master", f);
    if (!rc)
        rc = check_f32(b, &u->grad, &u->master, "update.grad", f);
    if (!rc)
        rc = check_moment(b, u, &u->m, moments >= 1, "update.m", f);
    if (!rc)
        rc = check_moment(b, u, &u->v, moments >= 2, "update.v", f);
    if (!rc)
        rc = check_stored(b, u, f);
    return rc ? rc : check_all_apart(u, f);
}

int check_update(const struct backend *b, const struct update *u, struct fault *f)
{
    int rc = optimizer_check(&u->options, f);
    if (rc)
        return rc;
    if (!u->step)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "update.step is 0, needed at least 1");
    if (!(u->grad_scale >= 0.0f && u->grad_scale <= FP8_FLT_MAX))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "update.grad_scale is %g, needed finite and at least 0",
                         (double)u->grad_scale);
    return check_tensors(b, u, f);
}

int backend_update(struct queue *q, const struct update *u, struct fault *f)
{
    int rc = check_update(q->backend, u, f);
    return rc ? rc : q->backend->ops->update(q, u, NULL, NULL, f);
}
