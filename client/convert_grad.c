/* Replies about gradients. */
#include "client/convert.h"

/* What a caller computes with: of a high-precision dtype, and not a single number. */
static int check_grad(const struct fp8d_tensor *t, const char *field, struct fault *f)
{
    if (t->dtype != FP8D_F32 && t->dtype != FP8D_BF16 && t->dtype != FP8D_F16)
        return fault_set(f, FP8D_EPROTOCOL, "field %s is %s, needed F32, BF16 or F16", field,
                         fp8d_dtype_name(t->dtype));
    if (!t->rank)
        return fault_set(f, FP8D_EPROTOCOL, "field %s has no dimensions, needed 1 to 8", field);
    return 0;
}

int convert_backward(struct fp8d_result *r, const Fp8d__V1__BackwardReply *m, struct fault *f)
{
    struct fp8d_backward_result *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    convert_cast(m->grad_output, &s->has_grad_output, &s->grad_output);
    s->dropped = m->dropped;
    s->accumulated = m->accumulated;
    s->scales_applied = m->scales_applied;
    s->compute_ns = m->compute_ns;
    s->has_grad_input = m->grad_input != NULL;
    r->body = s;
    if (!m->grad_input)
        return 0;
    int rc = convert_tensor(r, m->grad_input, &s->grad_input, f);
    return rc ? rc : check_grad(&s->grad_input, "grad_input", f);
}

int convert_recompute(struct fp8d_result *r, const Fp8d__V1__RecomputeReply *m, struct fault *f)
{
    struct fp8d_recompute_result *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    s->compute_ns = m->compute_ns;
    r->body = s;
    if (!m->output)
        return fault_set(f, FP8D_EPROTOCOL, "field output is missing, needed a tensor");
    int rc = convert_tensor(r, m->output, &s->output, f);
    return rc ? rc : check_grad(&s->output, "output", f);
}

int convert_zero_grad(struct fp8d_result *r, const Fp8d__V1__ZeroGradReply *m, struct fault *f)
{
    struct fp8d_grad_zeroed *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_grad_zeroed){.layers = m->layers};
    r->body = s;
    return 0;
}

int convert_get_gradient(struct fp8d_result *r, const Fp8d__V1__GetGradientReply *m,
                         struct fault *f)
{
    struct fp8d_gradient *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    int rc = convert_tensor(r, m->gradient, &s->tensor, f);
    if (rc)
        return rc;
    const struct fp8d_tensor *t = &s->tensor;
    if (t->dtype != FP8D_F32 || t->rank < 1 || t->rank > 2 || t->tensor_id)
        return fault_set(f, FP8D_EPROTOCOL,
                         "the gradient is %s of %u dimensions%s, needed F32 of 1 or 2, with bytes",
                         fp8d_dtype_name(t->dtype), t->rank, t->tensor_id ? " elsewhere" : "");
    s->contributions = m->contributions;
    s->nonfinite = m->nonfinite;
    r->body = s;
    return 0;
}
