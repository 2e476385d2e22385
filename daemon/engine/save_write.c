#include "daemon/engine/save_write.h"

#include "base/replace.h"
#include "base/text.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/load.h" /* LOAD_BLOCK */
#include "daemon/engine/queuewait.h"
#include "daemon/engine/roots.h"

#include <errno.h>
#include <string.h>

#define PROGRESS_NS 100000000u

static const struct io *io_of(const struct save *s)
{
    return s->engine->o.io;
}

static void report_progress(struct save *s)
{
    const struct exec *x = s->engine->o.exec;
    uint64_t now = x->now(x->self);
    if (!s->on_progress || now - s->progress_ns < PROGRESS_NS ||
        atomic_exchange(&s->progress_posted, true))
        return;
    s->progress_ns = now;
    x->post(x->self, &s->progress_task);
}

static int check_cancel(struct save *s, struct fault *f)
{
    const struct exec *x = s->engine->o.exec;
    if (!atomic_load(&s->cancel) && !x->cancelled(x->self, s->conn))
        return 0;
    return fault_set(f, FP8D_ECANCELLED, "the save was cancelled after %llu of %llu bytes",
                     (unsigned long long)atomic_load(&s->bytes_done),
                     (unsigned long long)atomic_load(&s->bytes_total));
}

static int write_block(struct save *s, int fd, const char *bytes, uint64_t len, uint64_t offset,
                       struct fault *f)
{
    for (uint64_t at = 0; at < len;) {
        size_t n = len - at < LOAD_BLOCK ? (size_t)(len - at) : LOAD_BLOCK;
        int rc = check_cancel(s, f);
        if (!rc)
            rc = io_write_full(io_of(s), fd, bytes + at, n, offset + at, f);
        if (rc)
            return rc;
        at += n;
        atomic_fetch_add(&s->bytes_done, n);
        report_progress(s);
    }
    return 0;
}

/* --- codes: an export tells codes and factor in one call, and both are written from it --- */

struct codes_write {
    struct save *save;
    int fd;
    const struct snapshot_piece *codes, *factor;
    struct fault fault; /* its own: the queue's thread writes it */
    int rc;
};

static void write_view(void *arg, const struct qtensor_view *view)
{
    struct codes_write *w = arg;
    w->rc = write_block(w->save, w->fd, (const char *)view->codes,
                        view->info.rows * view->info.cols, w->codes->t.offset, &w->fault);
    if (!w->rc)
        w->rc = write_block(w->save, w->fd, (const char *)view->scale_inv, sizeof(float),
                            w->factor->t.offset, &w->fault);
}

static int write_codes(struct save *s, int fd, const struct snapshot_piece *p, struct queue *q,
                       struct fault *f)
{
    struct codes_write w = {
        .save = s,
        .fd = fd,
        .codes = p,
        .factor = &s->snapshot.pieces[p->factor],
    };
    int rc = qtensor_export(q, p->codes, write_view, &w, f);
    if (!rc)
        rc = queue_wait(q, f);
    if (rc || !w.rc)
        return rc;
    w.fault.stage = f->stage;
    *f = w.fault;
    return w.rc;
}

/* --- tensors in device memory: through a block of host memory --- */

static int write_device(struct save *s, int fd, const struct snapshot_piece *p, struct queue *q,
                        struct fault *f)
{
    struct buffer *block = NULL;
    int rc = engine_host_buffer(s->engine, LOAD_BLOCK, "a block of the save", &block, f);
    for (uint64_t at = 0; !rc && at < p->t.bytes;) {
        uint64_t n = p->t.bytes - at < LOAD_BLOCK ? p->t.bytes - at : LOAD_BLOCK;
        rc = backend_copy(q, block, 0, p->buffer, p->buffer_offset + at, n, f);
        if (!rc)
            rc = queue_wait(q, f);
        if (!rc)
            rc = write_block(s, fd, block->host, n, p->t.offset + at, f);
        at += n;
    }
    buffer_unref(block);
    return rc;
}

static int write_bytes(struct save *s, int fd, const struct snapshot_piece *p, struct queue *q,
                       struct fault *f)
{
    if (p->codes)
        return write_codes(s, fd, p, q, f);
    if (p->is_factor)
        return 0; /* with its codes */
    if (!p->buffer)
        return write_block(s, fd, p->bytes, p->t.bytes, p->t.offset, f);
    if (!p->buffer->host)
        return write_device(s, fd, p, q, f);
    return write_block(s, fd, (const char *)p->buffer->host + p->buffer_offset, p->t.bytes,
                       p->t.offset, f);
}

static int write_piece(struct save *s, int fd, size_t i, struct queue *q, struct fault *f)
{
    const struct snapshot_piece *p = &s->snapshot.pieces[i];
    char name[256];
    int rc = write_bytes(s, fd, p, q, f);
    if (rc)
        return rc == FP8D_ECANCELLED
                   ? rc
                   : fault_wrap(f, "tensor \"%s\"",
                                text_escape(name, sizeof name, p->t.name, strlen(p->t.name)));
    atomic_fetch_add(&s->tensors_done, 1);
    return 0;
}

/* The pieces' tensors as the plan wants them, offsets copied back. */
static int plan(struct save *s, struct safetensors_plan *out, struct fault *f)
{
    struct snapshot *snap = &s->snapshot;
    struct safetensors_tensor *t = mem_array(snap->count, sizeof *t);
    if (!t)
        return fault_set(f, -ENOMEM, "out of memory for %zu tensors", snap->count);
    for (size_t i = 0; i < snap->count; i++)
        t[i] = snap->pieces[i].t;
    int rc = safetensors_plan(t, snap->count, snap->meta, snap->meta_count, out, f);
    for (size_t i = 0; !rc && i < snap->count; i++)
        snap->pieces[i].t.offset = t[i].offset;
    mem_free(t);
    return rc;
}

int save_write_path(struct save *s, struct queue *q, struct fault *f)
{
    const struct io *io = io_of(s);
    const char *name;
    struct replace r;
    text_escape(s->file, sizeof s->file, s->server_path, strlen(s->server_path));
    int folder = roots_open_folder(io, s->engine->o.load_roots, s->server_path, &name, f);
    if (folder < 0)
        return folder;
    int rc = replace_open(&r, io, folder, name, f);
    if (!rc) {
        rc = save_write(s, r.fd, q, f);
        if (rc)
            replace_abort(&r);
        else
            rc = replace_commit(&r, f);
    }
    (void)io->close(io->self, folder);
    return rc;
}

int save_write(struct save *s, int fd, struct queue *q, struct fault *f)
{
    const struct io *io = io_of(s);
    const struct exec *x = s->engine->o.exec;
    uint64_t start = x->now(x->self);
    struct safetensors_plan p = {0};
    int rc = plan(s, &p, f);
    if (rc)
        return rc;
    atomic_store(&s->bytes_total, p.file_bytes);
    rc = io->truncate(io->self, fd, 0);
    if (rc)
        fault_set(f, rc, "emptying the file failed: %s", status_text(rc));
    if (!rc)
        rc = write_block(s, fd, p.head, p.head_bytes, 0, f);
    for (size_t i = 0; !rc && i < s->snapshot.count; i++)
        rc = write_piece(s, fd, i, q, f);
    if (!rc) {
        rc = io->fsync(io->self, fd);
        if (rc)
            fault_set(f, rc, "fsync failed: %s", status_text(rc));
    }
    s->report.bytes_written = p.file_bytes;
    s->report.tensors = (uint32_t)s->snapshot.count;
    s->report.write_us = (x->now(x->self) - start) / 1000;
    safetensors_plan_fini(&p);
    return rc;
}
