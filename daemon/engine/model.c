#include "daemon/engine/model.h"

#include "base/mem.h"
#include "base/text.h"
#include "daemon/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int model_new(struct engine *e, const char *name, const struct recipe *r, size_t layers,
              struct model **out, struct fault *f)
{
    struct model *m = mem_zalloc(sizeof *m);
    if (!m)
        return fault_set(f, -ENOMEM, "out of memory for model %s", name);
    m->engine = e;
    m->refs = 1;
    m->recipe = *r;
    m->weight_version = 1;
    m->name = mem_strdup(name);
    m->layers = mem_array(layers, sizeof *m->layers);
    if (!m->name || !m->layers) {
        model_unref(m);
        return fault_set(f, -ENOMEM, "out of memory for model %s of %zu layers", name, layers);
    }
    m->layer_count = layers;
    *out = m;
    return 0;
}

struct model *model_ref(struct model *m)
{
    m->refs++;
    return m;
}

static void layer_fini(struct layer *l)
{
    weight_fini(&l->weight);
    gradient_fini(&l->gradient);
    optimizer_state_fini(&l->weight_state);
    optimizer_state_fini(&l->bias_state);
    for (unsigned k = 0; k < SITE_KINDS; k++)
        site_fini(&l->sites[k]);
    mem_free(l->name);
}

void model_unref(struct model *m)
{
    if (!m || --m->refs)
        return;
    assert(!m->scope);
    for (size_t i = 0; i < m->layer_count; i++)
        layer_fini(&m->layers[i]);
    mem_free(m->layers);
    mem_free(m->name);
    mem_free(m);
}

int model_fill_layer(struct model *m, size_t i, const char *name, struct tensor high,
                     struct tensor bias, struct fault *f)
{
    struct layer *l = &m->layers[i];
    l->out = high.rows;
    l->in = high.cols;
    l->weight.high = high;
    l->weight.bias = bias;
    l->weight.version = m->weight_version;
    l->name = mem_strdup(name);
    if (!l->name)
        return fault_set(f, -ENOMEM, "out of memory for the name of a layer");
    for (unsigned k = 0; k < SITE_KINDS; k++) {
        if (!site_exists(k))
            continue;
        int rc = site_init(&l->sites[k], m->engine, m->recipe.history_len, f);
        if (rc)
            return rc;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct layer *)a)->name, ((const struct layer *)b)->name);
}

void model_finish(struct model *m)
{
    qsort(m->layers, m->layer_count, sizeof *m->layers, by_name);
}

void model_renumber(struct model *m, uint64_t version)
{
    m->weight_version = version;
    for (size_t i = 0; i < m->layer_count; i++)
        weight_renumber(&m->layers[i].weight, version);
}

int model_check_here(const struct model *m, struct fault *f)
{
    if (!m->gone)
        return 0;
    return fault_set(f, FP8D_EFAILED_PRECONDITION,
                     "model %s was replaced or unloaded meanwhile; nothing was changed", m->name);
}

int model_check_counts(const struct model *m, struct fault *f)
{
    if (m->weight_version < MODEL_CHANGES_MAX && m->optimizer.steps < MODEL_CHANGES_MAX)
        return 0;
    return fault_set(f, FP8D_EFAILED_PRECONDITION,
                     "model %s has weight_version %llu and %llu steps, needed less than 2^62 of "
                     "both to change it",
                     m->name, (unsigned long long)m->weight_version,
                     (unsigned long long)m->optimizer.steps);
}

int model_find_layer(struct model *m, const char *name, struct layer **out, struct fault *f)
{
    struct layer key = {.name = (char *)(uintptr_t)name};
    struct layer *l = bsearch(&key, m->layers, m->layer_count, sizeof *m->layers, by_name);
    char shown[128];
    if (!l)
        return fault_set(f, FP8D_ENOT_FOUND, "layer \"%s\" is not in model %s",
                         text_escape(shown, sizeof shown, name, strlen(name)), m->name);
    *out = l;
    return 0;
}

uint64_t model_parameters(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->layer_count; i++) {
        const struct layer *l = &m->layers[i];
        n += l->in * l->out + (l->weight.bias.buf ? l->out : 0);
    }
    return n;
}

uint64_t model_bytes(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->layer_count; i++) {
        const struct layer *l = &m->layers[i];
        n += weight_bytes(&l->weight) + gradient_bytes(&l->gradient) +
             optimizer_state_bytes(&l->weight_state) + optimizer_state_bytes(&l->bias_state);
        for (unsigned k = 0; k < SITE_KINDS; k++)
            if (l->sites[k].state)
                n += l->sites[k].state->charged + l->sites[k].mirror_buf->charged;
    }
    return n;
}
