#include "daemon/engine/snapshot.h"

#include "daemon/engine/engine.h"
#include "daemon/engine/state.h"
#include "daemon/engine/state_optimizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct snapshot_piece *piece_new(struct snapshot *s, const char *name, enum dtype dtype,
                                        unsigned rank, uint64_t d0, uint64_t d1)
{
    struct snapshot_piece *p = &s->pieces[s->count];
    uint64_t n = (rank > 0 ? d0 : 1) * (rank > 1 ? d1 : 1);
    char *copy = arena_strndup(&s->arena, name, strlen(name));
    if (!copy || s->count == s->room)
        return NULL;
    *p = (struct snapshot_piece){
        .t = {.name = copy, .dtype = dtype, .rank = rank, .dims = {d0, d1}},
    };
    (void)dtype_bytes(dtype, n, &p->t.bytes);
    s->count++;
    return p;
}

/* A small tensor whose bytes are copied now. */
static int add_bytes(struct snapshot *s, const char *name, enum dtype dtype, unsigned rank,
                     uint64_t d0, const void *bytes)
{
    struct snapshot_piece *p = piece_new(s, name, dtype, rank, d0, 1);
    void *copy = p ? arena_alloc(&s->arena, p->t.bytes) : NULL;
    if (!copy)
        return -ENOMEM;
    memcpy(copy, bytes, p->t.bytes);
    p->bytes = copy;
    return 0;
}

static int add_tensor(struct snapshot *s, const char *name, const struct tensor *t, unsigned rank)
{
    struct snapshot_piece *p =
        piece_new(s, name, t->dtype, rank, rank == 2 ? t->rows : t->cols, t->cols);
    if (!p)
        return -ENOMEM;
    p->buffer = buffer_ref(t->buf);
    p->buffer_offset = t->offset;
    return 0;
}

/* Codes and the scalar of their factor, which the export fills in: never one without the other. */
static int add_codes(struct snapshot *s, const char *name, const char *factor_name,
                     struct qtensor *q)
{
    struct qtensor_info info = qtensor_info(q);
    struct snapshot_piece *p = piece_new(s, name, info.fmt, 2, info.rows, info.cols);
    if (!p)
        return -ENOMEM;
    p->codes = qtensor_ref(q);
    float none = 0.0f;
    if (add_bytes(s, factor_name, DTYPE_F32, 0, 1, &none))
        return -ENOMEM;
    s->pieces[s->count - 1].is_factor = true;
    p->factor_name = s->pieces[s->count - 1].t.name;
    return 0;
}

static int add_site(struct snapshot *s, const char *layer, enum site_kind kind,
                    const struct site *site)
{
    const struct scaler *m = site_mirror(site);
    float scaling[STATE_SCALING];
    uint64_t counters[STATE_COUNTERS];
    char name[STATE_NAME_MAX];
    state_put_site(site, scaling, counters);
    if (!state_site_key(name, layer, kind, "scaling") ||
        add_bytes(s, name, DTYPE_F32, 1, STATE_SCALING, scaling))
        return -ENOMEM;
    (void)state_site_key(name, layer, kind, "amax_history");
    if (add_bytes(s, name, DTYPE_F32, 1, m->len, m->history))
        return -ENOMEM;
    (void)state_site_key(name, layer, kind, "counters");
    return add_bytes(s, name, DTYPE_U64, 1, STATE_COUNTERS, counters);
}

static int add_cached(struct snapshot *s, const char *layer, const struct weight_copy *c)
{
    float cast[STATE_CACHED_CAST];
    uint64_t counters[STATE_CACHED_COUNTERS];
    char name[STATE_NAME_MAX];
    char factor[STATE_NAME_MAX];
    state_put_cached(c, cast, counters);
    if (!state_cached_key(name, layer, "weight") ||
        !state_cached_key(factor, layer, "weight_scale"))
        return -ENOMEM;
    if (add_codes(s, name, factor, c->q))
        return -ENOMEM;
    (void)state_cached_key(name, layer, "cast");
    if (add_bytes(s, name, DTYPE_F32, 1, STATE_CACHED_CAST, cast))
        return -ENOMEM;
    (void)state_cached_key(name, layer, "counters");
    return add_bytes(s, name, DTYPE_U64, 1, STATE_CACHED_COUNTERS, counters);
}

