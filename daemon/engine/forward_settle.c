#include "daemon/engine/forward_run.h"

static void take_max(struct site *s, const struct cast_report *r)
{
    s->calibration_seen = true;
    if (r->slot.amax > s->calibration_amax)
        s->calibration_amax = r->slot.amax;
}

static void settle_calibrate(struct forward *w)
{
    if (w->a.model->gone)
        return;
    w->a.model->calibrating = true;
    take_max(&w->a.layer->sites[SITE_INPUT], &forward_scratch(w)->input);
    take_max(&w->a.layer->sites[SITE_WEIGHT], &forward_scratch(w)->weight);
}

static void merge_into_scope(struct forward *w)
{
    if (w->scope->orphan)
        return;
    struct scope_part *p = scope_part(w->scope, w->a.layer); /* reserved before compute */
    p->ran[SITE_INPUT] = p->ran[SITE_WEIGHT] = true;
    if (!w->input.q)
        slot_merge(&p->slot[SITE_INPUT], &forward_scratch(w)->input.slot);
    if (w->choice.feed)
        slot_merge(&p->slot[SITE_WEIGHT], &forward_scratch(w)->weight.slot);
}

static void refresh_sites(struct layer *l, const struct apply_site in[2])
{
    site_refresh(&l->sites[SITE_INPUT], in[0].mirror);
    site_refresh(&l->sites[SITE_WEIGHT], in[1].mirror);
}

/* A weight edited by nobody since: edits wait for running compute. */
static void settle_fp8(struct forward *w)
{
    struct layer *l = w->a.layer;
    if (!w->choice.found)
        weight_file(&l->weight, &w->choice, qtensor_ref(w->wq), &forward_scratch(w)->weight);
    if (w->apply)
        refresh_sites(l, w->sites);
    if (w->scope && w->a.model->recipe.kind == RECIPE_DELAYED)
        merge_into_scope(w);
    bool eval = w->a.mode == MODE_EVAL && w->a.model->recipe.kind == RECIPE_DELAYED;
    if (eval && !w->input.q && forward_scratch(w)->input.from_tensor)
        l->sites[SITE_INPUT].uncalibrated_casts++;
    if (eval && forward_scratch(w)->weight.from_tensor)
        l->sites[SITE_WEIGHT].uncalibrated_casts++;
}

void forward_settle(struct forward *w)
{
    bool empty = operand_rows(&w->input) == 0;
    if (!empty && w->a.mode == MODE_CALIBRATE)
        settle_calibrate(w);
    else if (!empty)
        settle_fp8(w);
    filing_settle(&w->filing);
    w->a.lease->engine->forwards_done++;
}

struct forward_result forward_result(const struct forward *w)
{
    struct forward_result r = {0};
    const struct forward_scratch *s = forward_scratch(w);
    bool empty = operand_rows(&w->input) == 0;
    bool delayed = w->a.model->recipe.kind == RECIPE_DELAYED;
    r.output = w->output;
    r.copy = empty || w->a.mode == MODE_CALIBRATE ? COPY_NONE : w->choice.action;
    r.weight_cast = r.copy != COPY_NONE;
    r.input_cast = r.weight_cast && !w->input.q;
    r.input = s->input;
    r.weight = s->weight;
    r.input_fmt = recipe_dtype(&w->a.model->recipe, SITE_INPUT);
    r.weight_fmt = w->choice.key.fmt;
    r.uncalibrated_input = r.input_cast && delayed && r.input.from_tensor;
    r.uncalibrated_weight = r.weight_cast && delayed && r.weight.from_tensor;
    r.applied = w->apply;
    r.incarnation = w->incarnation;
    r.weight_version = w->weight_version;
    r.compute_ns = s->begun && s->ended > s->begun ? s->ended - s->begun : 0;
    return r;
}
