/* Requests about the session, the server, its models and their state. */
#include "client/call.h"

int fp8d_submit_ping(struct fp8d *c, const struct fp8d_call *call, uint64_t *id,
                     struct fp8d_error *err)
{
    Fp8d__V1__PingRequest m = FP8D__V1__PING_REQUEST__INIT;
    struct request r = {.type = REQUEST_PING, .msg = &m.base};
    return call_submit(c, &r, call, id, err);
}

int fp8d_ping(struct fp8d *c, const struct fp8d_call *call, struct fp8d_result **out,
              struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_ping(c, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_cancel(struct fp8d *c, uint64_t target, const struct fp8d_call *call, uint64_t *id,
                       struct fp8d_error *err)
{
    Fp8d__V1__CancelRequest m = FP8D__V1__CANCEL_REQUEST__INIT;
    struct request r = {.type = REQUEST_CANCEL, .msg = &m.base};
    m.id = target;
    return call_submit(c, &r, call, id, err);
}

int fp8d_cancel(struct fp8d *c, uint64_t target, const struct fp8d_call *call,
                struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_cancel(c, target, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_get_status(struct fp8d *c, const struct fp8d_call *call, uint64_t *id,
                           struct fp8d_error *err)
{
    Fp8d__V1__StatusRequest m = FP8D__V1__STATUS_REQUEST__INIT;
    struct request r = {.type = REQUEST_STATUS, .msg = &m.base};
    return call_submit(c, &r, call, id, err);
}

int fp8d_get_status(struct fp8d *c, const struct fp8d_call *call, struct fp8d_result **out,
                    struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_get_status(c, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_list_models(struct fp8d *c, const struct fp8d_call *call, uint64_t *id,
                            struct fp8d_error *err)
{
    Fp8d__V1__ListModelsRequest m = FP8D__V1__LIST_MODELS_REQUEST__INIT;
    struct request r = {.type = REQUEST_LIST_MODELS, .msg = &m.base};
    return call_submit(c, &r, call, id, err);
}

int fp8d_list_models(struct fp8d *c, const struct fp8d_call *call, struct fp8d_result **out,
                     struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_list_models(c, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_describe_model(struct fp8d *c, const char *model, const struct fp8d_call *call,
                               uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__DescribeModelRequest m = FP8D__V1__DESCRIBE_MODEL_REQUEST__INIT;
    struct request r = {.type = REQUEST_DESCRIBE_MODEL, .msg = &m.base};
    m.model = call_text(model);
    return call_submit(c, &r, call, id, err);
}

int fp8d_describe_model(struct fp8d *c, const char *model, const struct fp8d_call *call,
                        struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_describe_model(c, model, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_query_scaling(struct fp8d *c, const char *model, const char *layer, bool history,
                              const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__QueryScalingRequest m = FP8D__V1__QUERY_SCALING_REQUEST__INIT;
    struct request r = {.type = REQUEST_QUERY_SCALING, .msg = &m.base};
    m.model = call_text(model);
    m.layer = call_text(layer);
    m.history = history;
    return call_submit(c, &r, call, id, err);
}

int fp8d_query_scaling(struct fp8d *c, const char *model, const char *layer, bool history,
                       const struct fp8d_call *call, struct fp8d_result **out,
                       struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_query_scaling(c, model, layer, history, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
