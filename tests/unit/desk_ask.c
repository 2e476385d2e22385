/* Whole requests over the desk: a file put together and loaded, a forward, the scaling state. */
#include "tests/unit/desk.h"

#include "ckpt/safetensors.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int write_file(const struct desk_layer *layers, size_t n)
{
    struct fault f = {0};
    struct safetensors_tensor t[64];
    char names[64][256];
    const float *data[64];
    struct safetensors_plan plan;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(names[k], sizeof names[k], "%s.weight", layers[i].name);
        t[k] = (struct safetensors_tensor){names[k], DTYPE_F32, 2, {layers[i].out, layers[i].in}, 0,
                                           layers[i].out * layers[i].in * 4};
        data[k++] = layers[i].weight;
        if (!layers[i].bias)
            continue;
        (void)snprintf(names[k], sizeof names[k], "%s.bias", layers[i].name);
        t[k] = (struct safetensors_tensor){names[k], DTYPE_F32, 1, {layers[i].out}, 0,
                                           layers[i].out * 4};
        data[k++] = layers[i].bias;
    }
    int rc = safetensors_plan(t, k, NULL, 0, &plan, &f);
    int fd = memfd_create("model", MFD_CLOEXEC);
    assert(!rc && fd >= 0);
    rc = io_write_full(&io_posix, fd, plan.head, plan.head_bytes, 0, &f);
    for (size_t i = 0; !rc && i < k; i++)
        rc = io_write_full(&io_posix, fd, data[i], t[i].bytes, t[i].offset, &f);
    assert(!rc);
    (void)rc;
    safetensors_plan_fini(&plan);
    return fd;
}

unsigned desk_load(struct desk *d, uint64_t conn, const char *model, const struct desk_layer *layers,
                   size_t n, const Fp8d__V1__Recipe *recipe, char *text)
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__LoadAttachRequest a = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char *name = (char *)(uintptr_t)"model.safetensors";
    int fd = write_file(layers, n);
    b.load_id = a.load_id = c.load_id = 99;
    b.model = (char *)(uintptr_t)model;
    b.options = &o;
    o.recipe = (Fp8d__V1__Recipe *)(uintptr_t)recipe;
    unsigned code = desk_call(d, conn, REQUEST_LOAD_BEGIN, &b.base, NULL, 0, NULL, text);
    if (code) {
        close(fd);
        return code;
    }
    a.n_names = 1;
    a.names = &name;
    uint64_t id = desk_send(d, conn, REQUEST_LOAD_ATTACH, &a.base, NULL, 0, &fd, 1);
    desk_frame_free(desk_take(d, conn, id));
    return desk_call(d, conn, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, text);
}

static void take_reply(struct desk_forward *f, const struct desk_frame *frame)
{
    Fp8d__V1__ForwardReply *r = fp8d__v1__forward_reply__unpack(NULL, frame->meta_len, frame->meta);
    assert(r);
    assert(frame->payload_len == f->tokens * f->out * 4);
    if (f->y)
        memcpy(f->y, frame->payload, frame->payload_len);
    f->copy = r->weight_copy;
    f->input_scale = r->input ? r->input->scale : 0.0f;
    f->uncalibrated = r->input && r->input->uncalibrated;
    f->weight_scale_inv = r->weight ? r->weight->scale_inv : 0.0f;
    fp8d__v1__forward_reply__free_unpacked(r, NULL);
}

unsigned desk_forward(struct desk *d, uint64_t conn, struct desk_forward *f, char *text)
{
    Fp8d__V1__ForwardRequest m = FP8D__V1__FORWARD_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    struct desk_frame *frame;
    uint64_t dims[2] = {f->tokens, f->in};
    m.model = (char *)(uintptr_t)f->model;
    m.layer = (char *)(uintptr_t)f->layer;
    m.mode = f->mode;
    m.first_microbatch = f->first;
    m.context_id = f->context_id;
    m.input = &ref;
    ref.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    ref.n_dims = 2;
    ref.dims = dims;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = f->tokens * f->in * 4;
    unsigned code = desk_call(d, conn, REQUEST_FORWARD, &m.base, f->x, place.length, &frame, text);
    if (!code) {
        take_reply(f, frame);
        desk_frame_free(frame);
    }
    return code;
}

struct desk_frame *desk_scaling(struct desk *d, uint64_t conn, const char *model)
{
    Fp8d__V1__QueryScalingRequest m = FP8D__V1__QUERY_SCALING_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = (char *)(uintptr_t)model;
    m.history = true;
    (void)desk_call(d, conn, REQUEST_QUERY_SCALING, &m.base, NULL, 0, &frame, NULL);
    return frame;
}
