#include "daemon/engine/load_state.h"

#include "base/text.h"
#include "daemon/engine/factor.h"
#include "daemon/engine/load_bytes.h"
#include "daemon/engine/load_optimizer.h"
#include "daemon/engine/queuewait.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* --- recipe --- */

static void note_difference(struct load *ld, const char *what, const char *option, const char *file)
{
    claim_line(&ld->claim, &ld->claim.notes, "recipe: %s %s from the option, the file has %s", what,
               option, file);
}

static void note_number(struct load *ld, const char *what, long long option, long long file)
{
    char a[32];
    char b[32];
    (void)snprintf(a, sizeof a, "%lld", option);
    (void)snprintf(b, sizeof b, "%lld", file);
    if (option != file)
        note_difference(ld, what, a, b);
}

static void note_recipe(struct load *ld, const struct recipe *r)
{
    const struct recipe *b = &ld->file_recipe;
    if (r->kind != b->kind)
        note_difference(ld, "kind", r->kind == RECIPE_DELAYED ? "delayed" : "current",
                        b->kind == RECIPE_DELAYED ? "delayed" : "current");
    if (r->format != b->format)
        note_difference(ld, "fp8_format", r->format == RECIPE_HYBRID ? "hybrid" : "e4m3",
                        b->format == RECIPE_HYBRID ? "hybrid" : "e4m3");
    if (r->algo != b->algo)
        note_difference(ld, "amax_algo", r->algo == AMAX_MAX ? "max" : "most_recent",
                        b->algo == AMAX_MAX ? "max" : "most_recent");
    note_number(ld, "amax_history_len", r->history_len, b->history_len);
    note_number(ld, "margin", r->margin, b->margin);
    if (r->fprop != b->fprop)
        note_difference(ld, "fprop_accumulation",
                        r->fprop == ACCUMULATION_FAST ? "fast" : "precise",
                        b->fprop == ACCUMULATION_FAST ? "fast" : "precise");
}

int load_state_recipe(struct load *ld, struct recipe *out, struct fault *f)
{
    ld->file_recipe = RECIPE_DEFAULT;
    if (ld->claim.save) {
        int rc =
            state_take_recipe(safetensors_meta(ld->header, "fp8d_recipe"), &ld->file_recipe, f);
        if (rc)
            return rc;
    }
    struct recipe r = recipe_wished(&ld->file_recipe, &ld->o.recipe);
    int rc = recipe_check(&r, f);
    if (rc)
        return rc;
    if (ld->claim.save)
        note_recipe(ld, &r);
    *out = r;
    return 0;
}

/* --- one layer --- */

struct restore {
    struct load *ld;
    float *history; /* room for the longest */
    size_t resized, reset, ignored_inputs;
};

int load_state_wrong(const struct safetensors_tensor *t, int rc, const char *why, struct fault *f)
{
    char name[256];
    return fault_set(f, rc, "tensor \"%s\": %s",
                     text_escape(name, sizeof name, t->name, strlen(t->name)), why);
}

static int take_factor(struct load *ld, const struct safetensors_tensor *t, float *out,
                       struct fault *f)
{
    unsigned char bytes[FACTOR_BYTES];
    if (!t)
        return 0;
    int rc = load_bytes_small(ld, t, bytes, sizeof bytes, f);
    return rc ? rc : factor_take(t, bytes, out, f);
}

