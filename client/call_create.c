/* CreateModel: the one request with as many tensors as it likes, most of them resident. */
#include "client/call.h"

#include "base/mem.h"

#include <errno.h>

#define LAYERS_MAX 4096

/* The messages of one layer. */
struct layer {
    Fp8d__V1__LayerSpec spec;
    struct call_tensor weight, bias;
};

struct create {
    struct layer *layers; /* heap, with the list of pointers to their specs */
    Fp8d__V1__LayerSpec **list;
    size_t count;
    unsigned pieces; /* inline tensors so far */
};

static int create_init(struct create *s, size_t count, struct fault *f)
{
    *s = (struct create){.count = count};
    if (count > LAYERS_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "layers has %zu entries, needed 1 to %d", count,
                         LAYERS_MAX);
    s->layers = mem_array(count + 1, sizeof *s->layers);
    s->list = mem_array(count + 1, sizeof *s->list);
    return s->layers && s->list ? 0 : fault_set(f, -ENOMEM, "no memory for %zu layers", count);
}

static void create_fini(struct create *s)
{
    mem_free(s->layers);
    mem_free(s->list);
}

static int fill_tensor(struct create *s, struct call_tensor *out, const struct fp8d_tensor *t,
                       struct request *r, struct fp8d_error *err)
{
    struct fault f = {0};
    unsigned piece = t->tensor_id ? 0 : s->pieces++;
    if (piece >= CONN_PIECES) {
        fault_set(
            &f, FP8D_EINVALID_ARGUMENT,
            "more than %d tensors come with the request, put the others first and name them by "
            "tensor_id",
            CONN_PIECES);
        return call_error(&f, err);
    }
    return call_tensor_fill(out, t, r, piece, err);
}

static int fill_layer(struct create *s, size_t i, const struct fp8d_layer_spec *from,
                      struct request *r, struct fp8d_error *err)
{
    struct layer *l = &s->layers[i];
    fp8d__v1__layer_spec__init(&l->spec);
    s->list[i] = &l->spec;
    l->spec.name = call_text(from->name);
    l->spec.weight = &l->weight.ref;
    int rc = fill_tensor(s, &l->weight, &from->weight, r, err);
    if (rc || !from->bias)
        return rc;
    l->spec.bias = &l->bias.ref;
    return fill_tensor(s, &l->bias, from->bias, r, err);
}

int fp8d_submit_create_model(struct fp8d *c, const struct fp8d_create_model *create,
                             const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__CreateModelRequest m = FP8D__V1__CREATE_MODEL_REQUEST__INIT;
    struct request r = {.type = REQUEST_CREATE_MODEL, .msg = &m.base};
    Fp8d__V1__Recipe recipe;
    struct fault f = {0};
    struct create s;
    int rc = create_init(&s, create->count, &f);
    if (rc)
        call_error(&f, err);
    for (size_t i = 0; !rc && i < s.count; i++)
        rc = fill_layer(&s, i, &create->layers[i], &r, err);
    m.model = call_text(create->model);
    m.recipe = call_recipe(&recipe, &create->recipe);
    m.n_layers = s.count;
    m.layers = s.list;
    m.primary_fp8 = create->primary_fp8;
    if (!rc)
        rc = call_submit(c, &r, call, id, err);
    create_fini(&s);
    return rc;
}

int fp8d_create_model(struct fp8d *c, const struct fp8d_create_model *create,
                      const struct fp8d_call *call, struct fp8d_result **out,
                      struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_create_model(c, create, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
