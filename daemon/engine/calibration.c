#include "daemon/engine/calibration.h"

#include "base/mem.h"
#include "daemon/engine/engine.h"

#include <errno.h>
#include <string.h>

struct finishing {
    struct op op;
    struct model *model;
    struct buffer *staging;    /* the scalers as they will be, two a layer */
    struct apply_site *sites;  /* one per site that moves */
    struct site **moved;
    struct calibration_counts counts;
    calibration_done_cb done;
    void *arg;
};

static const enum site_kind forward_sites[] = {SITE_INPUT, SITE_WEIGHT};

static int check_started(const struct model *m, struct fault *f)
{
    if (m->calibrating)
        return 0;
    return fault_set(f, FP8D_EFAILED_PRECONDITION,
                     "no calibrate request reached model %s since its last finish or abort",
                     m->name);
}

static void forget(struct model *m)
{
    m->calibrating = false;
    for (size_t i = 0; i < m->layer_count; i++)
        for (unsigned k = 0; k < 2; k++) {
            struct site *s = &m->layers[i].sites[forward_sites[k]];
            s->calibration_amax = 0.0f;
            s->calibration_seen = false;
        }
}

int calibration_abort(struct model *m, struct calibration_counts *counts, struct fault *f)
{
    int rc = check_started(m, f);
    if (rc)
        return rc;
    *counts = (struct calibration_counts){0};
    for (size_t i = 0; i < m->layer_count; i++)
        for (unsigned k = 0; k < 2; k++) {
            if (m->layers[i].sites[forward_sites[k]].calibration_amax > 0.0f)
                counts->set++;
            else
                counts->unset++;
        }
    forget(m);
    return 0;
}

static void finishing_free(struct finishing *w)
{
    buffer_unref(w->staging);
    mem_free(w->sites);
    mem_free(w->moved);
    model_unref(w->model);
    mem_free(w);
}

/* Mirrors follow only when the backend has them all: nothing changed if it failed. */
static void finishing_finish(struct op *op)
{
    struct finishing *w = (struct finishing *)op;
    if (!op->fault.code)
        (void)model_check_here(w->model, &op->fault);
    if (!op->fault.code) {
        for (uint32_t i = 0; i < w->counts.set; i++)
            site_refresh(w->moved[i], w->sites[i].replace);
        forget(w->model);
    }
    w->done(w->arg, &op->fault, &w->counts);
    finishing_free(w);
}

static int stage(struct finishing *w, struct fault *f)
{
    struct model *m = w->model;
    size_t step = scaler_bytes(m->recipe.history_len);
    size_t most = 2 * m->layer_count;
    int rc = engine_host_buffer(m->engine, most * step, "the calibration", &w->staging, f);
    if (rc)
        return rc;
    w->sites = mem_array(most, sizeof *w->sites);
    w->moved = mem_array(most, sizeof(struct site *));
    if (!w->sites || !w->moved)
        return fault_set(f, -ENOMEM, "out of memory for the end of the calibration");
    for (size_t i = 0; i < most; i++) {
        enum site_kind kind = forward_sites[i % 2];
        struct site *s = &m->layers[i / 2].sites[kind];
        if (!(s->calibration_amax > 0.0f)) {
            w->counts.unset++;
            continue;
        }
        struct scaler *next = (struct scaler *)(void *)((char *)w->staging->host + i * step);
        memcpy(next, site_mirror(s), step);
        scaler_calibrate(next, recipe_dtype(&m->recipe, kind), m->recipe.margin,
                         s->calibration_amax);
        w->moved[w->counts.set] = s;
        w->sites[w->counts.set++] = (struct apply_site){.site = site_state(s), .replace = next};
    }
    return 0;
}

static int check_finish(const struct model *m, struct fault *f)
{
    int rc = check_started(m, f);
    if (rc)
        return rc;
    if (m->recipe.kind != RECIPE_DELAYED)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "recipe of model %s is current, which keeps no scales; calibration needs "
                         "delayed",
                         m->name);
    if (m->scope)
        return fault_set(f, FP8D_EFAILED_PRECONDITION, "model %s has an open scope: end it first",
                         m->name);
    return 0;
}

int calibration_finish(struct model *m, calibration_done_cb done, void *arg, struct fault *f)
{
    int rc = check_finish(m, f);
    if (rc)
        return rc;
    struct finishing *w = mem_zalloc(sizeof *w);
    if (!w)
        return fault_set(f, -ENOMEM, "out of memory for the end of the calibration");
    op_init(&w->op, m->engine->o.exec, finishing_finish);
    w->model = model_ref(m);
    w->done = done;
    w->arg = arg;
    rc = stage(w, f);
    struct apply a = {w->sites, w->counts.set, m->recipe.algo, m->recipe.margin, false};
    if (!rc)
        rc = backend_apply(m->engine->queue, &a, f);
    if (rc) {
        finishing_free(w);
        return rc;
    }
    op_submit(&w->op, m->engine->queue);
    return 0;
}
