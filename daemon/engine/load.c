#include "daemon/engine/load.h"

#include "base/text.h"
#include "daemon/engine/load_read.h"
#include "daemon/engine/roots.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static int copy_list(struct arena *a, char *const *in, size_t n, char *const **out)
{
    char **list = arena_zalloc(a, n + 1, sizeof *list);
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        list[i] = arena_strndup(a, in[i], strlen(in[i]));
        if (!list[i])
            return -ENOMEM;
    }
    *out = list;
    return 0;
}

static int copy_options(struct load *ld, const struct load_options *o)
{
    ld->o = *o;
    if (o->server_path) {
        ld->o.server_path = arena_strndup(&ld->arena, o->server_path, strlen(o->server_path));
        if (!ld->o.server_path)
            return -ENOMEM;
    }
    int rc = copy_list(&ld->arena, o->only, o->only_count, &ld->o.only);
    return rc ? rc : copy_list(&ld->arena, o->skip, o->skip_count, &ld->o.skip);
}

static int check_expect(const struct load *ld, struct fault *f)
{
    struct model *old;
    struct fault none;
    if (!ld->o.expect.incarnation && !ld->o.expect.weight_version)
        return 0;
    if (engine_find(ld->lease->engine, ld->o.model, &old, &none))
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "expect names incarnation %llu, weight_version %llu, but model %s is not "
                         "loaded",
                         (unsigned long long)ld->o.expect.incarnation,
                         (unsigned long long)ld->o.expect.weight_version, ld->o.model);
    return expect_check(&ld->o.expect, old, f);
}

int load_begin(struct lease *l, uint64_t id, const struct load_options *o, struct fault *f)
{
    int rc = lease_id_free(&l->loads, id, "load_id", f);
    if (rc)
        return rc;
    if (l->loads.count >= LOADS_MAX)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "this connection has %zu loads that did not end, the cap is %d",
                         l->loads.count, LOADS_MAX);
    struct load *ld = mem_zalloc(sizeof *ld);
    if (!ld)
        return fault_set(f, -ENOMEM, "out of memory for load %llu", (unsigned long long)id);
    ld->engine = l->engine;
    ld->lease = l;
    ld->id = id;
    ld->fd = -1;
    arena_init(&ld->arena, (size_t)2 << 20);
    rc = copy_options(ld, o);
    if (!rc)
        rc = check_expect(ld, f);
    else
        fault_set(f, rc, "out of memory for load %llu", (unsigned long long)id);
    if (!rc && idmap_put(&l->loads, id, ld))
        rc = fault_set(f, -ENOMEM, "out of memory for load %llu", (unsigned long long)id);
    if (rc) {
        arena_fini(&ld->arena);
        mem_free(ld);
    }
    return rc;
}

int load_find(struct lease *l, uint64_t id, struct load **out, struct fault *f)
{
    struct load *ld = idmap_get(&l->loads, id);
    if (!ld)
        return fault_set(f, FP8D_ENOT_FOUND, "load_id %llu is no load of this connection",
                         (unsigned long long)id);
    *out = ld;
    return 0;
}

static void close_file(struct load *ld)
{
    const struct io *io = ld->engine->o.io;
    if (ld->fd >= 0)
        (void)io->close(io->self, ld->fd);
    ld->fd = -1;
}

/* What the descriptor is gets looked at by the loader: a question to a stalled file system must not
 * hold up the engine. */
int load_attach(struct load *ld, const char *name, int fd, struct fault *f)
{
    if (ld->o.server_path)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "load %llu reads a server path; no descriptor is needed",
                         (unsigned long long)ld->id);
    if (ld->fd >= 0)
        return fault_set(
            f, FP8D_EUNIMPLEMENTED,
            "load %llu has a file already; checkpoints of several files are not supported "
            "yet",
            (unsigned long long)ld->id);
    text_escape(ld->file, sizeof ld->file, name, strlen(name));
    ld->fd = fd;
    return 0;
}

/* --- commit --- */

static int open_path(struct load *ld)
{
    const char *path = ld->o.server_path;
    text_escape(ld->file, sizeof ld->file, path, strlen(path));
    ld->fd = roots_open_file(ld->engine->o.io, ld->engine->o.load_roots, path, &ld->fault);
    if (ld->fd >= 0)
        return 0;
    (void)fault_at(&ld->fault, STAGE_FILE);
    return fault_wrap(&ld->fault, "%s", ld->file);
}

