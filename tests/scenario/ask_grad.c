#include "tests/scenario/ask_grad.h"

#include <stdlib.h>
#include <string.h>

static unsigned send_later(struct ask *a, uint16_t type, const ProtobufCMessage *m)
{
    a->sent = desk_send(a->desk, a->conn, type, m, NULL, 0, NULL, 0);
    return ASK_LATER;
}

unsigned ask_backward(struct ask *a, struct ask_backward *b)
{
    Fp8d__V1__BackwardRequest m = FP8D__V1__BACKWARD_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    struct desk_frame *frame = NULL;
    bool fp8 = b->dy.dtype == FP8D__V1__DTYPE__DTYPE_F8_E4M3 ||
               b->dy.dtype == FP8D__V1__DTYPE__DTYPE_F8_E5M2;
    uint64_t n = b->dy.id ? 0 : fp8 ? 1 : b->dy.dtype == FP8D__V1__DTYPE__DTYPE_F32 ? 4 : 2;
    for (unsigned i = 0; i < b->dy.rank; i++)
        n *= b->dy.dims[i];
    ref.dtype = b->dy.dtype;
    ref.n_dims = b->dy.rank;
    ref.dims = b->dy.dims;
    ref.n_scale_inv = fp8;
    ref.scale_inv = &b->dy.factor;
    place.length = n;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    if (b->dy.id) {
        ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
        ref.tensor_id = b->dy.id;
    }
    m.context_id = b->context_id;
    m.grad_output = &ref;
    m.grad_input_dtype = b->grad_input_dtype;
    m.grad_input_id = b->grad_input_id;
    m.replace_grad_input = b->replace;
    m.no_grad_input = b->no_grad_input;
    m.time_compute = b->time_compute;
    if (a->later) {
        a->sent = desk_send(a->desk, a->conn, REQUEST_BACKWARD, &m.base, b->dy.data, n, NULL, 0);
        return ASK_LATER;
    }
    unsigned code = desk_call(a->desk, a->conn, REQUEST_BACKWARD, &m.base, b->dy.data, n, &frame,
                              a->text);
    if (code) {
        desk_frame_free(frame);
        return code;
    }
    b->reply = fp8d__v1__backward_reply__unpack(NULL, frame->meta_len, frame->meta);
    ck_assert_ptr_nonnull(b->reply);
    b->dx = frame->payload;
    b->dx_bytes = frame->payload_len;
    frame->payload = NULL;
    desk_frame_free(frame);
    return 0;
}

unsigned ask_recompute(struct ask *a, struct ask_recompute *r)
{
    Fp8d__V1__RecomputeRequest m = FP8D__V1__RECOMPUTE_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.context_id = r->context_id;
    m.output_id = r->output_id;
    m.output_dtype = r->output_dtype;
    m.replace_output = r->replace_output;
    m.time_compute = r->time_compute;
    if (a->later)
        return send_later(a, REQUEST_RECOMPUTE, &m.base);
    unsigned code =
        desk_call(a->desk, a->conn, REQUEST_RECOMPUTE, &m.base, NULL, 0, &frame, a->text);
    if (!code) {
        r->reply = fp8d__v1__recompute_reply__unpack(NULL, frame->meta_len, frame->meta);
        ck_assert_ptr_nonnull(r->reply);
        r->y = frame->payload;
        r->y_bytes = frame->payload_len;
        frame->payload = NULL;
    }
    desk_frame_free(frame);
    return code;
}

void ask_recompute_free(struct ask_recompute *r)
{
    if (r->reply)
        fp8d__v1__recompute_reply__free_unpacked(r->reply, NULL);
    free(r->y);
    r->reply = NULL;
    r->y = NULL;
}

void ask_backward_free(struct ask_backward *b)
{
    if (b->reply)
        fp8d__v1__backward_reply__free_unpacked(b->reply, NULL);
    free(b->dx);
    b->reply = NULL;
    b->dx = NULL;
}

