#include "daemon/engine/scope.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

int scope_begin(struct lease *l, uint64_t id, struct model *m, struct scope **out, struct fault *f)
{
    int rc = lease_id_free(&l->scopes, id, "scope_id", f);
    if (rc)
        return rc;
    if (m->scope && m->scope->lease == l)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "scope %llu of this connection is already open on model %s",
                         (unsigned long long)m->scope->id, m->name);
    rc = scope_check_train(m, l, f);
    if (rc)
        return rc;
    struct scope *s = mem_zalloc(sizeof *s);
    if (!s || idmap_put(&l->scopes, id, s)) {
        mem_free(s);
        return fault_set(f, -ENOMEM, "out of memory for scope %llu", (unsigned long long)id);
    }
    *s = (struct scope){.lease = l, .id = id, .model = model_ref(m)};
    (void)snprintf(s->name, sizeof s->name, "%s", m->name);
    m->scope = s;
    l->engine->scopes++;
    *out = s;
    return 0;
}

int scope_find(struct lease *l, uint64_t id, struct scope **out, struct fault *f)
{
    struct scope *s = idmap_get(&l->scopes, id);
    if (!s)
        return fault_set(f, FP8D_ENOT_FOUND, "scope_id %llu is no open scope of this connection",
                         (unsigned long long)id);
    *out = s;
    return 0;
}

int scope_check_train(const struct model *m, const struct lease *l, struct fault *f)
{
    if (!m->scope || m->scope->lease == l)
        return 0;
    const struct lease *h = m->scope->lease;
    return fault_set(f, FP8D_EFAILED_PRECONDITION,
                     "model %s has an open scope %llu, held by connection %llu (pid %ld, uid %lu)",
                     m->name, (unsigned long long)m->scope->id, (unsigned long long)h->conn,
                     (long)h->pid, (unsigned long)h->uid);
}

static struct scope_part *peek(const struct scope *s, const struct layer *layer)
{
    for (size_t i = 0; i < s->part_count; i++)
        if (s->parts[i].layer == layer)
            return &s->parts[i];
    return NULL;
}

const struct scope_part *scope_peek(const struct model *m, const struct layer *layer)
{
    return m->scope ? peek(m->scope, layer) : NULL;
}

int scope_reserve(struct scope *s, struct fault *f)
{
    if (s->part_count < s->part_room)
        return 0;
    size_t room = s->part_room ? s->part_room * 2 : 8;
    struct scope_part *bigger = mem_realloc(s->parts, room * sizeof *bigger);
    if (!bigger)
        return fault_set(f, -ENOMEM, "out of memory for scope %llu", (unsigned long long)s->id);
    s->parts = bigger;
    s->part_room = room;
    return 0;
}

struct scope_part *scope_part(struct scope *s, struct layer *layer)
{
    struct scope_part *p = peek(s, layer);
    if (p)
        return p;
    assert(s->part_count < s->part_room);
    p = &s->parts[s->part_count++];
    *p = (struct scope_part){.layer = layer};
    return p;
}

void scope_orphan(struct scope *s)
{
    s->orphan = true;
    s->model->scope = NULL;
    if (s->ending)
        return; /* its apply writes to the model's sites: it runs to its end */
    s->part_count = 0;
    model_unref(s->model);
    s->model = NULL;
}

void scope_end_dropped(struct scope *s)
{
    assert(!s->ending);
    idmap_remove(&s->lease->scopes, s->id);
    s->lease->engine->scopes--;
    if (s->model && s->model->scope == s)
        s->model->scope = NULL;
    model_unref(s->model);
    mem_free(s->parts);
    mem_free(s);
}

void scope_apply_sites(struct layer *l, const struct recipe *r, const struct amax_slot *input,
                       const struct amax_slot *weight, void *mirrors, struct apply_site out[2])
{
    size_t step = scaler_bytes(r->history_len);
    out[0] = (struct apply_site){
        .site = site_state(&l->sites[SITE_INPUT]),
        .slot = input,
        .mirror = mirrors,
        .fmt = recipe_dtype(r, SITE_INPUT),
    };
    out[1] = (struct apply_site){
        .site = site_state(&l->sites[SITE_WEIGHT]),
        .slot = weight,
        .mirror = (struct scaler *)(void *)((char *)mirrors + step),
        .fmt = recipe_dtype(r, SITE_WEIGHT),
    };
}

