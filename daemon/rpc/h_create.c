/* CreateModel. */
#include "daemon/engine/create.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"
#include "daemon/rpc/tensors.h"

#include <errno.h>
#include <stdio.h>

#define LAYERS_MAX 4096

static void on_created(void *arg, const struct fault *f, const struct model *m)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    Fp8d__V1__CreateModelReply out = FP8D__V1__CREATE_MODEL_REPLY__INIT;
    out.layers = (uint32_t)m->layer_count;
    out.parameters = model_parameters(m);
    request_stamp(rq, m->incarnation, m->weight_version);
    request_answer(rq, &out.base, NULL, 0);
}

static int take_layers(struct request *rq, const Fp8d__V1__CreateModelRequest *in,
                       struct create_layer *layers, struct fault *f)
{
    struct inline_cover cover = {0};
    char field[64];
    int rc = 0;
    for (size_t i = 0; !rc && i < in->n_layers; i++) {
        const Fp8d__V1__LayerSpec *l = in->layers[i];
        layers[i].name = l->name;
        (void)snprintf(field, sizeof field, "layers[%zu].weight", i);
        rc = tensors_operand(rq, l->weight, field, &cover, &layers[i].weight, f);
        (void)snprintf(field, sizeof field, "layers[%zu].bias", i);
        if (!rc && l->bias)
            rc = tensors_operand(rq, l->bias, field, &cover, &layers[i].bias, f);
    }
    return rc ? rc : tensors_covered(rq, &cover, f);
}

void rpc_create_model(struct request *rq)
{
    const Fp8d__V1__CreateModelRequest *in =
        (const Fp8d__V1__CreateModelRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    const struct recipe base = RECIPE_DEFAULT;
    struct recipe_wish wish = {.margin = -1};
    struct create_layer *layers = NULL;
    const size_t n = in->n_layers;
    int rc = reply_check_model_name(in->model, "model", &f);
    if (!rc)
        rc = reply_recipe_in(in->recipe, &wish, &f);
    if (!rc && (in->n_layers < 1 || in->n_layers > LAYERS_MAX))
        rc = fault_set(&f, FP8D_EINVALID_ARGUMENT, "layers has %zu entries, needed 1 to %d",
                       in->n_layers, LAYERS_MAX);
    if (!rc) {
        layers = mem_array(in->n_layers, sizeof *layers);
        rc = layers ? take_layers(rq, in, layers, &f)
                    : fault_set(&f, -ENOMEM, "out of memory for the list of layers");
    }
    struct recipe r = recipe_wished(&base, &wish);
    if (!rc)
        rc = create_start(&rq->session->lease, in->model, &r, layers, n, in->primary_fp8, on_created,
                          rq, &f);
    if (rc)
        request_fail(rq, &f); /* in is gone */
    for (size_t i = 0; layers && i < n; i++) {
        operand_fini(&layers[i].weight);
        operand_fini(&layers[i].bias);
    }
    mem_free(layers);
}
