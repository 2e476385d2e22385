/* fp8ctl create: tensors of files are put one after another, and a model is made of them. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/spec.h"
#include "client/ctl/tensor_file.h"

#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* Numbers of tensors put here. */
#define TENSOR_ID_BASE ((uint64_t)1 << 62)

struct create {
    struct fp8d_layer_spec *layers;
    struct fp8d_tensor *biases; /* one for each layer */
    uint64_t first, count;      /* numbers of the tensors that were put */
};

static int create_init(struct create *k, const struct ctl *ctl, size_t count, struct fault *f)
{
    *k = (struct create){
        .layers = mem_array(count, sizeof *k->layers),
        .biases = mem_array(count, sizeof *k->biases),
        .first = TENSOR_ID_BASE + ctl->last_tensor,
    };
    return k->layers && k->biases ? 0 : fault_set(f, -ENOMEM, "no memory for %zu layers", count);
}

/* What was put is the server's memory: give it back, also when a batch goes on. */
static void create_fini(struct create *k, struct ctl *ctl)
{
    for (uint64_t i = 0; i < k->count; i++)
        (void)fp8d_free_tensor(ctl->c, k->first + i, NULL, NULL, NULL);
    ctl->last_tensor += k->count;
    mem_free(k->layers);
    mem_free(k->biases);
}

/* Put one tensor; *out then names it. An exit code. */
static int put(struct ctl *ctl, struct create *k, const char *file, struct fp8d_tensor *out)
{
    struct fault f = {0};
    struct fp8d_error err;
    struct tensor_file t = {0};
    uint64_t id = k->first + k->count;
    if (tensor_file_read(file, &t, &f))
        return ctl_fault(ctl, &f);
    int rc = fp8d_put_tensor(ctl->c, id, &t.tensor, NULL, NULL, &err);
    tensor_file_fini(&t);
    if (rc)
        return ctl_failed(ctl, &err);
    k->count++;
    *out = (struct fp8d_tensor){.tensor_id = id};
    return CTL_OK;
}

static int put_layer(struct ctl *ctl, struct create *k, const struct spec *s, size_t i)
{
    const struct spec_layer *from = &s->layers[i];
    k->layers[i] = (struct fp8d_layer_spec){.name = from->name};
    int rc = put(ctl, k, from->weight, &k->layers[i].weight);
    if (rc || !from->bias)
        return rc;
    k->layers[i].bias = &k->biases[i];
    return put(ctl, k, from->bias, &k->biases[i]);
}

static int created(struct ctl *ctl, const char *model, const struct fp8d_result *r)
{
    char text[CTL_TEXT];
    const struct fp8d_created *s = fp8d_result_created(r);
    if (!ctl->json) {
        printf("created %s: %u layer%s, %" PRIu64 " parameters\n", ctl_text(text, model), s->layers,
               s->layers == 1 ? "" : "s", s->parameters);
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(model));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "layers", json_u64(s->layers));
    json_put(ctl, o, "parameters", json_u64(s->parameters));
    return json_end(ctl, o);
}

static int create(struct ctl *ctl, const char *model, const struct spec *s)
{
    struct fault f = {0};
    struct fp8d_error err;
    struct fp8d_result *r;
    struct create k;
    int rc = create_init(&k, ctl, s->count, &f) ? ctl_fault(ctl, &f) : CTL_OK;
    for (size_t i = 0; !rc && i < s->count; i++)
        rc = put_layer(ctl, &k, s, i);
    struct fp8d_create_model m = {
        .model = model,
        .recipe = s->recipe,
        .layers = k.layers,
        .count = s->count,
        .primary_fp8 = s->primary_fp8,
    };
    if (!rc && fp8d_create_model(ctl->c, &m, NULL, &r, &err)) {
        rc = ctl_failed(ctl, &err);
    } else if (!rc) {
        rc = created(ctl, model, r);
        fp8d_result_free(r);
    }
    create_fini(&k, ctl);
    return rc;
}

int cmd_create(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct spec s;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (spec_read(a->argument[1], &s, &f))
        return ctl_fault(ctl, &f);
    rc = create(ctl, a->argument[0], &s);
    spec_fini(&s);
    return rc;
}