void scope_refresh_sites(struct layer *l, const struct apply_site in[2])
{
    site_refresh(&l->sites[SITE_INPUT], in[0].mirror);
    site_refresh(&l->sites[SITE_WEIGHT], in[1].mirror);
}

/* --- the end, asynchronous --- */

struct ending {
    struct op op;
    struct scope *scope;
    struct buffer *staging; /* slots of all parts, then mirrors of all parts */
    struct apply_site *sites;
    scope_done_cb done;
    void *arg;
};

static void ending_finish(struct op *op)
{
    struct ending *e = (struct ending *)op;
    struct scope *s = e->scope;
    uint32_t updated = 0;
    uint32_t skipped = 0;
    for (size_t i = 0; !op->fault.code && i < s->part_count; i++) {
        struct layer *l = s->parts[i].layer;
        for (unsigned k = 0; k < 2; k++) {
            const struct scaler *old = site_mirror(&l->sites[k ? SITE_WEIGHT : SITE_INPUT]);
            bool moved = e->sites[2 * i + k].mirror->updates != old->updates;
            updated += moved;
            skipped += !moved;
        }
        scope_refresh_sites(l, &e->sites[2 * i]);
    }
    if (s->orphan && !op->fault.code)
        fault_set(&op->fault, FP8D_EFAILED_PRECONDITION,
                  "scope %llu ended without an update: model %s was replaced or unloaded meanwhile",
                  (unsigned long long)s->id, s->model->name);
    s->ending = false;
    if (!op->fault.code || s->orphan)
        scope_end_dropped(s);
    e->done(e->arg, &op->fault, updated, skipped);
    buffer_unref(e->staging);
    mem_free(e->sites);
    mem_free(e);
}

static int ending_enqueue(struct ending *e)
{
    struct scope *s = e->scope;
    const struct recipe *r = &s->model->recipe;
    struct engine *engine = s->lease->engine;
    struct fault *f = &e->op.fault;
    uint64_t slot_bytes = 2 * sizeof(struct amax_slot);
    uint64_t step = scaler_bytes(r->history_len);
    int rc = engine_host_buffer(engine, s->part_count * (2 * step + slot_bytes), "the scope's end",
                                &e->staging, f);
    if (rc)
        return rc;
    e->sites = mem_array(2 * s->part_count, sizeof *e->sites);
    if (!e->sites)
        return fault_set(f, -ENOMEM, "out of memory for the end of scope %llu",
                         (unsigned long long)s->id);
    char *mirrors = e->staging->data;
    struct amax_slot *slots = (struct amax_slot *)(void *)(mirrors + s->part_count * 2 * step);
    for (size_t i = 0; i < s->part_count; i++) {
        slots[2 * i] = s->parts[i].input;
        slots[2 * i + 1] = s->parts[i].weight;
        scope_apply_sites(s->parts[i].layer, r, &slots[2 * i], &slots[2 * i + 1],
                          mirrors + i * 2 * step, &e->sites[2 * i]);
    }
    struct apply a = {e->sites, 2 * s->part_count, r->algo, r->margin, s->model->frozen};
    return backend_apply(engine->queue, &a, f);
}

void scope_end(struct scope *s, scope_done_cb done, void *arg)
{
    struct fault none = {0};
    if (s->orphan) {
        fault_set(&none, FP8D_EFAILED_PRECONDITION,
                  "scope %llu ended without an update: model %s was replaced or unloaded",
                  (unsigned long long)s->id, s->name);
    } else if (s->part_count && s->model->recipe.kind == RECIPE_DELAYED) {
        struct ending *e = mem_zalloc(sizeof *e);
        if (e) {
            op_init(&e->op, s->lease->engine->o.exec, ending_finish);
            e->scope = s;
            e->done = done;
            e->arg = arg;
            s->ending = true;
            (void)ending_enqueue(e); /* the fault stays in e->op */
            op_submit(&e->op, s->lease->engine->queue);
            return;
        }
        fault_set(&none, -ENOMEM, "out of memory for the end of scope %llu; it is still open",
                  (unsigned long long)s->id);
        done(arg, &none, 0, 0);
        return;
    }
    scope_end_dropped(s);
    done(arg, &none, 0, 0);
}