unsigned ask_zero_grad(struct ask *a, const char *model, unsigned *layers)
{
    Fp8d__V1__ZeroGradRequest m = FP8D__V1__ZERO_GRAD_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = (char *)(uintptr_t)model;
    if (a->later)
        return send_later(a, REQUEST_ZERO_GRAD, &m.base);
    unsigned code =
        desk_call(a->desk, a->conn, REQUEST_ZERO_GRAD, &m.base, NULL, 0, &frame, a->text);
    if (!code && layers) {
        Fp8d__V1__ZeroGradReply *r =
            fp8d__v1__zero_grad_reply__unpack(NULL, frame->meta_len, frame->meta);
        *layers = r->layers;
        fp8d__v1__zero_grad_reply__free_unpacked(r, NULL);
    }
    desk_frame_free(frame);
    return code;
}

unsigned ask_gradient(struct ask *a, const char *model, const char *layer, bool bias,
                      struct ask_gradient *g)
{
    Fp8d__V1__GetGradientRequest m = FP8D__V1__GET_GRADIENT_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = (char *)(uintptr_t)model;
    m.layer = (char *)(uintptr_t)layer;
    m.part = bias ? FP8D__V1__GRADIENT_PART__GRADIENT_PART_BIAS
                  : FP8D__V1__GRADIENT_PART__GRADIENT_PART_WEIGHT;
    if (a->later)
        return send_later(a, REQUEST_GET_GRADIENT, &m.base);
    unsigned code =
        desk_call(a->desk, a->conn, REQUEST_GET_GRADIENT, &m.base, NULL, 0, &frame, a->text);
    if (!code) {
        Fp8d__V1__GetGradientReply *r =
            fp8d__v1__get_gradient_reply__unpack(NULL, frame->meta_len, frame->meta);
        ck_assert(r->gradient->dtype == FP8D__V1__DTYPE__DTYPE_F32);
        *g = (struct ask_gradient){.count = frame->payload_len / sizeof(float),
                                   .contributions = r->contributions,
                                   .nonfinite = r->nonfinite};
        g->data = malloc(frame->payload_len);
        memcpy(g->data, frame->payload, frame->payload_len);
        fp8d__v1__get_gradient_reply__free_unpacked(r, NULL);
    }
    desk_frame_free(frame);
    return code;
}

unsigned ask_optimizer(struct ask *a, const char *model, const Fp8d__V1__OptimizerOptions *o,
                       Fp8d__V1__LayerOptions **layers, size_t count)
{
    Fp8d__V1__SetOptimizerRequest m = FP8D__V1__SET_OPTIMIZER_REQUEST__INIT;
    m.model = (char *)(uintptr_t)model;
    m.options = (Fp8d__V1__OptimizerOptions *)(uintptr_t)o;
    m.layers = layers;
    m.n_layers = count;
    return desk_call(a->desk, a->conn, REQUEST_SET_OPTIMIZER, &m.base, NULL, 0, NULL, a->text);
}

unsigned ask_step(struct ask *a, const char *model, struct ask_step *s)
{
    Fp8d__V1__StepRequest m = FP8D__V1__STEP_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = (char *)(uintptr_t)model;
    m.step = s->step;
    m.loss_scale = s->loss_scale;
    m.max_norm = s->max_norm;
    m.time_compute = s->time_compute;
    if (a->later)
        return send_later(a, REQUEST_STEP, &m.base);
    unsigned code = desk_call(a->desk, a->conn, REQUEST_STEP, &m.base, NULL, 0, &frame, a->text);
    if (!code)
        s->reply = fp8d__v1__step_reply__unpack(NULL, frame->meta_len, frame->meta);
    desk_frame_free(frame);
    return code;
}

void ask_step_free(struct ask_step *s)
{
    if (s->reply)
        fp8d__v1__step_reply__free_unpacked(s->reply, NULL);
    s->reply = NULL;
}
