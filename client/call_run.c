/* Requests that compute, and what brackets them. */
#include "client/call.h"

int fp8d_submit_forward(struct fp8d *c, const struct fp8d_forward *forward,
                        const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__ForwardRequest m = FP8D__V1__FORWARD_REQUEST__INIT;
    struct request r = {.type = REQUEST_FORWARD, .msg = &m.base};
    Fp8d__V1__Expect expected;
    struct call_tensor input;
    int rc = call_tensor_fill(&input, &forward->input, &r, 0, err);
    if (rc)
        return rc;
    m.model = call_text(forward->model);
    m.layer = call_text(forward->layer);
    m.mode = (Fp8d__V1__Mode)forward->mode;
    m.first_microbatch = (Fp8d__V1__FirstMicrobatch)forward->first_microbatch;
    m.input = &input.ref;
    m.output_dtype = (Fp8d__V1__DType)forward->output_dtype;
    m.output_id = forward->output_id;
    m.context_id = forward->context_id;
    m.expect = call_expect(&expected, &forward->expect);
    m.time_compute = forward->time_compute;
    m.replace_output = forward->replace_output;
    r.buffer = forward->output;
    return call_submit(c, &r, call, id, err);
}

int fp8d_forward(struct fp8d *c, const struct fp8d_forward *forward, const struct fp8d_call *call,
                 struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_forward(c, forward, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_begin_scope(struct fp8d *c, uint64_t scope_id, const char *model,
                            const struct fp8d_expect *expect, const struct fp8d_call *call,
                            uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__BeginScopeRequest m = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    struct request r = {.type = REQUEST_BEGIN_SCOPE, .msg = &m.base};
    Fp8d__V1__Expect expected;
    m.scope_id = scope_id;
    m.model = call_text(model);
    m.expect = call_expect(&expected, expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_begin_scope(struct fp8d *c, uint64_t scope_id, const char *model,
                     const struct fp8d_expect *expect, const struct fp8d_call *call,
                     struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_begin_scope(c, scope_id, model, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_end_scope(struct fp8d *c, uint64_t scope_id, bool discard,
                          const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__EndScopeRequest m = FP8D__V1__END_SCOPE_REQUEST__INIT;
    struct request r = {.type = REQUEST_END_SCOPE, .msg = &m.base};
    m.scope_id = scope_id;
    m.discard = discard;
    return call_submit(c, &r, call, id, err);
}

int fp8d_end_scope(struct fp8d *c, uint64_t scope_id, bool discard, const struct fp8d_call *call,
                   struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_end_scope(c, scope_id, discard, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_finish_calibration(struct fp8d *c, const char *model,
                                   enum fp8d_calibration_action action,
                                   const struct fp8d_expect *expect, const struct fp8d_call *call,
                                   uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__FinishCalibrationRequest m = FP8D__V1__FINISH_CALIBRATION_REQUEST__INIT;
    struct request r = {.type = REQUEST_FINISH_CALIBRATION, .msg = &m.base};
    Fp8d__V1__Expect expected;
    m.model = call_text(model);
    m.action = (Fp8d__V1__CalibrationAction)action;
    m.expect = call_expect(&expected, expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_finish_calibration(struct fp8d *c, const char *model, enum fp8d_calibration_action action,
                            const struct fp8d_expect *expect, const struct fp8d_call *call,
                            struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_finish_calibration(c, model, action, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_drop_context(struct fp8d *c, uint64_t context_id, const struct fp8d_call *call,
                             uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__DropContextRequest m = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    struct request r = {.type = REQUEST_DROP_CONTEXT, .msg = &m.base};
    m.context_id = context_id;
    return call_submit(c, &r, call, id, err);
}

int fp8d_drop_context(struct fp8d *c, uint64_t context_id, const struct fp8d_call *call,
                      struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_drop_context(c, context_id, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_check_numerics(struct fp8d *c, const char *model, const char *layer,
                               const struct fp8d_tensor *input, const struct fp8d_call *call,
                               uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__CheckNumericsRequest m = FP8D__V1__CHECK_NUMERICS_REQUEST__INIT;
    struct request r = {.type = REQUEST_CHECK_NUMERICS, .msg = &m.base};
    struct call_tensor t;
    int rc = call_tensor_fill(&t, input, &r, 0, err);
    if (rc)
        return rc;
    m.model = call_text(model);
    m.layer = call_text(layer);
    m.input = &t.ref;
    return call_submit(c, &r, call, id, err);
}

int fp8d_check_numerics(struct fp8d *c, const char *model, const char *layer,
                        const struct fp8d_tensor *input, const struct fp8d_call *call,
                        struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_check_numerics(c, model, layer, input, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
