/* Requests about gradients. */
#include "client/call.h"

int fp8d_submit_backward(struct fp8d *c, const struct fp8d_backward *backward,
                         const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__BackwardRequest m = FP8D__V1__BACKWARD_REQUEST__INIT;
    struct request r = {.type = REQUEST_BACKWARD, .msg = &m.base};
    struct call_tensor grad_output;
    int rc = call_tensor_fill(&grad_output, &backward->grad_output, &r, 0, err);
    if (rc)
        return rc;
    m.context_id = backward->context_id;
    m.grad_output = &grad_output.ref;
    m.grad_input_dtype = (Fp8d__V1__DType)backward->grad_input_dtype;
    m.grad_input_id = backward->grad_input_id;
    m.replace_grad_input = backward->replace_grad_input;
    m.no_grad_input = backward->no_grad_input;
    m.time_compute = backward->time_compute;
    r.buffer = backward->grad_input;
    return call_submit(c, &r, call, id, err);
}

int fp8d_backward(struct fp8d *c, const struct fp8d_backward *backward,
                  const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_backward(c, backward, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_recompute(struct fp8d *c, const struct fp8d_recompute *recompute,
                          const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__RecomputeRequest m = FP8D__V1__RECOMPUTE_REQUEST__INIT;
    struct request r = {.type = REQUEST_RECOMPUTE, .msg = &m.base, .buffer = recompute->output};
    m.context_id = recompute->context_id;
    m.output_dtype = (Fp8d__V1__DType)recompute->output_dtype;
    m.output_id = recompute->output_id;
    m.replace_output = recompute->replace_output;
    m.time_compute = recompute->time_compute;
    return call_submit(c, &r, call, id, err);
}

int fp8d_recompute(struct fp8d *c, const struct fp8d_recompute *recompute,
                   const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_recompute(c, recompute, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_zero_grad(struct fp8d *c, const char *model, const struct fp8d_expect *expect,
                          const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__ZeroGradRequest m = FP8D__V1__ZERO_GRAD_REQUEST__INIT;
    struct request r = {.type = REQUEST_ZERO_GRAD, .msg = &m.base};
    Fp8d__V1__Expect expected;
    m.model = call_text(model);
    m.expect = call_expect(&expected, expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_zero_grad(struct fp8d *c, const char *model, const struct fp8d_expect *expect,
                   const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_zero_grad(c, model, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_get_gradient(struct fp8d *c, const char *model, const char *layer,
                             enum fp8d_gradient_part part, const struct fp8d_buffer *buffer,
                             const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__GetGradientRequest m = FP8D__V1__GET_GRADIENT_REQUEST__INIT;
    struct request r = {.type = REQUEST_GET_GRADIENT, .msg = &m.base};
    m.model = call_text(model);
    m.layer = call_text(layer);
    m.part = (Fp8d__V1__GradientPart)part;
    if (buffer)
        r.buffer = *buffer;
    return call_submit(c, &r, call, id, err);
}

int fp8d_get_gradient(struct fp8d *c, const char *model, const char *layer,
                      enum fp8d_gradient_part part, const struct fp8d_buffer *buffer,
                      const struct fp8d_call *call, struct fp8d_result **out,
                      struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_get_gradient(c, model, layer, part, buffer, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
