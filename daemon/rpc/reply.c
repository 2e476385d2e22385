#include "daemon/rpc/reply.h"

#include "base/text.h"
#include "daemon/engine/engine.h"
#include "daemon/rpc/rpc.h"

#include <string.h>

int reply_check_model_name(const char *name, const char *field, struct fault *f)
{
    char shown[160];
    size_t len = strlen(name);
    if (text_is_model_name(name, len))
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "%s is \"%s\", needed 1 to 128 bytes of [A-Za-z0-9._-]", field,
                     text_escape(shown, sizeof shown, name, len));
}

int reply_check_server_path(const char *path, bool wanted, const char *field, struct fault *f)
{
    size_t len = strlen(path);
    if (wanted && (!len || len > 4095))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "server_path has %zu bytes, needed 1 to 4095",
                         len);
    if (!wanted && len)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "server_path is set, but %s is not LOAD_SOURCE_SERVER_PATH", field);
    return 0;
}

int reply_check_names(const struct request *rq, char *const *names, size_t count, struct fault *f)
{
    if (count != rq->fd_count || !count)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "names has %zu entries, the frame carries %u descriptors, needed one name "
                         "each and at least one",
                         count, rq->fd_count);
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(names[i]);
        if (len < 1 || len > 255 || strchr(names[i], '/'))
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "names[%zu] has %zu bytes%s, needed a base name of 1 to 255 bytes", i,
                             len, strchr(names[i], '/') ? " and a slash" : "");
    }
    return 0;
}

int reply_find_model(struct request *rq, const char *name, struct model **out, struct fault *f)
{
    int rc = reply_check_model_name(name, "model", f);
    if (!rc)
        rc = engine_find(rq->rpc->o.engine, name, out, f);
    if (!rc)
        request_stamp(rq, (*out)->incarnation, (*out)->weight_version);
    return rc;
}

int reply_find_layer(struct request *rq, const char *model, const char *layer, struct model **m,
                     struct layer **l, struct fault *f)
{
    int rc = reply_find_model(rq, model, m, f);
    if (rc)
        return rc;
    size_t len = strlen(layer);
    if (!text_is_tensor_name(layer, len))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "layer has %zu bytes, needed 1 to 1024", len);
    return model_find_layer(*m, layer, l, f);
}

int reply_expect(const Fp8d__V1__Expect *x, const struct model *m, struct fault *f)
{
    if (!x)
        return 0;
    struct expect e = {x->incarnation, x->weight_version};
    return expect_check(&e, m, f);
}

int reply_recipe_in(const Fp8d__V1__Recipe *in, struct recipe_wish *out, struct fault *f)
{
    const struct recipe base = RECIPE_DEFAULT;
    struct recipe_wish w = {.margin = -1};
    if (in && in->margin > RECIPE_MARGIN_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "recipe.margin is %u, needed 0 to %d",
                         in->margin, RECIPE_MARGIN_MAX);
    if (in) {
        w.kind = (enum recipe_kind)in->kind;
        w.format = (enum recipe_format)in->fp8_format;
        w.algo = (enum amax_algo)in->amax_algo;
        w.history_len = in->amax_history_len;
        w.margin = in->margin || in->margin_set ? (int)in->margin : -1;
        w.fprop = (enum recipe_accumulation)in->fprop_accumulation;
    }
    struct recipe r = recipe_wished(&base, &w);
    int rc = recipe_check(&r, f);
    if (!rc)
        *out = w;
    return rc;
}

void reply_recipe_out(const struct recipe *in, Fp8d__V1__Recipe *out)
{
    out->kind = (Fp8d__V1__RecipeKind)in->kind;
    out->fp8_format = (Fp8d__V1__Fp8Format)in->format;
    out->amax_algo = (Fp8d__V1__AmaxAlgo)in->algo;
    out->amax_history_len = in->history_len;
    out->margin = (uint32_t)in->margin;
    out->margin_set = true;
    out->fprop_accumulation = (Fp8d__V1__FpropAccumulation)in->fprop;
}

void reply_cast(const struct cast_report *r, enum dtype fmt, bool uncalibrated,
                Fp8d__V1__CastInfo *out)
{
    out->fp8_dtype = (Fp8d__V1__DType)fmt;
    out->scale = r->scale;
    out->scale_inv = r->scale_inv;
    out->amax = r->slot.amax;
    out->saturated = r->slot.saturated;
    out->flushed = r->slot.flushed;
    out->nonfinite = r->slot.nonfinite;
    out->uncalibrated = uncalibrated;
}

void reply_model_info(const struct model *m, Fp8d__V1__ModelInfo *info, Fp8d__V1__Recipe *recipe)
{
    info->name = m->name;
    info->incarnation = m->incarnation;
    info->weight_version = m->weight_version;
    info->layers = (uint32_t)m->layer_count;
    info->parameters = model_parameters(m);
    info->bytes = model_bytes(m);
    reply_recipe_out(&m->recipe, recipe);
    info->recipe = recipe;
    info->creator_uid = m->creator_uid;
    info->scope_open = m->scope != NULL;
    info->calibrating = m->calibrating;
    info->contexts = m->contexts;
}
