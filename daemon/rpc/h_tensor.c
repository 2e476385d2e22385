/* PutTensor, GetTensor, FreeTensor, EditWeight. */
#include "daemon/engine/edit.h"
#include "daemon/engine/upload.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"
#include "daemon/rpc/tensors.h"

#include <errno.h>
#include <string.h>

static void on_put(void *arg, const struct fault *f)
{
    struct request *rq = arg;
    Fp8d__V1__PutTensorReply m = FP8D__V1__PUT_TENSOR_REPLY__INIT;
    if (f->code)
        request_fail(rq, f);
    else
        request_answer(rq, &m.base, NULL, 0);
}

void rpc_put_tensor(struct request *rq)
{
    const Fp8d__V1__PutTensorRequest *in =
        (const Fp8d__V1__PutTensorRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct inline_cover cover = {0};
    struct operand value = {0};
    int rc = 0;
    if (in->tensor && in->tensor->place_case != FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES)
        rc = fault_set(&f, FP8D_EINVALID_ARGUMENT, "tensor has no inline_bytes, needed for PutTensor");
    if (!rc)
        rc = tensors_operand(rq, in->tensor, "tensor", &cover, &value, &f);
    if (!rc)
        rc = tensors_covered(rq, &cover, &f);
    if (rc)
        operand_fini(&value);
    else
        rc = upload_start(&rq->session->lease, in->tensor_id, value, on_put, rq, &f);
    if (rc)
        request_fail(rq, &f);
}

/* --- get --- */

/* What is not in host memory is fetched by the queue. An FP8 tensor leaves through its export: bytes
 * and factor together. */
struct fetch {
    struct op op;
    struct request *rq;
    struct operand value;
    struct buffer *out;
    float scale_inv;
};

static void copy_out(void *arg, const struct qtensor_view *view)
{
    struct fetch *g = arg;
    memcpy(g->out->host, view->codes, view->info.rows * view->info.cols);
    g->scale_inv = view->scale_inv[0];
}

static void answer_tensor(struct request *rq, const struct operand *value, struct buffer *payload)
{
    Fp8d__V1__GetTensorReply m = FP8D__V1__GET_TENSOR_REPLY__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    float factor;
    tensors_describe(value, &ref, &place, 0, &factor);
    m.tensor = &ref;
    request_answer(rq, &m.base, payload, place.length);
}

static void fetch_finish(struct op *op)
{
    struct fetch *g = (struct fetch *)op;
    if (g->value.q)
        g->value.scale_inv = g->scale_inv;
    if (op->fault.code)
        request_fail(g->rq, &op->fault);
    else
        answer_tensor(g->rq, &g->value, g->out);
    operand_fini(&g->value);
    buffer_unref(g->out);
    mem_free(g);
}

static int enqueue_fetch(struct fetch *g, struct engine *e, struct fault *f)
{
    const struct tensor *t = &g->value.high;
    if (g->value.q)
        return qtensor_export(e->queue, g->value.q, copy_out, g, f);
    return backend_copy(e->queue, g->out, 0, t->buf, t->offset, operand_bytes(&g->value), f);
}

static int fetch_start(struct request *rq, const struct resident *r, struct fault *f)
{
    struct engine *e = rq->rpc->o.engine;
    struct fetch *g = mem_zalloc(sizeof *g);
    if (!g)
        return fault_set(f, -ENOMEM, "out of memory for the request");
    int rc = engine_host_buffer(e, operand_bytes(&r->value), "the tensor", &g->out, f);
    if (rc) {
        mem_free(g);
        return rc;
    }
    op_init(&g->op, e->o.exec, fetch_finish);
    g->rq = rq;
    g->value = operand_ref(&r->value);
    (void)enqueue_fetch(g, e, &g->op.fault);
    op_submit(&g->op, e->queue);
    return 0;
}

/* A payload starts at the buffer's start: a tensor that lies further in is copied first. */
static int get_high(struct request *rq, const struct resident *r, struct fault *f)
{
    const struct operand *v = &r->value;
    if (v->high.offset == 0) {
        answer_tensor(rq, v, v->high.buf);
        return 0;
    }
    struct buffer *copy;
    uint64_t bytes = operand_bytes(v);
    int rc = engine_host_buffer(rq->rpc->o.engine, bytes, "the tensor", &copy, f);
    if (rc)
        return rc;
    memcpy(copy->host, (char *)v->high.buf->host + v->high.offset, bytes);
    answer_tensor(rq, v, copy);
    buffer_unref(copy);
    return 0;
}

void rpc_get_tensor(struct request *rq)
{
    const Fp8d__V1__GetTensorRequest *in =
        (const Fp8d__V1__GetTensorRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct resident *r;
    int rc = resident_find(&rq->session->lease, in->tensor_id, "tensor_id", &r, &f);
    if (!rc && operand_bytes(&r->value) > rq->rpc->o.caps.payload)
        rc = fault_set(&f, FP8D_ERESOURCE_EXHAUSTED,
                       "tensor %llu has %llu bytes, a payload at most %llu",
                       (unsigned long long)in->tensor_id,
                       (unsigned long long)operand_bytes(&r->value),
                       (unsigned long long)rq->rpc->o.caps.payload);
    if (!rc)
        rc = r->value.q || !r->value.high.buf->host ? fetch_start(rq, r, &f)
                                                    : get_high(rq, r, &f);
    if (rc)
        request_fail(rq, &f);
}

void rpc_free_tensor(struct request *rq)
{
    const Fp8d__V1__FreeTensorRequest *in =
        (const Fp8d__V1__FreeTensorRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct resident *r;
    if (resident_find(&rq->session->lease, in->tensor_id, "tensor_id", &r, &f)) {
        request_fail(rq, &f);
        return;
    }
    resident_end(r);
    Fp8d__V1__FreeTensorReply m = FP8D__V1__FREE_TENSOR_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}

static void on_edited(void *arg, const struct fault *f)
{
    struct request *rq = arg;
    const Fp8d__V1__EditWeightRequest *in =
        (const Fp8d__V1__EditWeightRequest *)(const void *)rq->message;
    struct model *m;
    struct fault none;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    /* The version it has now; a model that was unloaded meanwhile has none to tell. */
    (void)reply_find_model(rq, in->model, &m, &none);
    Fp8d__V1__EditWeightReply out = FP8D__V1__EDIT_WEIGHT_REPLY__INIT;
    request_answer(rq, &out.base, NULL, 0);
}

void rpc_edit_weight(struct request *rq)
{
    const Fp8d__V1__EditWeightRequest *in =
        (const Fp8d__V1__EditWeightRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct inline_cover cover = {0};
    struct operand weight = {0};
    struct operand bias = {0};
    struct model *m;
    struct layer *l;
    int rc = reply_find_layer(rq, in->model, in->layer, &m, &l, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (!rc)
        rc = tensors_operand(rq, in->weight, "weight", &cover, &weight, &f);
    if (!rc && in->bias)
        rc = tensors_operand(rq, in->bias, "bias", &cover, &bias, &f);
    if (!rc)
        rc = tensors_covered(rq, &cover, &f);
    if (!rc)
        rc = edit_start(m, l, &weight, in->bias ? &bias : NULL, on_edited, rq, &f);
    operand_fini(&weight);
    operand_fini(&bias);
    if (rc)
        request_fail(rq, &f);
}
