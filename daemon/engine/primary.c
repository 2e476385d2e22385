#include "daemon/engine/primary.h"

#include "daemon/engine/engine.h"

#include <string.h>

int primary_enqueue(struct layer *l, const struct recipe *r, struct engine *e, struct queue *q,
                    struct primary_cast *out, struct fault *f)
{
    const struct scaler *site = site_mirror(&l->sites[SITE_WEIGHT]);
    int rc = engine_host_buffer(e, sizeof(struct cast_report), "the cast of a weight", &out->report,
                                f);
    if (rc)
        return rc;
    memset(out->report->host, 0, sizeof(struct cast_report));
    struct cast c = {
        .src = l->weight.high,
        .fmt = recipe_dtype(r, SITE_WEIGHT),
        .mode = site->set ? CAST_SITE : CAST_TENSOR,
        .margin = r->margin,
        .site = site_state(&l->sites[SITE_WEIGHT]),
        .report = out->report->data,
    };
    out->origin = l->weight.high.dtype;
    return qtensor_cast(q, e->o.ledger, &c, "the FP8 weight", &out->q, f);
}

bool primary_settle(struct layer *l, const struct recipe *r, struct primary_cast *c)
{
    const struct cast_report *report = c->report->host;
    struct site *s = &l->sites[SITE_WEIGHT];
    struct scaler *m = site_mirror(s);
    bool unset = !m->set && report->slot.amax > 0.0f;
    if (unset)
        scaler_calibrate(m, recipe_dtype(r, SITE_WEIGHT), r->margin, report->slot.amax);
    if (unset && s->state->host)
        memcpy(s->state->host, m, scaler_bytes(m->len));
    weight_make_primary(&l->weight, c->q, report, c->origin);
    c->q = NULL;
    primary_drop(c);
    return unset;
}

void primary_drop(struct primary_cast *c)
{
    qtensor_unref(c->q);
    buffer_unref(c->report);
    *c = (struct primary_cast){0};
}
