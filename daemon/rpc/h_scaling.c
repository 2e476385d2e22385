/* QueryScaling: the scaling state as it is after the last completed change. */
#include "daemon/engine/scope.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"

#include <errno.h>
#include <string.h>

#define LAYERS_PER_FRAME 64

static int fill_history(const struct scaler *s, Fp8d__V1__SiteState *out, struct arena *a)
{
    size_t rows = s->len - 1;
    if (!rows)
        return 0;
    out->history = arena_zalloc(a, rows, sizeof(float));
    if (!out->history)
        return -ENOMEM;
    for (size_t i = 0; i < rows; i++)
        out->history[i] = s->history[s->len - 1 - i];
    out->n_history = rows;
    return 0;
}

static void fill_scaler(const struct scaler *s, Fp8d__V1__SiteState *out)
{
    out->set = s->set != 0;
    out->scale = s->scale;
    out->scale_inv = s->scale_inv;
    out->amax_last = s->amax_last;
    out->collecting = s->history[0];
    out->updates = s->updates;
    out->skipped_updates = s->skipped_updates;
    out->saturated = s->saturated;
    out->flushed = s->flushed;
    out->nonfinite = s->nonfinite;
}

/* What an open scope has collected counts as collecting. */
static void add_scope(const struct model *m, const struct layer *l, enum site_kind kind,
                      Fp8d__V1__SiteState *out)
{
    const struct scope_part *p = scope_peek(m, l);
    if (p && p->slot[kind].amax > out->collecting)
        out->collecting = p->slot[kind].amax;
}

static int fill_site(const struct model *m, const struct layer *l, enum site_kind kind,
                     bool history, Fp8d__V1__SiteState *out, struct arena *a)
{
    const struct site *site = &l->sites[kind];
    out->name = (char *)(uintptr_t)site_name(kind);
    out->fp8_dtype = (Fp8d__V1__DType)recipe_dtype(&m->recipe, kind);
    out->scale = 1.0f;
    out->scale_inv = 1.0f;
    if (!site->state)
        return 0;
    fill_scaler(site_mirror(site), out);
    add_scope(m, l, kind, out);
    out->calibration_amax = site->calibration_amax;
    out->uncalibrated_casts = site->uncalibrated_casts;
    if (kind == SITE_WEIGHT && l->weight.train.q)
        out->scale_inv_in_use = l->weight.train.report.scale_inv;
    return history ? fill_history(site_mirror(site), out, a) : 0;
}

static int fill_layer(const struct model *m, const struct layer *l, bool history,
                      Fp8d__V1__LayerScaling **out, struct arena *a)
{
    Fp8d__V1__LayerScaling *row = arena_zalloc(a, 1, sizeof *row);
    Fp8d__V1__SiteState *sites = arena_zalloc(a, SITE_KINDS, sizeof *sites);
    Fp8d__V1__SiteState **list = arena_zalloc(a, SITE_KINDS, sizeof *list);
    if (!row || !sites || !list)
        return -ENOMEM;
    fp8d__v1__layer_scaling__init(row);
    row->name = l->name;
    row->weight_version = l->weight.version;
    row->cached_version = l->weight.train.q ? l->weight.train.key.version : 0;
    row->n_sites = SITE_KINDS;
    row->sites = list;
    for (unsigned k = 0; k < SITE_KINDS; k++) {
        fp8d__v1__site_state__init(&sites[k]);
        list[k] = &sites[k];
        if (fill_site(m, l, k, history, &sites[k], a))
            return -ENOMEM;
    }
    *out = row;
    return 0;
}

/* Layers [from, from + n) into one frame. */
static int send_part(struct request *rq, const struct model *m, const struct layer *from, size_t n,
                     bool history, bool final)
{
    struct arena a;
    Fp8d__V1__QueryScalingReply out = FP8D__V1__QUERY_SCALING_REPLY__INIT;
    Fp8d__V1__LayerScaling *rows[LAYERS_PER_FRAME];
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    arena_init(&a, REPLY_ARENA_CAP);
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = fill_layer(m, &from[i], history, &rows[i], &a);
    out.n_layers = n;
    out.layers = rows;
    if (!rc && final) {
        reply_recipe_out(&m->recipe, &recipe);
        out.recipe = &recipe;
        out.model = m->name;
        out.frozen = m->frozen;
        out.calibrating = m->calibrating;
        out.scope_open = m->scope != NULL;
        request_answer(rq, &out.base, NULL, 0);
    } else if (!rc) {
        rc = request_progress(rq, &out.base) ? 0 : -ENOMEM;
    }
    arena_fini(&a);
    return rc;
}

void rpc_query_scaling(struct request *rq)
{
    const Fp8d__V1__QueryScalingRequest *in =
        (const Fp8d__V1__QueryScalingRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *m;
    struct layer *l = NULL;
    int rc = in->layer[0] ? reply_find_layer(rq, in->model, in->layer, &m, &l, &f)
                          : reply_find_model(rq, in->model, &m, &f);
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    const struct layer *at = l ? l : m->layers;
    size_t left = l ? 1 : m->layer_count;
    size_t most = in->history ? 1 : LAYERS_PER_FRAME;
    while (left > most) {
        if (send_part(rq, m, at, most, in->history, false))
            break;
        at += most;
        left -= most;
    }
    if (left <= most && !send_part(rq, m, at, left, in->history, true))
        return;
    fault_set(&f, -ENOMEM, "out of memory for the scaling state of model %s", m->name);
    request_fail(rq, &f);
}
