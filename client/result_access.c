/* What a caller may read of a result: the body, if it is of the type asked for. */
#include "client/result.h"
#include "proto/requests.h"

static const void *body_of(const struct fp8d_result *r, uint16_t type)
{
    return r && r->type == type ? r->body : NULL;
}

const struct fp8d_reply *fp8d_result_reply(const struct fp8d_result *r)
{
    return r ? &r->reply : NULL;
}

enum fp8d_cancel_outcome fp8d_result_cancel(const struct fp8d_result *r)
{
    const enum fp8d_cancel_outcome *outcome = body_of(r, REQUEST_CANCEL);
    return outcome ? *outcome : FP8D_CANCEL_UNKNOWN;
}

const struct fp8d_status *fp8d_result_status(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_STATUS);
}

const struct fp8d_models *fp8d_result_models(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_LIST_MODELS);
}

const struct fp8d_description *fp8d_result_description(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_DESCRIBE_MODEL);
}

const struct fp8d_scaling *fp8d_result_scaling(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_QUERY_SCALING);
}

const struct fp8d_load_report *fp8d_result_load(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_LOAD_COMMIT);
}

const struct fp8d_tensor *fp8d_result_tensor(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_GET_TENSOR);
}

const struct fp8d_forward_result *fp8d_result_forward(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_FORWARD);
}

const struct fp8d_scope_end *fp8d_result_scope_end(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_END_SCOPE);
}

const struct fp8d_calibration *fp8d_result_calibration(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_FINISH_CALIBRATION);
}

const struct fp8d_check *fp8d_result_check(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_CHECK_NUMERICS);
}

const struct fp8d_save_report *fp8d_result_save(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_SAVE_COMMIT);
}

const struct fp8d_scaling_set *fp8d_result_scaling_set(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_SET_SCALING);
}

const struct fp8d_recipe_set *fp8d_result_recipe_set(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_SET_RECIPE);
}

const struct fp8d_created *fp8d_result_created(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_CREATE_MODEL);
}

const struct fp8d_backward_result *fp8d_result_backward(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_BACKWARD);
}

const struct fp8d_recompute_result *fp8d_result_recompute(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_RECOMPUTE);
}

const struct fp8d_grad_zeroed *fp8d_result_grad_zeroed(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_ZERO_GRAD);
}

const struct fp8d_gradient *fp8d_result_gradient(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_GET_GRADIENT);
}

const struct fp8d_optimizer_set *fp8d_result_optimizer_set(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_SET_OPTIMIZER);
}

const struct fp8d_step_result *fp8d_result_step(const struct fp8d_result *r)
{
    return body_of(r, REQUEST_STEP);
}