static int take_site(struct restore *r, const struct source *x, unsigned k, struct layer *l,
                     struct fault *f)
{
    struct load *ld = r->ld;
    const struct safetensors_tensor *const *p = x->site[k];
    enum site_kind kind = state_sites[k];
    struct site *s = &l->sites[kind];
    uint32_t len = (uint32_t)p[SOURCE_HISTORY]->dims[0];
    float scaling[STATE_SCALING];
    uint64_t counters[STATE_COUNTERS];
    const char *why;
    int rc = load_bytes_small(ld, p[SOURCE_SCALING], scaling, sizeof scaling, f);
    if (!rc)
        rc = load_bytes_small(ld, p[SOURCE_COUNTERS], counters, sizeof counters, f);
    if (!rc)
        rc = load_bytes_small(ld, p[SOURCE_HISTORY], r->history, len * sizeof(float), f);
    if (rc)
        return rc;
    rc = state_take_site(scaling, counters, r->history, len, site_mirror(s), s, &why);
    if (rc)
        return load_state_wrong(p[SOURCE_SCALING], rc, why, f);
    r->resized += len != site_mirror(s)->len;
    if (recipe_dtype(&ld->file_recipe, kind) != recipe_dtype(&ld->built->recipe, kind)) {
        scaler_reset(site_mirror(s));
        r->reset++;
    }
    return 0;
}

/* A file of another making has at most a static factor for each site. */
static void take_static(struct restore *r, const struct load_part *p, const struct source *x,
                        struct layer *l)
{
    const struct recipe *recipe = &r->ld->built->recipe;
    bool fits = x->weight->dtype == recipe_dtype(recipe, SITE_WEIGHT);
    if (p->input_factor > 0.0f)
        scaler_adopt(site_mirror(&l->sites[SITE_INPUT]), p->input_factor);
    if (p->factor > 0.0f && fits)
        scaler_adopt(site_mirror(&l->sites[SITE_WEIGHT]), p->factor);
    r->ignored_inputs += p->input_factor > 0.0f && recipe->kind == RECIPE_CURRENT;
}

static int take_copy(struct load *ld, const struct source *x, struct load_part *p, struct fault *f)
{
    float factor = 0.0f;
    float cast[STATE_CACHED_CAST];
    uint64_t counters[STATE_CACHED_COUNTERS];
    const char *why;
    int rc = take_factor(ld, x->cached[SOURCE_FACTOR], &factor, f);
    if (!rc)
        rc = load_bytes_small(ld, x->cached[SOURCE_CAST], cast, sizeof cast, f);
    if (!rc)
        rc = load_bytes_small(ld, x->cached[SOURCE_CAST_COUNTERS], counters, sizeof counters, f);
    if (rc)
        return rc;
    rc = state_take_cached(cast, counters, factor, &p->copy, &why);
    if (rc)
        return load_state_wrong(x->cached[SOURCE_CAST], rc, why, f);
    p->copy.key.fmt = x->cached[SOURCE_CODES]->dtype;
    p->copy.key.granularity = GRANULARITY_TENSOR;
    return 0;
}

static int take_layer(struct restore *r, size_t i, struct fault *f)
{
    struct load *ld = r->ld;
    const struct source *x = &ld->claim.layers[i];
    struct load_part *p = &ld->parts[i];
    struct layer *l = &ld->built->layers[i];
    int rc = take_factor(ld, x->factor, &p->factor, f);
    if (!rc)
        rc = take_factor(ld, x->input_factor, &p->input_factor, f);
    for (unsigned k = 0; !rc && source_has_state(x) && k < 3; k++)
        rc = take_site(r, x, k, l, f);
    if (!rc && !source_has_state(x))
        take_static(r, p, x, l);
    if (!rc && source_has_copy(x))
        rc = take_copy(ld, x, p, f);
    return rc ? rc : load_optimizer_values(ld, i, f);
}

/* --- the model --- */

static int take_model(struct load *ld, struct fault *f)
{
    uint64_t model[STATE_MODEL];
    const char *why;
    if (!ld->claim.save)
        return 0;
    int rc = load_bytes_small(ld, ld->claim.model, model, sizeof model, f);
    if (rc)
        return rc;
    if (state_check_model(model, &why))
        return load_state_wrong(ld->claim.model, FP8D_EDATA_LOSS, why, f);
    model_renumber(ld->built, model[1]);
    ld->built->frozen = model[2] != 0;
    ld->built->calibrating = model[3] != 0;
    return 0;
}

