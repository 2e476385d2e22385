#include "daemon/engine/create.h"

#include "base/mem.h"
#include "base/text.h"
#include "daemon/engine/claim.h" /* CLAIM_FEATURE_STEP */
#include "daemon/engine/flight.h"
#include "daemon/engine/lease.h"
#include "daemon/engine/primary.h"
#include "daemon/engine/stage.h"
#include "daemon/engine/state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct create {
    struct op op;
    struct engine *engine;
    struct model *model;
    struct primary_cast *casts; /* one a layer */
    create_done_cb done;
    void *arg;
};

/* A layer whose tensors would bear the names of another's state could be saved, but not loaded. */
static int check_name(const char *name, const char *shown, struct fault *f)
{
    char weight[STATE_NAME_MAX + 16];
    size_t len = strlen(name);
    if (len > STATE_LAYER_MAX || !text_is_tensor_name(name, len))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "layers.name has %zu bytes, needed 1 to %d of UTF-8", len,
                         STATE_LAYER_MAX);
    (void)snprintf(weight, sizeof weight, "%s.weight", name);
    if (state_is_key(weight, &len))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "layers.name is \"%s\", which ends like the saved state of a layer",
                         shown);
    return 0;
}

static int check_layer(const struct create_layer *c, struct fault *f)
{
    char name[160];
    text_escape(name, sizeof name, c->name, strlen(c->name));
    const struct operand *w = &c->weight;
    int rc = check_name(c->name, name, f);
    if (rc)
        return rc;
    for (unsigned i = 0; i < 2; i++)
        if (w->rank != 2 || !w->dims[i] || w->dims[i] % CLAIM_FEATURE_STEP)
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "layer \"%s\": weight.dims has rank %u and %llu %s features, needed "
                             "[out, in] in multiples of %d",
                             name, w->rank, (unsigned long long)w->dims[i], i ? "in" : "out",
                             CLAIM_FEATURE_STEP);
    const struct operand *b = &c->bias;
    if (b->rank && (b->q || b->rank != 1 || b->dims[0] != w->dims[0]))
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "layer \"%s\": bias is %s of rank %u with %llu elements, needed F32, BF16 or "
            "F16 of [%llu]",
            name, dtype_name(operand_dtype(b)), b->rank, (unsigned long long)b->dims[0],
            (unsigned long long)w->dims[0]);
    return 0;
}

/* The operand's memory where the backend computes: shared on a unified backend, else copied there.
 */
static int own(struct create *c, const struct operand *in, const char *what, struct tensor *out,
               struct fault *f)
{
    struct engine *e = c->engine;
    *out = in->high;
    if (e->unified || in->high.buf->kind == BUFFER_DEVICE) {
        buffer_ref(out->buf);
        return 0;
    }
    *out = (struct tensor){.dtype = in->high.dtype, .rows = in->high.rows, .cols = in->high.cols};
    uint64_t bytes = operand_bytes(in);
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes, what, &out->buf, f);
    if (rc)
        return rc;
    return backend_copy(e->queue, out->buf, 0, in->high.buf, in->high.offset, bytes, f);
}

static int upload_sites(struct create *c, struct layer *l, struct fault *f)
{
    int rc = 0;
    for (unsigned k = 0; !rc && k < SITE_KINDS; k++)
        if (l->sites[k].state && !l->sites[k].state->host)
            rc = site_upload(&l->sites[k], c->engine->queue, f);
    return rc;
}

static int fill(struct create *c, size_t i, const struct create_layer *in, struct fault *f)
{
    const struct operand *w = &in->weight;
    struct layer *l = &c->model->layers[i];
    struct tensor high = {.rows = w->dims[0], .cols = w->dims[1]};
    struct tensor bias = {0};
    int rc = w->q ? 0 : own(c, w, "the weight", &high, f);
    if (!rc && in->bias.rank)
        rc = own(c, &in->bias, "the bias", &bias, f);
    if (bias.buf) {
        bias.rows = 1;
        bias.cols = in->bias.dims[0];
    }
    int filled = model_fill_layer(c->model, i, in->name, high, bias, rc ? &(struct fault){0} : f);
    if (w->q && !rc && !filled) {
        struct site *site = &l->sites[SITE_WEIGHT];
        /* As a load of such a file does: a later cast of this weight goes on at its scale. */
        if (recipe_dtype(&c->model->recipe, SITE_WEIGHT) == qtensor_info(w->q).fmt) {
            scaler_adopt(site_mirror(site), w->scale_inv);
            if (site->state->host)
                memcpy(site->state->host, site_mirror(site), scaler_bytes(site_mirror(site)->len));
        }
        struct cast_report report = {.scale = recipe_scale_of(w->scale_inv),
                                     .scale_inv = w->scale_inv};
        weight_make_primary(&l->weight, qtensor_ref(w->q), &report, DTYPE_NONE);
    }
    rc = rc ? rc : filled;
    return rc ? rc : upload_sites(c, l, f);
}