/* --- training --- */

static int add_moved(struct snapshot *s, const char *layer, unsigned p,
                     const struct optimizer_state *o)
{
    const struct tensor *const parts[] = {&o->master, &o->m, &o->v};
    char name[STATE_NAME_MAX];
    int rc = 0;
    for (unsigned i = 0; !rc && i < STATE_MOVED_PARTS; i++)
        if (parts[i]->buf)
            rc = state_optimizer_key(name, layer, state_moved_parts[p][i])
                     ? add_tensor(s, name, parts[i], p == STATE_WEIGHT ? 2 : 1)
                     : -ENOMEM;
    return rc;
}

static int add_gradient(struct snapshot *s, const struct layer *l)
{
    const struct gradient *g = &l->gradient;
    const uint64_t counters[STATE_GRADIENT_COUNTERS] = {g->contributions, g->nonfinite};
    char name[STATE_NAME_MAX];
    if (!g->held)
        return 0;
    if (!state_gradient_key(name, l->name, state_gradient_parts[STATE_GRADIENT_COUNTS]) ||
        add_bytes(s, name, DTYPE_U64, 1, STATE_GRADIENT_COUNTERS, counters))
        return -ENOMEM;
    (void)state_gradient_key(name, l->name, state_gradient_parts[STATE_GRADIENT_WEIGHT]);
    int rc = add_tensor(s, name, &g->weight, 2);
    (void)state_gradient_key(name, l->name, state_gradient_parts[STATE_GRADIENT_BIAS]);
    return !rc && g->bias.buf ? add_tensor(s, name, &g->bias, 1) : rc;
}

static int add_training(struct snapshot *s, const struct layer *l)
{
    char name[STATE_NAME_MAX];
    double own[STATE_OWN];
    int rc = 0;
    if (optimizer_has_own(&l->own)) {
        state_put_own(&l->own, own);
        rc = state_optimizer_key(name, l->name, "options")
                 ? add_bytes(s, name, DTYPE_F64, 1, STATE_OWN, own)
                 : -ENOMEM;
    }
    if (!rc)
        rc = add_moved(s, l->name, STATE_WEIGHT, &l->weight_state);
    if (!rc)
        rc = add_moved(s, l->name, STATE_BIAS, &l->bias_state);
    return rc ? rc : add_gradient(s, l);
}

static int add_origin(struct snapshot *s, const struct layer *l)
{
    const uint64_t number = l->weight.origin;
    char name[STATE_NAME_MAX];
    if (!l->weight.primary.q || !number)
        return 0;
    return state_origin_key(name, l->name) ? add_bytes(s, name, DTYPE_U64, 1, 1, &number) : -ENOMEM;
}

/* --- all of it --- */

static int add_layer(struct snapshot *s, const struct layer *l, bool no_optimizer)
{
    const struct weight *w = &l->weight;
    char name[STATE_NAME_MAX];
    char factor[STATE_NAME_MAX];
    (void)snprintf(name, sizeof name, "%s.weight", l->name);
    (void)snprintf(factor, sizeof factor, "%s.weight_scale", l->name);
    int rc =
        w->primary.q ? add_codes(s, name, factor, w->primary.q) : add_tensor(s, name, &w->high, 2);
    (void)snprintf(name, sizeof name, "%s.bias", l->name);
    if (!rc && w->bias.buf)
        rc = add_tensor(s, name, &w->bias, 1);
    for (unsigned k = 0; !rc && k < 3; k++)
        rc = add_site(s, l->name, state_sites[k], &l->sites[state_sites[k]]);
    if (!rc && w->train.q)
        rc = add_cached(s, l->name, &w->train);
    if (!rc)
        rc = add_origin(s, l);
    return rc || no_optimizer ? rc : add_training(s, l);
}