/* docs/numerics.md 3, "Calibrate": what FinishCalibration does to a live model. */
static int finish_calibration(struct load *ld, struct fault *f)
{
    static const enum site_kind kinds[] = {SITE_INPUT, SITE_WEIGHT};
    struct model *m = ld->built;
    size_t set = 0;
    if (m->recipe.kind != RECIPE_DELAYED)
        return fault_set(
            f, FP8D_EFAILED_PRECONDITION,
            "options.finish_calibration: the recipe is current, which keeps no scales; "
            "needed delayed");
    for (size_t i = 0; i < m->layer_count; i++)
        for (unsigned k = 0; k < 2; k++) {
            struct site *s = &m->layers[i].sites[kinds[k]];
            scaler_calibrate(site_mirror(s), recipe_dtype(&m->recipe, kinds[k]), m->recipe.margin,
                             s->calibration_amax);
            set += s->calibration_amax > 0.0f;
            s->calibration_amax = 0.0f;
            s->calibration_seen = false;
        }
    m->calibrating = false;
    claim_line(&ld->claim, &ld->claim.notes,
               "the calibration of the file was finished: %zu sites got "
               "a scale from it",
               set);
    return 0;
}

static int settle_calibration(struct load *ld, struct fault *f)
{
    struct claim_lines *notes = &ld->claim.notes;
    if (ld->built->calibrating && ld->o.finish_calibration)
        return finish_calibration(ld, f);
    if (ld->built->calibrating)
        claim_line(&ld->claim, notes,
                   "the file was saved with a calibration unfinished; it goes on, and "
                   "finish_calibration sets scales from it");
    else if (ld->o.finish_calibration)
        claim_line(&ld->claim, notes, "finish_calibration: the file has no unfinished calibration");
    return 0;
}

static int upload(struct load *ld, struct queue *q, struct fault *f)
{
    struct fault late = {0};
    int rc = 0;
    for (size_t i = 0; !rc && i < ld->built->layer_count; i++)
        for (unsigned k = 0; !rc && k < 3; k++)
            rc = site_upload(&ld->built->layers[i].sites[state_sites[k]], q, f);
    /* Nothing that the queue still works on may be freed. */
    if (queue_wait(q, rc ? &late : f) && !rc)
        rc = f->code;
    return rc;
}

static void note_sites(const struct restore *r)
{
    struct claim *c = &r->ld->claim;
    const struct recipe *recipe = &r->ld->built->recipe;
    size_t bare = 0;
    for (size_t i = 0; c->save && i < c->layer_count; i++)
        bare += !source_has_state(&c->layers[i]);
    if (bare)
        claim_line(c, &c->notes, "%zu layers have no scaling state in the file; they start without",
                   bare);
    if (r->resized)
        claim_line(c, &c->notes, "%zu amax histories were resized to %u rows, the newest kept",
                   r->resized, recipe->history_len);
    if (r->reset)
        claim_line(c, &c->notes, "%zu sites were reset: their FP8 format is another now", r->reset);
    if (r->ignored_inputs)
        claim_line(c, &c->notes,
                   "input_scale of %zu layers is not used while the recipe is current",
                   r->ignored_inputs);
}

int load_state_apply(struct load *ld, struct queue *q, struct fault *f)
{
    struct restore r = {.ld = ld, .history = mem_alloc(RECIPE_HISTORY_MAX * sizeof(float))};
    int rc =
        r.history ? take_model(ld, f) : fault_set(f, -ENOMEM, "out of memory for an amax history");
    for (size_t i = 0; !rc && i < ld->claim.layer_count; i++)
        rc = take_layer(&r, i, f);
    mem_free(r.history);
    if (!rc)
        rc = settle_calibration(ld, f);
    if (rc)
        return rc;
    note_sites(&r);
    return upload(ld, q, f);
}
