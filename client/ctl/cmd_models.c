/* fp8ctl models, fp8ctl layers. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/names.h"
#include "client/ctl/table.h"

#include <inttypes.h>
#include <stdio.h>

static json_t *model_json(struct ctl *ctl, const struct fp8d_model *m)
{
    json_t *o = json_object();
    json_put(ctl, o, "name", json_text(m->name));
    json_put(ctl, o, "incarnation", json_u64(m->incarnation));
    json_put(ctl, o, "weight_version", json_u64(m->weight_version));
    json_put(ctl, o, "layers", json_u64(m->layers));
    json_put(ctl, o, "parameters", json_u64(m->parameters));
    json_put(ctl, o, "bytes", json_u64(m->bytes));
    json_put(ctl, o, "recipe", json_recipe(ctl, &m->recipe));
    json_put(ctl, o, "creator_uid", json_u64(m->creator_uid));
    json_put(ctl, o, "scope_open", json_boolean(m->scope_open));
    json_put(ctl, o, "calibrating", json_boolean(m->calibrating));
    json_put(ctl, o, "contexts", json_u64(m->contexts));
    return o;
}

static int models_json(struct ctl *ctl, const struct fp8d_models *s)
{
    json_t *o = json_begin(ctl);
    json_t *list = json_array();
    for (size_t i = 0; i < s->count; i++)
        json_push(ctl, list, model_json(ctl, &s->models[i]));
    json_put(ctl, o, "models", list);
    return json_end(ctl, o);
}

static void model_row(struct table *t, const struct fp8d_model *m)
{
    char text[CTL_TEXT], bytes[32];
    table_row(t);
    table_cell(t, "%s", ctl_text(text, m->name));
    table_cell(t, "%" PRIu64, m->incarnation);
    table_cell(t, "%" PRIu64, m->weight_version);
    table_cell(t, "%u", m->layers);
    table_cell(t, "%" PRIu64, m->parameters);
    table_cell(t, "%s", bytes_text(m->bytes, bytes));
    table_cell(t, "%s", recipe_text(&m->recipe, text));
    table_cell(t, "%s%s%s", m->scope_open ? "scope" : "",
               m->scope_open && m->calibrating ? "," : "", m->calibrating ? "calibrating" : "");
}

static int models_print(const struct ctl *ctl, const struct fp8d_models *s)
{
    static const char *const columns[] = {"MODEL",   ">INCARNATION", ">VERSION",
                                          ">LAYERS", ">PARAMETERS",  ">SIZE",
                                          "RECIPE",  "STATE",        NULL};
    struct table t;
    if (!s->count) {
        fputs("no models\n", stderr);
        return CTL_OK;
    }
    table_begin(&t, columns);
    for (size_t i = 0; i < s->count; i++)
        model_row(&t, &s->models[i]);
    return table_done(ctl, &t);
}

int cmd_models(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = ctl_connect(ctl);
    (void)a;
    if (rc)
        return rc;
    if (fp8d_list_models(ctl->c, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    const struct fp8d_models *s = fp8d_result_models(r);
    rc = ctl->json ? models_json(ctl, s) : models_print(ctl, s);
    fp8d_result_free(r);
    return rc;
}

/* --- layers --- */

static json_t *layer_json(struct ctl *ctl, const struct fp8d_layer *l)
{
    json_t *o = json_object();
    json_put(ctl, o, "name", json_text(l->name));
    json_put(ctl, o, "kind", json_text(l->kind));
    json_put(ctl, o, "in_features", json_u64(l->in_features));
    json_put(ctl, o, "out_features", json_u64(l->out_features));
    json_put(ctl, o, "weight_dtype", json_string(fp8d_dtype_name(l->weight_dtype)));
    json_put(ctl, o, "bias_dtype",
             l->bias_dtype ? json_string(fp8d_dtype_name(l->bias_dtype)) : json_null());
    json_put(ctl, o, "weight_version", json_u64(l->weight_version));
    json_put(ctl, o, "cached_version",
             l->cached_version ? json_u64(l->cached_version) : json_null());
    json_put(ctl, o, "bytes", json_u64(l->bytes));
    json_put(ctl, o, "weight_scale_inv",
             l->weight_scale_inv > 0 ? json_f32(l->weight_scale_inv) : json_null());
    return o;
}

static int layers_json(struct ctl *ctl, const struct fp8d_description *s)
{
    json_t *o = json_begin(ctl);
    json_t *list = json_array();
    for (size_t i = 0; i < s->count; i++)
        json_push(ctl, list, layer_json(ctl, &s->layers[i]));
    json_put(ctl, o, "model", model_json(ctl, &s->model));
    json_put(ctl, o, "layers", list);
    return json_end(ctl, o);
}

static void layer_row(struct table *t, const struct fp8d_layer *l)
{
    char text[CTL_TEXT], bytes[32], factor[32];
    table_row(t);
    table_cell(t, "%s", ctl_text(text, l->name));
    table_cell(t, "%s", ctl_text(text, l->kind));
    table_cell(t, "%" PRIu64, l->in_features);
    table_cell(t, "%" PRIu64, l->out_features);
    table_cell(t, "%s", fp8d_dtype_name(l->weight_dtype));
    table_cell(t, "%s", l->weight_scale_inv > 0 ? float_text(l->weight_scale_inv, factor) : "-");
    table_cell(t, "%s", l->bias_dtype ? fp8d_dtype_name(l->bias_dtype) : "-");
    table_cell(t, "%" PRIu64, l->weight_version);
    if (l->cached_version)
        table_cell(t, "%" PRIu64, l->cached_version);
    else
        table_cell(t, "-");
    table_cell(t, "%s", bytes_text(l->bytes, bytes));
}

static int layers_print(const struct ctl *ctl, const struct fp8d_description *s)
{
    static const char *const columns[] = {"LAYER",   "KIND",       ">IN",  ">OUT",
                                          "WEIGHT",  ">SCALE_INV", "BIAS", ">VERSION",
                                          ">CACHED", ">SIZE",      NULL};
    struct table t;
    table_begin(&t, columns);
    for (size_t i = 0; i < s->count; i++)
        layer_row(&t, &s->layers[i]);
    return table_done(ctl, &t);
}

int cmd_layers(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_describe_model(ctl->c, a->argument[0], NULL, &r, &err))
        return ctl_failed(ctl, &err);
    const struct fp8d_description *s = fp8d_result_description(r);
    rc = ctl->json ? layers_json(ctl, s) : layers_print(ctl, s);
    fp8d_result_free(r);
    return rc;
}
