/* ListModels, DescribeModel, DropModel. */
#include "daemon/engine/engine.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"

#include <errno.h>

static void fail_memory(struct request *rq, const char *what)
{
    struct fault f = {0};
    fault_set(&f, -ENOMEM, "out of memory for the %s", what);
    request_fail(rq, &f);
}

void rpc_list_models(struct request *rq)
{
    struct engine *e = rq->rpc->o.engine;
    Fp8d__V1__ModelInfo info[REPLY_ROWS];
    Fp8d__V1__Recipe recipes[REPLY_ROWS];
    Fp8d__V1__ModelInfo *rows[REPLY_ROWS];
    size_t n = 0;
    for (size_t i = 0; i < e->model_count; i++) {
        if (n == REPLY_ROWS) {
            Fp8d__V1__ListModelsReply part = FP8D__V1__LIST_MODELS_REPLY__INIT;
            part.n_models = n;
            part.models = rows;
            if (!request_progress(rq, &part.base)) {
                fail_memory(rq, "list of models");
                return;
            }
            n = 0;
        }
        fp8d__v1__model_info__init(&info[n]);
        fp8d__v1__recipe__init(&recipes[n]);
        reply_model_info(e->models[i], &info[n], &recipes[n]);
        rows[n] = &info[n];
        n++;
    }
    Fp8d__V1__ListModelsReply m = FP8D__V1__LIST_MODELS_REPLY__INIT;
    m.n_models = n;
    m.models = rows;
    request_answer(rq, &m.base, NULL, 0);
}

/* A row of DescribeModel, with what it points to. */
struct layer_row {
    Fp8d__V1__LayerInfo info;
    Fp8d__V1__LayerOptions own;
};

static void fill_own(const struct layer *l, struct layer_row *row)
{
    const struct optimizer_own *own = &l->own;
    if (!optimizer_has_own(own))
        return;
    fp8d__v1__layer_options__init(&row->own);
    row->own.layer = l->name;
    row->own.frozen = own->frozen;
    row->own.rate = own->rate_set ? own->rate : 0.0;
    row->own.weight_decay = own->decay_set ? own->weight_decay : 0.0;
    row->own.weight_decay_set = own->decay_set;
    row->info.optimizer = &row->own;
}

static void fill_layer(const struct layer *l, struct layer_row *row)
{
    Fp8d__V1__LayerInfo *out = &row->info;
    fp8d__v1__layer_info__init(out);
    out->name = l->name;
    out->kind = (char *)(uintptr_t)"linear";
    out->in_features = l->in;
    out->out_features = l->out;
    out->weight_dtype = (Fp8d__V1__DType)weight_dtype(&l->weight);
    out->weight_scale_inv = l->weight.primary.q ? l->weight.primary.report.scale_inv : 0.0f;
    out->bias_dtype = l->weight.bias.buf ? (Fp8d__V1__DType)l->weight.bias.dtype
                                         : FP8D__V1__DTYPE__DTYPE_UNSPECIFIED;
    out->weight_version = l->weight.version;
    out->cached_version = l->weight.train.q ? l->weight.train.key.version : 0;
    out->bytes = weight_bytes(&l->weight);
    out->gradients = l->gradient.contributions;
    fill_own(l, row);
}

static void fill_optimizer(const struct optimizer *o, Fp8d__V1__OptimizerInfo *info,
                           Fp8d__V1__OptimizerOptions *options)
{
    fp8d__v1__optimizer_info__init(info);
    fp8d__v1__optimizer_options__init(options);
    options->kind = (Fp8d__V1__OptimizerKind)o->options.kind;
    options->rate = o->options.rate;
    options->momentum = o->options.momentum;
    options->dampening = o->options.dampening;
    options->nesterov = o->options.nesterov;
    options->beta1 = o->options.beta1;
    options->beta2 = o->options.beta2;
    options->eps = o->options.eps;
    options->weight_decay = o->options.weight_decay;
    options->weight_decay_set = true;
    info->options = options;
    info->step = o->steps + 1;
    info->updates = o->updates;
}

void rpc_describe_model(struct request *rq)
{
    const Fp8d__V1__DescribeModelRequest *in =
        (const Fp8d__V1__DescribeModelRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *model;
    if (reply_find_model(rq, in->model, &model, &f)) {
        request_fail(rq, &f);
        return;
    }
    struct layer_row *info = mem_array(REPLY_ROWS, sizeof *info);
    Fp8d__V1__LayerInfo *rows[REPLY_ROWS];
    if (!info) {
        fail_memory(rq, "list of layers");
        return;
    }
    size_t n = 0;
    for (size_t i = 0; i < model->layer_count; i++) {
        if (n == REPLY_ROWS) {
            Fp8d__V1__DescribeModelReply part = FP8D__V1__DESCRIBE_MODEL_REPLY__INIT;
            part.n_layers = n;
            part.layers = rows;
            if (!request_progress(rq, &part.base)) {
                mem_free(info);
                fail_memory(rq, "list of layers");
                return;
            }
            n = 0;
        }
        fill_layer(&model->layers[i], &info[n]);
        rows[n] = &info[n].info;
        n++;
    }
    Fp8d__V1__DescribeModelReply m = FP8D__V1__DESCRIBE_MODEL_REPLY__INIT;
    Fp8d__V1__ModelInfo mi = FP8D__V1__MODEL_INFO__INIT;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    Fp8d__V1__OptimizerInfo optimizer;
    Fp8d__V1__OptimizerOptions options;
    reply_model_info(model, &mi, &recipe);
    if (model->optimizer.set) {
        fill_optimizer(&model->optimizer, &optimizer, &options);
        mi.optimizer = &optimizer;
    }
    m.model = &mi;
    m.n_layers = n;
    m.layers = rows;
    request_answer(rq, &m.base, NULL, 0);
    mem_free(info);
}

void rpc_drop_model(struct request *rq)
{
    const Fp8d__V1__DropModelRequest *in =
        (const Fp8d__V1__DropModelRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *model;
    if (reply_find_model(rq, in->model, &model, &f) || reply_expect(in->expect, model, &f)) {
        request_fail(rq, &f);
        return;
    }
    engine_remove(rq->rpc->o.engine, model);
    Fp8d__V1__DropModelReply m = FP8D__V1__DROP_MODEL_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}
