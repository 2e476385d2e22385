#include "daemon/engine/sitechange.h"

#include "base/mem.h"
#include "daemon/engine/engine.h"

#include <errno.h>

static int add(struct sitechange *c, struct layer *l, enum site_kind kind, uint32_t len,
               struct fault *f)
{
    struct sitechange_item *item = &c->items[c->count];
    int rc = site_init(&item->next, c->model->engine, len, f);
    if (rc)
        return rc;
    item->layer = l;
    item->kind = kind;
    scaler_resize(site_mirror(&item->next), site_mirror(&l->sites[kind]));
    c->count++;
    return 0;
}

int sitechange_new(struct model *m, uint32_t history_len,
                   bool (*wants)(const struct layer *l, enum site_kind kind), struct sitechange **out,
                   struct fault *f)
{
    struct sitechange *c = mem_zalloc(sizeof *c);
    if (!c)
        return fault_set(f, -ENOMEM, "out of memory for a change of scaling state");
    c->model = model_ref(m);
    c->items = mem_array(m->layer_count * SITE_KINDS + 1, sizeof *c->items);
    int rc = c->items ? 0 : fault_set(f, -ENOMEM, "out of memory for a change of scaling state");
    for (size_t i = 0; !rc && i < m->layer_count; i++)
        for (unsigned k = 0; !rc && k < SITE_KINDS; k++)
            if (site_exists(k) && wants(&m->layers[i], k))
                rc = add(c, &m->layers[i], k, history_len, f);
    if (rc) {
        sitechange_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

struct scaler *sitechange_scaler(struct sitechange_item *item)
{
    return site_mirror(&item->next);
}

void sitechange_free(struct sitechange *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->count; i++)
        site_fini(&c->items[i].next);
    mem_free(c->items);
    model_unref(c->model);
    mem_free(c);
}

/* The old scaler's memory goes with the change. */
static void swap(struct sitechange_item *item)
{
    struct site *s = &item->layer->sites[item->kind];
    struct buffer *state = s->state;
    struct buffer *mirror = s->mirror_buf;
    s->state = item->next.state;
    s->mirror_buf = item->next.mirror_buf;
    item->next.state = state;
    item->next.mirror_buf = mirror;
}

static void finish(struct op *op)
{
    struct sitechange *c = (struct sitechange *)op;
    if (!op->fault.code)
        (void)model_check_here(c->model, &op->fault);
    for (size_t i = 0; !op->fault.code && i < c->count; i++)
        swap(&c->items[i]);
    c->done(c);
    sitechange_free(c);
}

static int enqueue(struct sitechange *c, struct fault *f)
{
    struct apply_site *sites = mem_array(c->count + 1, sizeof *sites);
    if (!sites)
        return fault_set(f, -ENOMEM, "out of memory for a change of scaling state");
    for (size_t i = 0; i < c->count; i++)
        sites[i] = (struct apply_site){
            .site = site_state(&c->items[i].next),
            .replace = c->items[i].next.mirror_buf->data,
        };
    struct apply a = {sites, c->count, AMAX_MAX, 0, false};
    int rc = backend_apply(c->model->engine->queue, &a, f);
    mem_free(sites);
    return rc;
}

void sitechange_commit(struct sitechange *c, void (*done)(struct sitechange *c), void *arg)
{
    op_init(&c->op, c->model->engine->o.exec, finish);
    c->done = done;
    c->arg = arg;
    if (c->count)
        (void)enqueue(c, &c->op.fault);
    op_submit(&c->op, c->model->engine->queue);
}
