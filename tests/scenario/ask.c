#include "tests/scenario/ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ask ask_open(struct desk *d, uint64_t conn)
{
    desk_open(d, conn);
    return (struct ask){.desk = d, .conn = conn};
}

void ask_close(struct ask *a)
{
    desk_close(a->desk, a->conn);
}

/* --- tensors on the wire --- */

static unsigned element(Fp8d__V1__DType t)
{
    if (t == FP8D__V1__DTYPE__DTYPE_F32)
        return 4;
    return t == FP8D__V1__DTYPE__DTYPE_BF16 || t == FP8D__V1__DTYPE__DTYPE_F16 ? 2 : 1;
}

struct ask_tensor ask_f32(const float *data, uint64_t rows, uint64_t cols)
{
    return (struct ask_tensor){
        .dtype = FP8D__V1__DTYPE__DTYPE_F32, .rank = 2, .dims = {rows, cols}, .data = data};
}

static uint64_t tensor_bytes(const struct ask_tensor *t)
{
    uint64_t n = element(t->dtype);
    for (unsigned i = 0; i < t->rank; i++)
        n *= t->dims[i];
    return t->id ? 0 : n;
}

/* A reference to t, whose bytes lie at `offset` of the payload. */
struct wire_tensor {
    Fp8d__V1__TensorRef ref;
    Fp8d__V1__InlinePlace place;
    struct ask_tensor t;
};

static Fp8d__V1__TensorRef *refer(struct wire_tensor *w, const struct ask_tensor *t,
                                  uint64_t offset)
{
    fp8d__v1__tensor_ref__init(&w->ref);
    fp8d__v1__inline_place__init(&w->place);
    w->t = *t;
    w->ref.dtype = t->dtype;
    w->ref.n_dims = t->rank;
    w->ref.dims = w->t.dims;
    if (t->id) {
        w->ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
        w->ref.tensor_id = t->id;
        return &w->ref;
    }
    w->place.offset = offset;
    w->place.length = tensor_bytes(t);
    w->ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    w->ref.inline_bytes = &w->place;
    if (element(t->dtype) == 1) {
        w->ref.n_scale_inv = 1;
        w->ref.scale_inv = &w->t.factor;
    }
    return &w->ref;
}

static Fp8d__V1__Expect *expecting(Fp8d__V1__Expect *x, const uint64_t expect[2])
{
    fp8d__v1__expect__init(x);
    if (!expect)
        return NULL;
    x->incarnation = expect[0];
    x->weight_version = expect[1];
    return x;
}

static char *str(const char *s)
{
    return (char *)(uintptr_t)s;
}

static unsigned call(struct ask *a, uint16_t type, const ProtobufCMessage *m, const void *payload,
                     uint64_t bytes, struct desk_frame **frame)
{
    struct desk_frame *f = NULL;
    if (frame)
        *frame = NULL;
    if (a->later) {
        a->sent = desk_send(a->desk, a->conn, type, m, payload, bytes, NULL, 0);
        return ASK_LATER;
    }
    unsigned code = desk_call(a->desk, a->conn, type, m, payload, bytes, &f, a->text);
    if (frame)
        *frame = f;
    else
        desk_frame_free(f);
    return code;
}

unsigned ask_take(struct ask *a, uint64_t id)
{
    struct desk_frame *f = desk_take(a->desk, a->conn, id);
    ck_assert_ptr_nonnull(f);
    Fp8d__V1__ErrorReply *r = desk_head(f);
    unsigned code = r->head->code;
    (void)snprintf(a->text, sizeof a->text, "%s", r->head->message);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
    return code;
}

/* --- compute --- */

