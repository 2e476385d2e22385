/* Forward, CheckNumerics, DropContext. */
#include "daemon/engine/check.h"
#include "daemon/engine/context.h"
#include "daemon/engine/forward.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"
#include "daemon/rpc/tensors.h"

#include <math.h>

static void on_forward(void *arg, const struct fault *f, const struct forward_result *r)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    const Fp8d__V1__ForwardRequest *in =
        (const Fp8d__V1__ForwardRequest *)(const void *)rq->message;
    Fp8d__V1__ForwardReply m = FP8D__V1__FORWARD_REPLY__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    Fp8d__V1__CastInfo input = FP8D__V1__CAST_INFO__INIT;
    Fp8d__V1__CastInfo weight = FP8D__V1__CAST_INFO__INIT;
    float factor;
    tensors_describe(&r->output, &ref, in->output_id ? NULL : &place, in->output_id, &factor);
    m.output = &ref;
    if (r->input_cast) {
        reply_cast(&r->input, r->input_fmt, r->uncalibrated_input, &input);
        m.input = &input;
    }
    if (r->weight_cast) {
        reply_cast(&r->weight, r->weight_fmt, r->uncalibrated_weight, &weight);
        m.weight = &weight;
    }
    m.weight_copy = (Fp8d__V1__WeightCopy)r->copy;
    m.scales_applied = r->applied;
    m.compute_ns = r->compute_ns;
    request_stamp(rq, r->incarnation, r->weight_version);
    if (in->output_id)
        request_answer(rq, &m.base, NULL, 0);
    else
        request_answer(rq, &m.base, r->output.high.buf, place.length);
}

static enum forward_mode mode_of(Fp8d__V1__Mode m)
{
    switch (m) {
    case FP8D__V1__MODE__MODE_TRAIN:
        return MODE_TRAIN;
    case FP8D__V1__MODE__MODE_CALIBRATE:
        return MODE_CALIBRATE;
    default:
        return MODE_EVAL;
    }
}

void rpc_forward(struct request *rq)
{
    const Fp8d__V1__ForwardRequest *in =
        (const Fp8d__V1__ForwardRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct inline_cover cover = {0};
    struct operand input = {0};
    struct forward_args a = {
        .lease = &rq->session->lease,
        .mode = mode_of(in->mode),
        .first = (enum first_microbatch)in->first_microbatch,
        .output_dtype = tensors_dtype(in->output_dtype),
        .output_id = in->output_id,
        .replace_output = in->replace_output,
        .context_id = in->context_id,
        .time_compute = in->time_compute,
        .inline_max = rq->rpc->o.caps.payload,
    };
    int rc = reply_find_layer(rq, in->model, in->layer, &a.model, &a.layer, &f);
    if (!rc)
        rc = reply_expect(in->expect, a.model, &f);
    if (!rc)
        rc = tensors_operand(rq, in->input, "input", &cover, &input, &f);
    if (!rc)
        rc = tensors_covered(rq, &cover, &f);
    a.input = &input;
    if (!rc)
        rc = forward_start(&a, on_forward, rq, &f);
    operand_fini(&input);
    if (rc)
        request_fail(rq, &f);
}

static void on_check(void *arg, const struct fault *f, const struct check_result *r)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    Fp8d__V1__CheckNumericsReply m = FP8D__V1__CHECK_NUMERICS_REPLY__INIT;
    Fp8d__V1__CastInfo input = FP8D__V1__CAST_INFO__INIT;
    Fp8d__V1__CastInfo weight = FP8D__V1__CAST_INFO__INIT;
    reply_cast(&r->input, r->input_fmt, r->uncalibrated && r->input.from_tensor, &input);
    reply_cast(&r->weight, r->weight_fmt, r->uncalibrated && r->weight.from_tensor, &weight);
    m.input = &input;
    m.weight = &weight;
    m.max_abs_error = r->compare.max_diff;
    m.max_abs_reference = r->compare.max_ref;
    m.relative_error =
        r->compare.sum_ref2 > 0 ? sqrt(r->compare.sum_diff2 / r->compare.sum_ref2)
                                : sqrt(r->compare.sum_diff2);
    m.input_elements = r->input_elements;
    m.weight_elements = r->weight_elements;
    m.nonfinite_outputs = r->compare.nonfinite;
    request_stamp(rq, r->incarnation, r->weight_version);
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_check_numerics(struct request *rq)
{
    const Fp8d__V1__CheckNumericsRequest *in =
        (const Fp8d__V1__CheckNumericsRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct inline_cover cover = {0};
    struct operand input = {0};
    struct model *m;
    struct layer *l;
    int rc = reply_find_layer(rq, in->model, in->layer, &m, &l, &f);
    if (!rc)
        rc = tensors_operand(rq, in->input, "input", &cover, &input, &f);
    if (!rc)
        rc = tensors_covered(rq, &cover, &f);
    if (!rc)
        rc = check_start(&rq->session->lease, m, l, &input, on_check, rq, &f);
    operand_fini(&input);
    if (rc)
        request_fail(rq, &f);
}

void rpc_drop_context(struct request *rq)
{
    const Fp8d__V1__DropContextRequest *in =
        (const Fp8d__V1__DropContextRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct context *c;
    if (context_find(&rq->session->lease, in->context_id, &c, &f)) {
        request_fail(rq, &f);
        return;
    }
    context_end(c);
    Fp8d__V1__DropContextReply m = FP8D__V1__DROP_CONTEXT_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}