static void run(struct loader_job *job, struct queue *q)
{
    struct load *ld = (struct load *)job;
    int rc = 0;
    if (ld->o.server_path)
        rc = open_path(ld);
    if (!rc)
        (void)load_read(ld, q, &ld->fault);
    close_file(ld);
}

static void parts_free(struct load *ld)
{
    for (size_t i = 0; ld->parts && i < ld->claim.layer_count; i++) {
        buffer_unref(ld->parts[i].codes);
        buffer_unref(ld->parts[i].copy_codes);
        buffer_unref(ld->parts[i].hold);
    }
    mem_free(ld->parts);
    buffer_unref(ld->staging);
    buffer_unref(ld->scratch);
}

static void load_free(struct load *ld)
{
    close_file(ld);
    parts_free(ld);
    claim_fini(&ld->claim);
    safetensors_free(ld->header);
    model_unref(ld->built);
    arena_fini(&ld->arena);
    mem_free(ld);
}

static int swap(struct load *ld, struct fault *f)
{
    if (atomic_load(&ld->cancel))
        return fault_set(f, FP8D_ECANCELLED, "the load was cancelled before its swap");
    int rc = check_expect(ld, f);
    if (!rc)
        rc = engine_install(ld->lease->engine, ld->built, f);
    if (rc)
        return rc;
    ld->report.incarnation = ld->built->incarnation;
    ld->report.weight_version = ld->built->weight_version;
    ld->built = NULL;
    return 0;
}

static void unlist(struct load *ld)
{
    struct load **at = &ld->engine->loads;
    while (*at != ld)
        at = &(*at)->next;
    *at = ld->next;
}

static int list(struct load *ld, struct fault *f)
{
    const struct load *other = ld->engine->loads;
    while (other && strcmp(other->o.model, ld->o.model) != 0)
        other = other->next;
    if (other)
        return fault_set(
            f, FP8D_EABORTED,
            "load %llu of connection %llu (pid %d) loads model %s at this moment, needed "
            "none",
            (unsigned long long)other->id, (unsigned long long)other->lease->conn,
            (int)other->lease->pid, ld->o.model);
    ld->next = ld->engine->loads;
    ld->engine->loads = ld;
    return 0;
}

static void finish(struct loader_job *job)
{
    struct load *ld = (struct load *)job;
    if (!ld->fault.code)
        (void)swap(ld, &ld->fault);
    if (ld->fault.code)
        (void)fault_at(&ld->fault, STAGE_QUEUE);
    unlist(ld);
    /* Out of the lease first: the callback may end the lease, or begin another load of this id. */
    idmap_remove(&ld->lease->loads, ld->id);
    ld->lease = NULL;
    ld->done(ld->arg, &ld->fault, ld->fault.code ? NULL : &ld->report);
    load_free(ld);
}

static void on_progress(struct exec_task *task)
{
    struct load *ld = (struct load *)(void *)((char *)task - offsetof(struct load, progress_task));
    struct load_progress p = {
        .bytes_done = atomic_load(&ld->bytes_done),
        .bytes_total = atomic_load(&ld->bytes_total),
        .tensors_done = atomic_load(&ld->tensors_done),
        .tensors_total = atomic_load(&ld->tensors_total),
        .stage = "read",
    };
    atomic_store(&ld->progress_posted, false);
    ld->on_progress(ld->arg, &p);
}

int load_commit(struct load *ld, load_progress_cb progress, load_done_cb done, void *arg,
                struct fault *f)
{
    if (ld->fd < 0 && !ld->o.server_path)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "load %llu has no file: attach a descriptor first",
                         (unsigned long long)ld->id);
    int rc = list(ld, f);
    if (rc)
        return rc;
    ld->on_progress = progress;
    ld->done = done;
    ld->arg = arg;
    ld->committing = true;
    ld->progress_task.run = on_progress;
    ld->job.run = run;
    ld->job.finish = finish;
    loader_post(ld->lease->engine->loader, &ld->job);
    return 0;
}

void load_cancel(struct load *ld)
{
    atomic_store(&ld->cancel, true);
}

void load_end(struct load *ld)
{
    idmap_remove(&ld->lease->loads, ld->id);
    load_free(ld);
}