/* Everything that needs no compute. */
static int check_layers(const struct create_layer *layers, size_t count, struct fault *f)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < count; i++) {
        rc = check_layer(&layers[i], f);
        for (size_t k = 0; !rc && k < i; k++)
            if (!strcmp(layers[k].name, layers[i].name))
                rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "layers[%zu].name is that of layers[%zu]",
                               i, k);
    }
    return rc;
}

static int build(struct create *c, const struct create_layer *layers, size_t count,
                 bool primary_fp8, struct fault *f)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < count; i++)
        rc = fill(c, i, &layers[i], f);
    if (rc)
        return rc;
    model_finish(c->model);
    for (size_t i = 0; primary_fp8 && !rc && i < count; i++)
        if (!c->model->layers[i].weight.primary.q)
            rc = primary_enqueue(&c->model->layers[i], &c->model->recipe, c->engine,
                                 c->engine->queue, &c->casts[i], f);
    return rc;
}

static void create_free(struct create *c)
{
    for (size_t i = 0; c->casts && i < c->model->layer_count; i++)
        primary_drop(&c->casts[i]);
    mem_free(c->casts);
    model_unref(c->model);
    mem_free(c);
}

static void install(struct op *op)
{
    struct create *c = (struct create *)op;
    struct model *m = c->model;
    struct model *other;
    if (!op->fault.code && !engine_find(c->engine, m->name, &other, &(struct fault){0}))
        fault_set(&op->fault, FP8D_EALREADY_EXISTS, "model %s was loaded meanwhile", m->name);
    if (!op->fault.code && !engine_install(c->engine, m, &op->fault))
        model_ref(m); /* the registry has one, and the callback is shown the other */
    c->done(c->arg, &op->fault, op->fault.code ? NULL : m);
    create_free(c);
}

/* Scales that the casts gave to unset sites go to the backend, where its memory is another's,
 * before the model is there. */
static void finish(struct op *op)
{
    struct create *c = (struct create *)op;
    struct model *m = c->model;
    struct fault f = op->fault;
    bool sent = false;
    for (size_t i = 0; !f.code && i < m->layer_count; i++) {
        struct site *site = &m->layers[i].sites[SITE_WEIGHT];
        if (!c->casts[i].q || !primary_settle(&m->layers[i], &m->recipe, &c->casts[i]) ||
            site->state->host)
            continue;
        sent = true;
        (void)site_upload(site, c->engine->queue, &f);
    }
    if (!sent) {
        install(op);
        return;
    }
    op_init(op, c->engine->o.exec, install);
    op->fault = f;
    op_submit(op, c->engine->queue);
}

int create_start(struct lease *l, const char *name, const struct recipe *r,
                 const struct create_layer *layers, size_t count, bool primary_fp8,
                 create_done_cb done, void *arg, struct fault *f)
{
    struct model *old;
    struct fault none;
    if (!engine_find(l->engine, name, &old, &none))
        return fault_set(f, FP8D_EALREADY_EXISTS, "model %s is loaded already", name);
    struct create *c = mem_zalloc(sizeof *c);
    if (!c)
        return fault_set(f, -ENOMEM, "out of memory for model %s", name);
    op_init(&c->op, l->engine->o.exec, finish);
    c->engine = l->engine;
    c->done = done;
    c->arg = arg;
    int rc = model_new(l->engine, name, r, count, &c->model, f);
    if (rc) {
        mem_free(c);
        return rc;
    }
    c->model->creator_uid = l->uid;
    c->casts = mem_array(count, sizeof *c->casts);
    rc = c->casts ? check_layers(layers, count, f)
                  : fault_set(f, -ENOMEM, "out of memory for model %s", name);
    if (rc) {
        create_free(c);
        return rc;
    }
    /* From here on something may be enqueued: a fault stays in the op, which completes. */
    if (!flight_follow(l->engine, &c->op.fault))
        (void)build(c, layers, count, primary_fp8, &c->op.fault);
    op_submit(&c->op, l->engine->queue);
    return 0;
}