unsigned ask_forward(struct ask *a, struct ask_forward *f)
{
    Fp8d__V1__ForwardRequest m = FP8D__V1__FORWARD_REQUEST__INIT;
    struct wire_tensor x;
    struct desk_frame *frame;
    m.model = str(f->model);
    m.layer = str(f->layer);
    m.mode = f->mode;
    m.first_microbatch = f->first;
    m.input = refer(&x, &f->x, 0);
    m.output_dtype = f->output_dtype;
    m.output_id = f->output_id;
    m.replace_output = f->replace_output;
    m.context_id = f->context_id;
    m.time_compute = f->time_compute;
    unsigned code = call(a, REQUEST_FORWARD, &m.base, f->x.data, tensor_bytes(&f->x), &frame);
    if (code)
        return code;
    f->reply = fp8d__v1__forward_reply__unpack(NULL, frame->meta_len, frame->meta);
    ck_assert_ptr_nonnull(f->reply);
    f->y = frame->payload;
    f->y_bytes = frame->payload_len;
    frame->payload = NULL;
    desk_frame_free(frame);
    return 0;
}

void ask_forward_free(struct ask_forward *f)
{
    if (f->reply)
        fp8d__v1__forward_reply__free_unpacked(f->reply, NULL);
    free(f->y);
    f->reply = NULL;
    f->y = NULL;
}

unsigned ask_check(struct ask *a, const char *model, const char *layer, const struct ask_tensor *x,
                   Fp8d__V1__CheckNumericsReply **reply)
{
    Fp8d__V1__CheckNumericsRequest m = FP8D__V1__CHECK_NUMERICS_REQUEST__INIT;
    struct wire_tensor w;
    struct desk_frame *frame;
    m.model = str(model);
    m.layer = str(layer);
    m.input = refer(&w, x, 0);
    unsigned code = call(a, REQUEST_CHECK_NUMERICS, &m.base, x->data, tensor_bytes(x), &frame);
    if (!code && reply)
        *reply = fp8d__v1__check_numerics_reply__unpack(NULL, frame->meta_len, frame->meta);
    desk_frame_free(frame);
    return code;
}

/* --- weights, tensors --- */

static uint64_t version_of(const struct desk_frame *frame)
{
    Fp8d__V1__ErrorReply *head = desk_head(frame);
    uint64_t v = head->head->weight_version;
    fp8d__v1__error_reply__free_unpacked(head, NULL);
    return v;
}

unsigned ask_edit(struct ask *a, const char *model, const char *layer, const struct ask_tensor *w,
                  const struct ask_tensor *bias, const uint64_t expect[2], uint64_t *version)
{
    Fp8d__V1__EditWeightRequest m = FP8D__V1__EDIT_WEIGHT_REQUEST__INIT;
    Fp8d__V1__Expect x;
    struct wire_tensor ww, wb;
    uint64_t bytes = tensor_bytes(w), more = bias ? tensor_bytes(bias) : 0;
    unsigned char *payload = malloc(bytes + more + 1);
    struct desk_frame *frame;
    ck_assert_ptr_nonnull(payload);
    if (bytes)
        memcpy(payload, w->data, bytes);
    if (more)
        memcpy(payload + bytes, bias->data, more);
    m.model = str(model);
    m.layer = str(layer);
    m.weight = refer(&ww, w, 0);
    m.bias = bias ? refer(&wb, bias, bytes) : NULL;
    m.expect = expecting(&x, expect);
    unsigned code = call(a, REQUEST_EDIT_WEIGHT, &m.base, payload, bytes + more, &frame);
    if (!code && version)
        *version = version_of(frame);
    desk_frame_free(frame);
    free(payload);
    return code;
}

unsigned ask_put(struct ask *a, uint64_t id, const struct ask_tensor *t)
{
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    struct wire_tensor w;
    m.tensor_id = id;
    m.tensor = refer(&w, t, 0);
    return call(a, REQUEST_PUT_TENSOR, &m.base, t->data, tensor_bytes(t), NULL);
}

unsigned ask_get(struct ask *a, uint64_t id, struct desk_frame **frame,
                 Fp8d__V1__GetTensorReply **reply)
{
    Fp8d__V1__GetTensorRequest m = FP8D__V1__GET_TENSOR_REQUEST__INIT;
    m.tensor_id = id;
    unsigned code = call(a, REQUEST_GET_TENSOR, &m.base, NULL, 0, frame);
    if (!code && reply)
        *reply =
            fp8d__v1__get_tensor_reply__unpack(NULL, (*frame)->meta_len, (*frame)->meta);
    return code;
}

