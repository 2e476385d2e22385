/* Replies about models, layers and their scaling state. */
#include "client/convert.h"

void convert_recipe(const Fp8d__V1__Recipe *m, struct fp8d_recipe *out)
{
    if (!m)
        return;
    *out = (struct fp8d_recipe){
        .kind = (enum fp8d_recipe_kind)m->kind,
        .format = (enum fp8d_format)m->fp8_format,
        .amax_algo = (enum fp8d_amax_algo)m->amax_algo,
        .amax_history_len = m->amax_history_len,
        .margin = m->margin,
        .margin_set = true,
        .fprop_accumulation = (enum fp8d_accumulation)m->fprop_accumulation,
    };
}

static void take_model(const Fp8d__V1__ModelInfo *m, struct fp8d_model *out)
{
    *out = (struct fp8d_model){
        .name = m->name,
        .incarnation = m->incarnation,
        .weight_version = m->weight_version,
        .layers = m->layers,
        .parameters = m->parameters,
        .bytes = m->bytes,
        .creator_uid = m->creator_uid,
        .scope_open = m->scope_open,
        .calibrating = m->calibrating,
        .contexts = m->contexts,
    };
    convert_recipe(m->recipe, &out->recipe);
}

int convert_list_models(struct fp8d_result *r, const Fp8d__V1__ListModelsReply *m, struct fault *f)
{
    struct fp8d_models *s = arena_zalloc(&r->arena, 1, sizeof *s);
    struct fp8d_model *list = arena_zalloc(&r->arena, m->n_models, sizeof *list);
    if (!s || !list)
        return convert_nomem(f);
    for (size_t i = 0; i < m->n_models; i++)
        take_model(m->models[i], &list[i]);
    s->models = list;
    s->count = m->n_models;
    r->body = s;
    return 0;
}

static int take_own(struct arena *a, const Fp8d__V1__LayerOptions *m,
                    const struct fp8d_layer_options **out, struct fault *f)
{
    struct fp8d_layer_options *o = m ? arena_alloc(a, sizeof *o) : NULL;
    if (!m)
        return 0;
    if (!o)
        return convert_nomem(f);
    *o = (struct fp8d_layer_options){
        .layer = m->layer,
        .rate = m->rate,
        .weight_decay = m->weight_decay,
        .weight_decay_set = m->weight_decay_set,
        .frozen = m->frozen,
    };
    *out = o;
    return 0;
}

static int take_layer(struct arena *a, const Fp8d__V1__LayerInfo *m, struct fp8d_layer *out,
                      struct fault *f)
{
    *out = (struct fp8d_layer){
        .name = m->name,
        .kind = m->kind,
        .in_features = m->in_features,
        .out_features = m->out_features,
        .weight_dtype = (enum fp8d_dtype)m->weight_dtype,
        .bias_dtype = (enum fp8d_dtype)m->bias_dtype,
        .weight_version = m->weight_version,
        .cached_version = m->cached_version,
        .bytes = m->bytes,
        .weight_scale_inv = m->weight_scale_inv,
        .gradients = m->gradients,
    };
    return take_own(a, m->optimizer, &out->optimizer, f);
}

static int take_optimizer(struct arena *a, const Fp8d__V1__OptimizerInfo *m,
                          struct fp8d_description *out, struct fault *f)
{
    const Fp8d__V1__OptimizerOptions *o = m ? m->options : NULL;
    struct fp8d_optimizer *k = o ? arena_alloc(a, sizeof *k) : NULL;
    if (!o)
        return m ? fault_set(f, FP8D_EPROTOCOL, "field model.optimizer.options is missing") : 0;
    if (!k)
        return convert_nomem(f);
    *k = (struct fp8d_optimizer){
        .kind = (enum fp8d_optimizer_kind)o->kind,
        .rate = o->rate,
        .momentum = o->momentum,
        .dampening = o->dampening,
        .nesterov = o->nesterov,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = o->weight_decay,
        .weight_decay_set = o->weight_decay_set,
    };
    out->optimizer = k;
    out->next_step = m->step;
    out->updates = m->updates;
    return 0;
}

int convert_describe_model(struct fp8d_result *r, const Fp8d__V1__DescribeModelReply *m,
                           struct fault *f)
{
    struct fp8d_description *s = arena_zalloc(&r->arena, 1, sizeof *s);
    struct fp8d_layer *list = arena_zalloc(&r->arena, m->n_layers, sizeof *list);
    if (!s || !list)
        return convert_nomem(f);
    if (!m->model)
        return fault_set(f, FP8D_EPROTOCOL, "field model is missing");
    take_model(m->model, &s->model);
    int rc = take_optimizer(&r->arena, m->model->optimizer, s, f);
    for (size_t i = 0; !rc && i < m->n_layers; i++)
        rc = take_layer(&r->arena, m->layers[i], &list[i], f);
    s->layers = list;
    s->count = m->n_layers;
    r->body = s;
    return rc;
}

static struct fp8d_site take_site(const Fp8d__V1__SiteState *m)
{
    return (struct fp8d_site){
        .name = m->name,
        .dtype = (enum fp8d_dtype)m->fp8_dtype,
        .set = m->set,
        .scale = m->scale,
        .scale_inv = m->scale_inv,
        .scale_inv_in_use = m->scale_inv_in_use,
        .amax_last = m->amax_last,
        .collecting = m->collecting,
        .history = m->history,
        .history_count = m->n_history,
        .updates = m->updates,
        .skipped_updates = m->skipped_updates,
        .saturated = m->saturated,
        .flushed = m->flushed,
        .nonfinite = m->nonfinite,
        .calibration_amax = m->calibration_amax,
        .uncalibrated_casts = m->uncalibrated_casts,
    };
}

static int take_scaling(struct arena *a, const Fp8d__V1__LayerScaling *m,
                        struct fp8d_layer_scaling *out, struct fault *f)
{
    struct fp8d_site *sites = arena_zalloc(a, m->n_sites, sizeof *sites);
    if (!sites)
        return convert_nomem(f);
    for (size_t i = 0; i < m->n_sites; i++)
        sites[i] = take_site(m->sites[i]);
    *out = (struct fp8d_layer_scaling){
        .name = m->name,
        .weight_version = m->weight_version,
        .cached_version = m->cached_version,
        .sites = sites,
        .count = m->n_sites,
    };
    return 0;
}

int convert_query_scaling(struct fp8d_result *r, const Fp8d__V1__QueryScalingReply *m,
                          struct fault *f)
{
    struct fp8d_scaling *s = arena_zalloc(&r->arena, 1, sizeof *s);
    struct fp8d_layer_scaling *list = arena_zalloc(&r->arena, m->n_layers, sizeof *list);
    if (!s || !list)
        return convert_nomem(f);
    for (size_t i = 0; i < m->n_layers; i++) {
        int rc = take_scaling(&r->arena, m->layers[i], &list[i], f);
        if (rc)
            return rc;
    }
    s->model = m->model;
    convert_recipe(m->recipe, &s->recipe);
    s->frozen = m->frozen;
    s->calibrating = m->calibrating;
    s->scope_open = m->scope_open;
    s->layers = list;
    s->count = m->n_layers;
    r->body = s;
    return 0;
}
