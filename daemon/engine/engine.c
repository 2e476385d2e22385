#include "daemon/engine/engine.h"

#include "base/mem.h"
#include "base/text.h"
#include "daemon/engine/loader.h"
#include "daemon/engine/model.h"
#include "daemon/engine/scope.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

/* Incarnations start at the second of the start, shifted by 2^20: no two starts of the daemon give
 * the same number unless a million loads happen within every second of its life. */
static uint64_t first_incarnation(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ((uint64_t)ts.tv_sec << 20) + 1;
}

int engine_new(const struct engine_options *o, struct engine **out, struct fault *f)
{
    struct engine *e = mem_zalloc(sizeof *e);
    if (!e)
        return fault_set(f, -ENOMEM, "out of memory for the engine");
    struct backend_info info;
    backend_info(o->backend, &info);
    e->o = *o;
    e->unified = info.unified;
    e->exec = *o->exec;
    e->o.exec = &e->exec;
    if (e->unified) /* who computes there needs the cores that others would look from */
        e->exec.under_way = NULL;
    e->next_incarnation = first_incarnation();
    e->started_ns = o->exec->now(o->exec->self);
    int rc = queue_open(o->backend, "engine", &e->queue, f);
    if (!rc)
        rc = loader_new(e, &e->loader, f);
    if (rc) {
        engine_free(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    loader_free(e->loader);
    while (e->model_count)
        engine_remove(e, e->models[e->model_count - 1]);
    mem_free(e->models);
    queue_close(e->queue);
    mem_free(e);
}

/* Index of the name, or of where it belongs. */
static size_t place_of(const struct engine *e, const char *name, bool *found)
{
    size_t lo = 0;
    size_t hi = e->model_count;
    *found = false;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int order = strcmp(e->models[mid]->name, name);
        if (order == 0) {
            *found = true;
            return mid;
        }
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int engine_find(struct engine *e, const char *name, struct model **out, struct fault *f)
{
    bool found;
    size_t i = place_of(e, name, &found);
    char shown[140];
    if (!found)
        return fault_set(f, FP8D_ENOT_FOUND, "model \"%s\" is not loaded",
                         text_escape(shown, sizeof shown, name, strlen(name)));
    *out = e->models[i];
    return 0;
}

static int make_room(struct engine *e, struct fault *f)
{
    if (e->model_count < e->model_room)
        return 0;
    size_t room = e->model_room ? e->model_room * 2 : 8;
    struct model **bigger = mem_realloc(e->models, room * sizeof *bigger);
    if (!bigger)
        return fault_set(f, -ENOMEM, "out of memory for the list of models");
    e->models = bigger;
    e->model_room = room;
    return 0;
}

/* The model left its name: scopes end without an update, contexts keep it alive. */
static void let_go(struct model *m)
{
    m->gone = true;
    if (m->scope)
        scope_orphan(m->scope);
    model_unref(m);
}

int engine_install(struct engine *e, struct model *m, struct fault *f)
{
    int rc = make_room(e, f);
    if (rc)
        return rc;
    bool found;
    size_t i = place_of(e, m->name, &found);
    if (found)
        rc = model_check_counts(e->models[i], f);
    if (rc)
        return rc;
    m->incarnation = e->next_incarnation++;
    if (found) {
        struct model *old = e->models[i];
        if (m->weight_version <= old->weight_version)
            model_renumber(m, old->weight_version + 1);
        e->models[i] = m;
        let_go(old);
        return 0;
    }
    memmove(e->models + i + 1, e->models + i, (e->model_count - i) * sizeof(struct model *));
    e->models[i] = m;
    e->model_count++;
    return 0;
}

void engine_remove(struct engine *e, struct model *m)
{
    bool found;
    size_t i = place_of(e, m->name, &found);
    assert(found && e->models[i] == m);
    e->model_count--;
    memmove(e->models + i, e->models + i + 1, (e->model_count - i) * sizeof(struct model *));
    let_go(m);
}

int engine_host_buffer(struct engine *e, uint64_t bytes, const char *what, struct buffer **out,
                       struct fault *f)
{
    return buffer_new(e->o.backend, e->o.ledger, BUFFER_HOST, bytes, what, out, f);
}

int expect_check(const struct expect *x, const struct model *m, struct fault *f)
{
    if (x->incarnation && x->incarnation != m->incarnation)
        return fault_set(
            f, FP8D_EFAILED_PRECONDITION, "expect.incarnation is %llu, model %s has %llu",
            (unsigned long long)x->incarnation, m->name, (unsigned long long)m->incarnation);
    if (x->weight_version && x->weight_version != m->weight_version)
        return fault_set(
            f, FP8D_EFAILED_PRECONDITION, "expect.weight_version is %llu, model %s has %llu",
            (unsigned long long)x->weight_version, m->name, (unsigned long long)m->weight_version);
    return 0;
}