unsigned ask_free(struct ask *a, uint64_t id)
{
    Fp8d__V1__FreeTensorRequest m = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    m.tensor_id = id;
    return call(a, REQUEST_FREE_TENSOR, &m.base, NULL, 0, NULL);
}

/* --- scopes, calibration, contexts, models --- */

unsigned ask_scope_begin(struct ask *a, uint64_t id, const char *model)
{
    Fp8d__V1__BeginScopeRequest m = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    m.scope_id = id;
    m.model = str(model);
    return call(a, REQUEST_BEGIN_SCOPE, &m.base, NULL, 0, NULL);
}

unsigned ask_scope_end(struct ask *a, uint64_t id, bool discard, unsigned counts[2])
{
    Fp8d__V1__EndScopeRequest m = FP8D__V1__END_SCOPE_REQUEST__INIT;
    struct desk_frame *frame;
    m.scope_id = id;
    m.discard = discard;
    unsigned code = call(a, REQUEST_END_SCOPE, &m.base, NULL, 0, &frame);
    if (!code && counts) {
        Fp8d__V1__EndScopeReply *r =
            fp8d__v1__end_scope_reply__unpack(NULL, frame->meta_len, frame->meta);
        counts[0] = r->sites_updated;
        counts[1] = r->sites_skipped;
        fp8d__v1__end_scope_reply__free_unpacked(r, NULL);
    }
    desk_frame_free(frame);
    return code;
}

static unsigned end_calibration(struct ask *a, const char *model, Fp8d__V1__CalibrationAction how,
                                unsigned counts[2])
{
    Fp8d__V1__FinishCalibrationRequest m = FP8D__V1__FINISH_CALIBRATION_REQUEST__INIT;
    struct desk_frame *frame;
    m.model = str(model);
    m.action = how;
    unsigned code = call(a, REQUEST_FINISH_CALIBRATION, &m.base, NULL, 0, &frame);
    if (!code && counts) {
        Fp8d__V1__FinishCalibrationReply *r =
            fp8d__v1__finish_calibration_reply__unpack(NULL, frame->meta_len, frame->meta);
        counts[0] = r->sites_set;
        counts[1] = r->sites_unset;
        fp8d__v1__finish_calibration_reply__free_unpacked(r, NULL);
    }
    desk_frame_free(frame);
    return code;
}

unsigned ask_finish(struct ask *a, const char *model, unsigned counts[2])
{
    return end_calibration(a, model, FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_FINISH,
                           counts);
}

unsigned ask_abort(struct ask *a, const char *model, unsigned counts[2])
{
    return end_calibration(a, model, FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_ABORT,
                           counts);
}

unsigned ask_drop_context(struct ask *a, uint64_t id)
{
    Fp8d__V1__DropContextRequest m = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    m.context_id = id;
    return call(a, REQUEST_DROP_CONTEXT, &m.base, NULL, 0, NULL);
}

unsigned ask_drop_model(struct ask *a, const char *model, const uint64_t expect[2])
{
    Fp8d__V1__DropModelRequest m = FP8D__V1__DROP_MODEL_REQUEST__INIT;
    Fp8d__V1__Expect x;
    m.model = str(model);
    m.expect = expecting(&x, expect);
    return call(a, REQUEST_DROP_MODEL, &m.base, NULL, 0, NULL);
}

Fp8d__V1__StatusReply *ask_status(struct ask *a)
{
    Fp8d__V1__StatusRequest m = FP8D__V1__STATUS_REQUEST__INIT;
    struct desk_frame *frame;
    ck_assert_uint_eq(call(a, REQUEST_STATUS, &m.base, NULL, 0, &frame), 0);
    Fp8d__V1__StatusReply *r =
        fp8d__v1__status_reply__unpack(NULL, frame->meta_len, frame->meta);
    desk_frame_free(frame);
    return r;
}