/* As the reference writer does: wide dtypes first, then by name, so that everything is aligned. */
static int by_layout(const void *a, const void *b)
{
    const struct snapshot_piece *x = a;
    const struct snapshot_piece *y = b;
    unsigned bx = dtype_bits(x->t.dtype);
    unsigned by = dtype_bits(y->t.dtype);
    if (bx != by)
        return bx > by ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

/* Sorting moves the pieces: factors are found again by name. */
static void sort(struct snapshot *s)
{
    qsort(s->pieces, s->count, sizeof *s->pieces, by_layout);
    for (size_t i = 0; i < s->count; i++) {
        struct snapshot_piece *p = &s->pieces[i];
        struct snapshot_piece key = {.t = {.name = p->factor_name, .dtype = DTYPE_F32}};
        if (!p->codes)
            continue;
        struct snapshot_piece *found =
            bsearch(&key, s->pieces, s->count, sizeof *s->pieces, by_layout);
        p->factor = (size_t)(found - s->pieces);
    }
}

static int add_model(struct snapshot *s, const struct model *m, bool no_optimizer)
{
    uint64_t model[STATE_MODEL] = {STATE_FORMAT, m->weight_version, m->frozen, m->calibrating};
    char *recipe = arena_alloc(&s->arena, STATE_RECIPE_MAX);
    char *optimizer = arena_alloc(&s->arena, STATE_OPTIMIZER_MAX);
    if (!recipe || !optimizer)
        return -ENOMEM;
    state_put_recipe(&m->recipe, recipe);
    s->meta[0] = (struct safetensors_meta){"format", "pt"};
    s->meta[1] = (struct safetensors_meta){"fp8d_format", "1"};
    s->meta[2] = (struct safetensors_meta){"fp8d_recipe", recipe};
    s->meta_count = 3;
    if (m->optimizer.set && !no_optimizer) {
        state_put_optimizer(&m->optimizer, optimizer);
        s->meta[s->meta_count++] = (struct safetensors_meta){STATE_OPTIMIZER_META, optimizer};
    }
    s->incarnation = m->incarnation;
    s->weight_version = m->weight_version;
    return add_bytes(s, STATE_MODEL_KEY, DTYPE_U64, 1, STATE_MODEL, model);
}

int snapshot_take(struct model *m, bool no_optimizer, struct snapshot *out, struct fault *f)
{
    struct snapshot s = {0};
    /* weight, factor, bias, 3 sites of 3, 4 of the cached copy, origin; the optimizer's options, 2
     * parameters of 3; 3 of a gradient */
    s.room = m->layer_count * (no_optimizer ? 17 : 27) + 1;
    arena_init(&s.arena, s.room * (STATE_NAME_MAX + sizeof *s.pieces + 256) +
                             m->layer_count * 3 * scaler_bytes(m->recipe.history_len) + 65536);
    s.pieces = arena_zalloc(&s.arena, s.room, sizeof *s.pieces);
    int rc = s.pieces ? add_model(&s, m, no_optimizer) : -ENOMEM;
    for (size_t i = 0; !rc && i < m->layer_count; i++)
        rc = add_layer(&s, &m->layers[i], no_optimizer);
    if (rc) {
        snapshot_fini(&s);
        return fault_set(f, rc, "out of memory for the list of what model %s is saved as", m->name);
    }
    sort(&s);
    rc = ledger_charge(m->engine->o.ledger, s.arena.used, "the list of what is saved", f);
    if (rc) {
        snapshot_fini(&s);
        return rc;
    }
    s.ledger = m->engine->o.ledger;
    s.charged = s.arena.used;
    *out = s;
    return 0;
}

void snapshot_fini(struct snapshot *s)
{
    for (size_t i = 0; s->pieces && i < s->count; i++) {
        buffer_unref(s->pieces[i].buffer);
        qtensor_unref(s->pieces[i].codes);
    }
    arena_fini(&s->arena);
    if (s->charged)
        ledger_release(s->ledger, s->charged);
    *s = (struct snapshot){0};
}
