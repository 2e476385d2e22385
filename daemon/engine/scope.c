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

/* Requests that have room for a part and have not made it: one, and one ahead. */
#define SCOPE_RESERVED_MAX 2

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
    if (s->part_count + SCOPE_RESERVED_MAX <= s->part_room)
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

struct apply_site scope_apply_site(const struct layer *l, enum site_kind kind,
                                   const struct recipe *r, const struct amax_slot *slot,
                                   void *mirror)
{
    return (struct apply_site){
        .site = site_state(&l->sites[kind]),
        .slot = slot,
        .mirror = mirror,
        .fmt = recipe_dtype(r, kind),
    };
}

/* --- the end, asynchronous --- */

struct ending {
    struct op op;
    struct scope *scope;
    struct buffer *staging; /* slots of all sites, then mirrors of all sites */
    struct apply_site *sites;
    struct site **of; /* each one's */
    size_t count;
    scope_done_cb done;
    void *arg;
};

static void ending_finish(struct op *op)
{
    struct ending *e = (struct ending *)op;
    struct scope *s = e->scope;
    uint32_t updated = 0;
    uint32_t skipped = 0;
    for (size_t i = 0; !op->fault.code && i < e->count; i++) {
        bool moved = e->sites[i].mirror->updates != site_mirror(e->of[i])->updates;
        updated += moved;
        skipped += !moved;
        site_refresh(e->of[i], e->sites[i].mirror);
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
    mem_free(e->of);
    mem_free(e);
}

static size_t count_sites(const struct scope *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->part_count; i++)
        for (unsigned k = 0; k < SITE_KINDS; k++)
            n += s->parts[i].ran[k];
    return n;
}

/* Every site that ran, its slot and its mirror in the staging memory. */
static void ending_fill(struct ending *e)
{
    const struct scope *s = e->scope;
    const struct recipe *r = &s->model->recipe;
    uint64_t step = scaler_bytes(r->history_len);
    char *mirrors = e->staging->data;
    struct amax_slot *slots = (struct amax_slot *)(void *)(mirrors + e->count * step);
    size_t n = 0;
    for (size_t i = 0; i < s->part_count; i++)
        for (unsigned k = 0; k < SITE_KINDS; k++) {
            const struct scope_part *p = &s->parts[i];
            if (!p->ran[k])
                continue;
            slots[n] = p->slot[k];
            e->sites[n] = scope_apply_site(p->layer, k, r, &slots[n], mirrors + n * step);
            e->of[n++] = &p->layer->sites[k];
        }
}

static int ending_enqueue(struct ending *e)
{
    struct scope *s = e->scope;
    const struct recipe *r = &s->model->recipe;
    struct engine *engine = s->lease->engine;
    struct fault *f = &e->op.fault;
    e->count = count_sites(s);
    uint64_t each = scaler_bytes(r->history_len) + sizeof(struct amax_slot);
    int rc = engine_host_buffer(engine, e->count * each, "the scope's end", &e->staging, f);
    if (rc)
        return rc;
    e->sites = mem_array(e->count, sizeof *e->sites);
    e->of = mem_array(e->count, sizeof *e->of);
    if (!e->sites || !e->of)
        return fault_set(f, -ENOMEM, "out of memory for the end of scope %llu",
                         (unsigned long long)s->id);
    ending_fill(e);
    struct apply a = {e->sites, e->count, r->algo, r->margin, s->model->frozen};
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
