/* Requests about resident tensors. */
#include "client/call.h"

int fp8d_submit_put_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_tensor *tensor,
                           const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    struct request r = {.type = REQUEST_PUT_TENSOR, .msg = &m.base};
    struct call_tensor t;
    int rc = call_tensor_fill(&t, tensor, &r, 0, err);
    if (rc)
        return rc;
    m.tensor_id = tensor_id;
    m.tensor = &t.ref;
    return call_submit(c, &r, call, id, err);
}

int fp8d_put_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_tensor *tensor,
                    const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_put_tensor(c, tensor_id, tensor, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_get_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_buffer *buffer,
                           const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__GetTensorRequest m = FP8D__V1__GET_TENSOR_REQUEST__INIT;
    struct request r = {.type = REQUEST_GET_TENSOR, .msg = &m.base};
    m.tensor_id = tensor_id;
    if (buffer)
        r.buffer = *buffer;
    return call_submit(c, &r, call, id, err);
}

int fp8d_get_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_buffer *buffer,
                    const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_get_tensor(c, tensor_id, buffer, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_free_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_call *call,
                            uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__FreeTensorRequest m = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    struct request r = {.type = REQUEST_FREE_TENSOR, .msg = &m.base};
    m.tensor_id = tensor_id;
    return call_submit(c, &r, call, id, err);
}

int fp8d_free_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_call *call,
                     struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_free_tensor(c, tensor_id, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
