/* Backward, Recompute, ZeroGrad, GetGradient. */
#include "daemon/engine/backward.h"
#include "daemon/engine/recompute.h"
#include "daemon/engine/scope.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"
#include "daemon/rpc/tensors.h"

#include <errno.h>

/* --- Backward --- */

static void on_backward(void *arg, const struct fault *f, const struct backward_result *r)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    const Fp8d__V1__BackwardRequest *in =
        (const Fp8d__V1__BackwardRequest *)(const void *)rq->message;
    Fp8d__V1__BackwardReply m = FP8D__V1__BACKWARD_REPLY__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    Fp8d__V1__CastInfo cast = FP8D__V1__CAST_INFO__INIT;
    float factor;
    bool sends = r->has_grad_input && !in->grad_input_id;
    if (r->has_grad_input) {
        tensors_describe(&r->grad_input, &ref, sends ? &place : NULL, in->grad_input_id, &factor);
        m.grad_input = &ref;
    }
    if (r->cast) {
        reply_cast(&r->grad_output, r->fmt, false, &cast);
        m.grad_output = &cast;
    }
    m.dropped = r->dropped;
    m.accumulated = r->accumulated;
    m.scales_applied = r->applied;
    m.compute_ns = r->compute_ns;
    request_stamp(rq, r->incarnation, r->weight_version);
    request_answer(rq, &m.base, sends ? r->grad_input.high.buf : NULL, sends ? place.length : 0);
}

void rpc_backward(struct request *rq)
{
    const Fp8d__V1__BackwardRequest *in =
        (const Fp8d__V1__BackwardRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct inline_cover cover = {0};
    struct operand grad_output = {0};
    struct backward_args a = {
        .lease = &rq->session->lease,
        .grad_output = &grad_output,
        .grad_input_dtype = tensors_dtype(in->grad_input_dtype),
        .grad_input_id = in->grad_input_id,
        .replace_grad_input = in->replace_grad_input,
        .no_grad_input = in->no_grad_input,
        .inline_max = rq->rpc->o.caps.payload,
        .time_compute = in->time_compute,
    };
    int rc = context_find(a.lease, in->context_id, &a.context, &f);
    if (!rc)
        rc = tensors_operand(rq, in->grad_output, "grad_output", &cover, &grad_output, &f);
    if (!rc)
        rc = tensors_covered(rq, &cover, &f);
    if (!rc)
        rc = backward_start(&a, on_backward, rq, &f);
    operand_fini(&grad_output);
    if (rc)
        request_fail(rq, &f);
}

/* --- Recompute --- */

static void on_recompute(void *arg, const struct fault *f, const struct recompute_result *r)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    const Fp8d__V1__RecomputeRequest *in =
        (const Fp8d__V1__RecomputeRequest *)(const void *)rq->message;
    Fp8d__V1__RecomputeReply m = FP8D__V1__RECOMPUTE_REPLY__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    float factor;
    bool sends = !in->output_id;
    tensors_describe(&r->output, &ref, sends ? &place : NULL, in->output_id, &factor);
    m.output = &ref;
    m.compute_ns = r->compute_ns;
    request_stamp(rq, r->incarnation, r->weight_version);
    request_answer(rq, &m.base, sends ? r->output.high.buf : NULL, sends ? place.length : 0);
}

