#include "daemon/engine/load_fill.h"

#include "base/text.h"
#include "daemon/engine/load_bytes.h"
#include "daemon/engine/load_optimizer.h"
#include "daemon/engine/load_route.h"
#include "daemon/engine/nancodes.h"
#include "daemon/engine/primary.h"
#include "daemon/engine/queuewait.h"

#include <string.h>

/* --- FP8 codes --- */

struct look {
    struct load *ld;
    const struct safetensors_tensor *t;
    _Atomic uint64_t nan, inf; /* several threads look */
};

static void look_at(void *arg, const unsigned char *bytes, size_t n)
{
    struct look *l = arg;
    struct nan_count c = {0};
    nan_count_add(&c, l->t->dtype, bytes, n);
    atomic_fetch_add(&l->nan, c.nan);
    atomic_fetch_add(&l->inf, c.inf);
}

/* NaN and Inf codes of a weight are unlikely to be meant. */
static int judge(struct look *l, struct fault *f)
{
    char name[256];
    const struct nan_count c = {atomic_load(&l->nan), atomic_load(&l->inf)};
    bool e5m2 = l->t->dtype == DTYPE_F8_E5M2;
    l->ld->report.nan_codes += c.nan + c.inf;
    if ((!c.nan && !c.inf) || l->ld->o.allow_nan)
        return 0;
    text_escape(name, sizeof name, l->t->name, strlen(l->t->name));
    if (!e5m2)
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "tensor \"%s\" holds %llu NaN codes (0x7f or 0xff), needed none; allow_nan "
            "loads it",
            name, (unsigned long long)c.nan);
    return fault_set(
        f, FP8D_EINVALID_ARGUMENT,
        "tensor \"%s\" holds %llu NaN codes (0x7d to 0x7f or 0xfd to 0xff) and %llu Inf "
        "codes (0x7c or 0xfc), needed none; allow_nan loads it",
        name, (unsigned long long)c.nan, (unsigned long long)c.inf);
}

static void note_converted(struct load *ld, const struct layer *l, enum dtype from,
                           const char *scale_from)
{
    char name[256];
    claim_line(&ld->claim, &ld->converted, "%s (from %s to %s%s)",
               text_escape(name, sizeof name, l->name, strlen(l->name)), dtype_name(from),
               dtype_name(weight_dtype(&l->weight)), scale_from);
}

static int fill_verbatim(struct load *ld, size_t i, struct queue *q, struct fault *f)
{
    const struct safetensors_tensor *t = ld->claim.layers[i].weight;
    struct load_part *p = &ld->parts[i];
    struct look look = {.ld = ld, .t = t};
    struct qtensor *made;
    int rc = load_bytes_all(ld, t, p->codes, q, look_at, &look, f);
    if (!rc)
        rc = judge(&look, f);
    if (!rc)
        rc = qtensor_adopt_buffer(q, t->dtype, t->dims[0], t->dims[1], p->codes, p->factor, &made,
                                  f);
    if (rc)
        return rc;
    p->codes = NULL;
    struct cast_report report = {.scale = recipe_scale_of(p->factor), .scale_inv = p->factor};
    struct weight *w = &ld->built->layers[i].weight;
    weight_make_primary(w, made, &report, w->origin); /* of a save; else DTYPE_NONE */
    return 0;
}

/* Some rows, from codes in ld->staging. */
static int widen_rows(struct load *ld, size_t i, uint64_t row, uint64_t rows, struct queue *q,
                      struct fault *f)
{
    const struct safetensors_tensor *t = ld->claim.layers[i].weight;
    struct tensor out = ld->built->layers[i].weight.high;
    struct qtensor *codes = NULL;
    out.offset = row * out.cols * (dtype_bits(out.dtype) / 8);
    out.rows = rows;
    int rc = qtensor_adopt(q, ld->engine->o.ledger, t->dtype, rows, out.cols, ld->staging, 0,
                           ld->parts[i].factor, "rows of an FP8 weight", &codes, f);
    if (rc)
        return rc;
    rc = qtensor_dequantize(q, codes, &out, f);
    struct fault late = {0};
    if (queue_wait(q, rc ? &late : f) && !rc)
        rc = f->code;
    qtensor_unref(codes);
    return rc;
}

static int fill_widened(struct load *ld, size_t i, struct queue *q, struct fault *f)
{
    const struct safetensors_tensor *t = ld->claim.layers[i].weight;
    struct look look = {.ld = ld, .t = t};
    uint64_t step = LOAD_BLOCK / t->dims[1] ? LOAD_BLOCK / t->dims[1] : 1;
    int rc = 0;
    for (uint64_t row = 0; !rc && row < t->dims[0]; row += step) {
        uint64_t rows = t->dims[0] - row < step ? t->dims[0] - row : step;
        uint64_t n = rows * t->dims[1];
        rc = load_bytes_block(ld, t, row * t->dims[1], (size_t)n, ld->staging->host, f);
        if (!rc)
            look_at(&look, ld->staging->host, (size_t)n);
        if (!rc)
            rc = widen_rows(ld, i, row, rows, q, f);
    }
    if (!rc)
        rc = judge(&look, f);
    if (rc)
        return rc;
    load_bytes_done(ld);
    note_converted(ld, &ld->built->layers[i], t->dtype, "");
    return 0;
}

