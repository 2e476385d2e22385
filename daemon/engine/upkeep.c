#include "daemon/engine/upkeep.h"

#include "base/mem.h"
#include "daemon/engine/scope.h"
#include "daemon/engine/sitechange.h"

#include <errno.h>

struct upkeep {
    upkeep_done_cb done;
    void *arg;
    struct recipe recipe; /* in force afterwards */
    bool keeps_copies;
    bool forget;          /* calibration is dropped too */
};

struct recipe recipe_wished(const struct recipe *base, const struct recipe_wish *wish)
{
    struct recipe r = *base;
    r.kind = wish->kind ? wish->kind : r.kind;
    r.format = wish->format ? wish->format : r.format;
    r.algo = wish->algo ? wish->algo : r.algo;
    r.history_len = wish->history_len ? wish->history_len : r.history_len;
    r.margin = wish->margin >= 0 ? wish->margin : r.margin;
    r.fprop = wish->fprop ? wish->fprop : r.fprop;
    return r;
}

int upkeep_check_idle(const struct model *m, const char *what, struct fault *f)
{
    if (m->scope)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "%s: model %s has an open scope %llu of connection %llu, needed none", what,
                         m->name, (unsigned long long)m->scope->id,
                         (unsigned long long)m->scope->lease->conn);
    if (m->contexts)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "%s: model %s has %u open contexts, needed none", what, m->name,
                         m->contexts);
    return 0;
}

static bool all_sites(const struct layer *l, enum site_kind kind)
{
    (void)l;
    (void)kind;
    return true;
}

static bool no_site(const struct layer *l, enum site_kind kind)
{
    (void)l;
    (void)kind;
    return false;
}

static void finish(struct sitechange *c)
{
    struct upkeep *u = c->arg;
    struct model *m = c->model;
    if (!c->op.fault.code) {
        m->recipe = u->recipe;
        for (size_t i = 0; i < m->layer_count; i++) {
            if (!u->keeps_copies)
                weight_drop_copies(&m->layers[i].weight);
            for (unsigned k = 0; u->forget && k < SITE_KINDS; k++) {
                struct site *s = &m->layers[i].sites[k];
                s->calibration_amax = 0.0f;
                s->calibration_seen = false;
                s->uncalibrated_casts = 0;
            }
        }
        m->calibrating = m->calibrating && !u->forget;
    }
    u->done(u->arg, &c->op.fault, (uint32_t)c->count);
    mem_free(u);
}

static int prepare(struct model *m, const struct recipe *r, upkeep_done_cb done, void *arg,
                   struct upkeep **u, struct sitechange **c, struct fault *f)
{
    *u = mem_zalloc(sizeof **u);
    if (!*u)
        return fault_set(f, -ENOMEM, "out of memory for a change of scaling state");
    bool sums = recipe_differs_in_sums_alone(&m->recipe, r);
    **u = (struct upkeep){.done = done, .arg = arg, .recipe = *r, .keeps_copies = sums};
    int rc = sitechange_new(m, r->history_len, sums ? no_site : all_sites, c, f);
    if (rc)
        mem_free(*u);
    return rc;
}

int upkeep_reset(struct model *m, upkeep_done_cb done, void *arg, struct fault *f)
{
    struct upkeep *u;
    struct sitechange *c;
    int rc = upkeep_check_idle(m, "reset", f);
    if (!rc)
        rc = prepare(m, &m->recipe, done, arg, &u, &c, f);
    if (rc)
        return rc;
    u->forget = true;
    for (size_t i = 0; i < c->count; i++)
        scaler_reset(sitechange_scaler(&c->items[i]));
    sitechange_commit(c, finish, u);
    return 0;
}

int upkeep_recipe(struct model *m, const struct recipe *r, upkeep_done_cb done, void *arg,
                  struct fault *f)
{
    struct upkeep *u;
    struct sitechange *c;
    int rc = recipe_check(r, f);
    if (!rc)
        rc = upkeep_check_idle(m, "recipe", f);
    if (!rc)
        rc = prepare(m, r, done, arg, &u, &c, f);
    if (rc)
        return rc;
    for (size_t i = 0; i < c->count; i++)
        if (recipe_dtype(&m->recipe, c->items[i].kind) != recipe_dtype(r, c->items[i].kind))
            scaler_reset(sitechange_scaler(&c->items[i]));
    sitechange_commit(c, finish, u);
    return 0;
}