void rpc_recompute(struct request *rq)
{
    const Fp8d__V1__RecomputeRequest *in =
        (const Fp8d__V1__RecomputeRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct recompute_args a = {
        .lease = &rq->session->lease,
        .output_dtype = tensors_dtype(in->output_dtype),
        .output_id = in->output_id,
        .replace_output = in->replace_output,
        .inline_max = rq->rpc->o.caps.payload,
        .time_compute = in->time_compute,
    };
    int rc = context_find(a.lease, in->context_id, &a.context, &f);
    if (!rc)
        rc = recompute_start(&a, on_recompute, rq, &f);
    if (rc)
        request_fail(rq, &f);
}

/* --- ZeroGrad --- */

void rpc_zero_grad(struct request *rq)
{
    const Fp8d__V1__ZeroGradRequest *in =
        (const Fp8d__V1__ZeroGradRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *m;
    int rc = reply_find_model(rq, in->model, &m, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (!rc)
        rc = scope_check_train(m, &rq->session->lease, &f);
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    Fp8d__V1__ZeroGradReply out = FP8D__V1__ZERO_GRAD_REPLY__INIT;
    for (size_t i = 0; i < m->layer_count; i++) {
        out.layers += m->layers[i].gradient.held;
        gradient_forget(&m->layers[i].gradient);
    }
    request_answer(rq, &out.base, NULL, 0);
}

/* --- GetGradient --- */

struct fetch {
    struct op op;
    struct request *rq;
    struct operand value; /* in host memory */
    struct buffer *from;  /* own reference */
    uint64_t contributions, nonfinite;
};

static void fetch_finish(struct op *op)
{
    struct fetch *g = (struct fetch *)op;
    if (op->fault.code) {
        request_fail(g->rq, &op->fault);
    } else {
        Fp8d__V1__GetGradientReply m = FP8D__V1__GET_GRADIENT_REPLY__INIT;
        Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
        Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
        float factor;
        tensors_describe(&g->value, &ref, &place, 0, &factor);
        m.gradient = &ref;
        m.contributions = g->contributions;
        m.nonfinite = g->nonfinite;
        request_answer(g->rq, &m.base, g->value.high.buf, place.length);
    }
    operand_fini(&g->value);
    buffer_unref(g->from);
    mem_free(g);
}

/* The part of a layer's gradient, as the client sees it. */
static int find_part(const struct layer *l, bool bias, struct operand *out,
                     const struct tensor **from, struct fault *f)
{
    const struct gradient *g = &l->gradient;
    if (!g->held)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "layer %s holds no gradient: no backward since the last step or ZeroGrad",
                         l->name);
    if (bias && !g->bias.buf)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "part is BIAS, but layer %s %s, needed WEIGHT", l->name,
                         l->weight.bias.buf ? "was given its bias after its last backward"
                                            : "has no bias");
    *from = bias ? &g->bias : &g->weight;
    *out = (struct operand){.rank = bias ? 1 : 2, .high = **from};
    out->dims[0] = l->out;
    if (!bias)
        out->dims[1] = l->in;
    out->high.buf = NULL;
    return 0;
}

static int fetch_start(struct request *rq, const struct layer *l, bool bias, struct fault *f)
{
    struct engine *e = rq->rpc->o.engine;
    struct fetch *g = mem_zalloc(sizeof *g);
    const struct tensor *from = NULL;
    if (!g)
        return fault_set(f, -ENOMEM, "out of memory for the request");
    int rc = find_part(l, bias, &g->value, &from, f);
    uint64_t bytes = operand_bytes(&g->value);
    if (!rc && bytes > rq->rpc->o.caps.payload)
        rc = fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                       "the gradient has %llu bytes, a payload at most %llu",
                       (unsigned long long)bytes, (unsigned long long)rq->rpc->o.caps.payload);
    if (!rc)
        rc = engine_host_buffer(e, bytes, "the gradient", &g->value.high.buf, f);
    if (rc) {
        mem_free(g);
        return rc;
    }
    op_init(&g->op, e->o.exec, fetch_finish);
    g->rq = rq;
    g->from = buffer_ref(from->buf);
    g->contributions = l->gradient.contributions;
    g->nonfinite = l->gradient.nonfinite;
    (void)backend_copy(e->queue, g->value.high.buf, 0, g->from, 0, bytes, &g->op.fault);
    op_submit(&g->op, e->queue);
    return 0;
}

void rpc_get_gradient(struct request *rq)
{
    const Fp8d__V1__GetGradientRequest *in =
        (const Fp8d__V1__GetGradientRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *m;
    struct layer *l;
    int rc = reply_find_layer(rq, in->model, in->layer, &m, &l, &f);
    if (!rc)
        rc = fetch_start(rq, l, in->part == FP8D__V1__GRADIENT_PART__GRADIENT_PART_BIAS, &f);
    if (rc)
        request_fail(rq, &f);
}