/* --- high precision --- */

static int fill_cast(struct load *ld, size_t i, struct queue *q, struct fault *f)
{
    const struct safetensors_tensor *t = ld->claim.layers[i].weight;
    struct layer *l = &ld->built->layers[i];
    struct primary_cast cast = {0};
    struct fault late = {0};
    int rc = load_bytes_all(ld, t, ld->scratch, q, NULL, NULL, f);
    if (rc)
        return rc;
    l->weight.high = (struct tensor){
        .buf = buffer_ref(ld->scratch), .dtype = t->dtype, .rows = t->dims[0], .cols = t->dims[1]};
    buffer_unref(ld->parts[i].hold);
    ld->parts[i].hold = NULL;
    rc = primary_enqueue(l, &ld->built->recipe, ld->engine, q, &cast, f);
    if (queue_wait(q, rc ? &late : f) && !rc)
        rc = f->code;
    if (rc) {
        primary_drop(&cast);
        return rc;
    }
    bool own = primary_settle(l, &ld->built->recipe, &cast);
    if (own)
        rc = site_upload(&l->sites[SITE_WEIGHT], q, f);
    note_converted(ld, l, t->dtype, own ? ", with a scale from its own amax" : "");
    return rc;
}

static int fill_copy(struct load *ld, size_t i, struct queue *q, struct fault *f)
{
    const struct safetensors_tensor *t = ld->claim.layers[i].cached[SOURCE_CODES];
    struct load_part *p = &ld->parts[i];
    struct weight *w = &ld->built->layers[i].weight;
    struct qtensor *made;
    int rc = load_bytes_all(ld, t, p->copy_codes, q, NULL, NULL, f);
    if (!rc)
        rc = qtensor_adopt_buffer(q, t->dtype, t->dims[0], t->dims[1], p->copy_codes,
                                  p->copy.report.scale_inv, &made, f);
    if (rc)
        return rc;
    p->copy_codes = NULL;
    w->train = p->copy;
    w->train.q = made;
    w->train.key.version = w->version;
    return 0;
}

/* --- all of it --- */

static int fill_layer(struct load *ld, size_t i, struct queue *q, struct fault *f)
{
    const struct source *x = &ld->claim.layers[i];
    struct weight *w = &ld->built->layers[i].weight;
    int rc = 0;
    switch (load_route(ld, x)) {
    case ROUTE_HIGH:
        rc = load_bytes_all(ld, x->weight, w->high.buf, q, NULL, NULL, f);
        break;
    case ROUTE_VERBATIM:
        rc = fill_verbatim(ld, i, q, f);
        break;
    case ROUTE_CAST:
        rc = fill_cast(ld, i, q, f);
        break;
    case ROUTE_WIDEN:
        rc = fill_widened(ld, i, q, f);
        break;
    }
    if (!rc && x->bias)
        rc = load_bytes_all(ld, x->bias, w->bias.buf, q, NULL, NULL, f);
    if (!rc && load_route_keeps_copy(ld, x))
        rc = fill_copy(ld, i, q, f);
    return rc ? rc : load_optimizer_fill(ld, i, q, f);
}

static void note_weights(struct load *ld)
{
    struct claim *c = &ld->claim;
    size_t eval_only = 0;
    size_t dropped = 0;
    size_t unsaved = 0;
    for (size_t i = 0; i < c->layer_count; i++) {
        const struct weight *w = &ld->built->layers[i].weight;
        eval_only += weight_eval_only(w, &ld->built->recipe);
        unsaved += strlen(c->layers[i].name) > STATE_SAVED_MAX;
        dropped += source_has_copy(&c->layers[i]) && !w->train.q && !w->primary.q;
    }
    if (eval_only)
        claim_line(c, &c->notes,
                   "%zu layers have F8_E5M2 weights and are for eval only: mode train "
                   "needs fp8_format e4m3",
                   eval_only);
    if (unsaved)
        claim_line(c, &c->notes,
                   "%zu layers have names of more than %d bytes: this model cannot be saved", unsaved,
                   STATE_SAVED_MAX);
    if (dropped)
        claim_line(c, &c->notes,
                   "cached FP8 copies of %zu weights were dropped: the recipe in force "
                   "casts to %s",
                   dropped, dtype_name(recipe_dtype(&ld->built->recipe, SITE_WEIGHT)));
}

int load_fill(struct load *ld, struct queue *q, struct fault *f)
{
    struct fault late = {0};
    int rc = 0;
    for (size_t i = 0; !rc && i < ld->claim.layer_count; i++)
        rc = fill_layer(ld, i, q, f);
    /* Nothing that the queue still works on may be freed. */
    if (queue_wait(q, rc ? &late : f) && !rc)
        rc = f->code;
    if (!rc) {
        note_weights(ld);
        load_optimizer_note(ld);
    }
    return rc;
}
