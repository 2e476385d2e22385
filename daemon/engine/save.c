#include "daemon/engine/save.h"

#include "base/mem.h"
#include "base/text.h"
#include "daemon/engine/save_write.h"
#include "daemon/engine/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>

int save_begin(struct lease *l, uint64_t id, const struct save_options *o, struct fault *f)
{
    int rc = lease_id_free(&l->saves, id, "save_id", f);
    if (rc)
        return rc;
    if (l->saves.count >= SAVES_MAX)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "this connection has %zu saves that did not end, the cap is %d",
                         l->saves.count, SAVES_MAX);
    struct save *s = mem_zalloc(sizeof *s);
    if (!s)
        return fault_set(f, -ENOMEM, "out of memory for save %llu", (unsigned long long)id);
    s->engine = l->engine;
    s->lease = l;
    s->conn = l->conn;
    s->id = id;
    s->o = *o;
    s->fd = -1;
    if (o->server_path)
        s->o.server_path = s->server_path = mem_strdup(o->server_path);
    if ((o->server_path && !s->server_path) || idmap_put(&l->saves, id, s)) {
        mem_free(s->server_path);
        mem_free(s);
        return fault_set(f, -ENOMEM, "out of memory for save %llu", (unsigned long long)id);
    }
    return 0;
}

int save_find(struct lease *l, uint64_t id, struct save **out, struct fault *f)
{
    struct save *s = idmap_get(&l->saves, id);
    if (!s)
        return fault_set(f, FP8D_ENOT_FOUND, "save_id %llu is no save of this connection",
                         (unsigned long long)id);
    *out = s;
    return 0;
}

int save_attach(struct save *s, const char *name, int fd, struct fault *f)
{
    if (s->server_path)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "save %llu writes a server path; no descriptor is needed",
                         (unsigned long long)s->id);
    if (s->fd >= 0)
        return fault_set(f, FP8D_EFAILED_PRECONDITION, "save %llu has a file already",
                         (unsigned long long)s->id);
    text_escape(s->file, sizeof s->file, name, strlen(name));
    s->fd = fd;
    return 0;
}

static void save_free(struct save *s)
{
    const struct io *io = s->engine->o.io;
    if (s->fd >= 0)
        (void)io->close(io->self, s->fd);
    snapshot_fini(&s->snapshot);
    mem_free(s->server_path);
    mem_free(s);
}

/* --- commit --- */

static int write_descriptor(struct save *s, struct queue *q)
{
    const struct io *io = s->engine->o.io;
    int rc = io_check_writable(io, s->fd, &s->fault);
    if (!rc)
        rc = save_write(s, s->fd, q, &s->fault);
    (void)io->close(io->self, s->fd);
    s->fd = -1;
    return rc;
}

static void run(struct loader_job *job, struct queue *q)
{
    struct save *s = (struct save *)job;
    int rc = s->server_path ? save_write_path(s, q, &s->fault) : write_descriptor(s, q);
    if (!rc)
        return;
    (void)fault_at(&s->fault, STAGE_FILE);
    if (rc != FP8D_ECANCELLED)
        fault_wrap(&s->fault, "%s", s->file);
}

static void finish(struct loader_job *job)
{
    struct save *s = (struct save *)job;
    s->report.incarnation = s->snapshot.incarnation;
    s->report.weight_version = s->snapshot.weight_version;
    /* Out of the lease first: the callback may end the lease. */
    idmap_remove(&s->lease->saves, s->id);
    s->lease = NULL;
    s->done(s->arg, &s->fault, s->fault.code ? NULL : &s->report);
    save_free(s);
}

static void on_progress(struct exec_task *task)
{
    struct save *s = (struct save *)(void *)((char *)task - offsetof(struct save, progress_task));
    struct save_progress p = {
        .bytes_done = atomic_load(&s->bytes_done),
        .bytes_total = atomic_load(&s->bytes_total),
        .tensors_done = atomic_load(&s->tensors_done),
        .tensors_total = (uint32_t)s->snapshot.count,
    };
    atomic_store(&s->progress_posted, false);
    s->on_progress(s->arg, &p);
}

static int pin(struct save *s, struct fault *f)
{
    struct model *m;
    int rc = engine_find(s->engine, s->o.model, &m, f);
    if (!rc)
        rc = expect_check(&s->o.expect, m, f);
    if (!rc && m->scope)
        rc = fault_set(f, FP8D_EFAILED_PRECONDITION,
                       "model %s has an open scope %llu of connection %llu: end it first", m->name,
                       (unsigned long long)m->scope->id, (unsigned long long)m->scope->lease->conn);
    return rc ? rc : snapshot_take(m, s->o.no_optimizer, &s->snapshot, f);
}

int save_commit(struct save *s, save_progress_cb progress, save_done_cb done, void *arg,
                struct fault *f)
{
    if (s->fd < 0 && !s->server_path)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "save %llu has no file: attach a descriptor first",
                         (unsigned long long)s->id);
    int rc = pin(s, f);
    if (rc)
        return rc;
    s->on_progress = progress;
    s->done = done;
    s->arg = arg;
    s->progress_task.run = on_progress;
    s->job.run = run;
    s->job.finish = finish;
    loader_post(s->engine->loader, &s->job);
    return 0;
}

void save_cancel(struct save *s)
{
    atomic_store(&s->cancel, true);
}

void save_end(struct save *s)
{
    idmap_remove(&s->lease->saves, s->id);
    save_free(s);
}
