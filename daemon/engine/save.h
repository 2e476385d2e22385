/* save.h - a save: begin, attach, commit; one version of a model, pinned between two requests.
 *
 * Commit takes references and copies of everything on the engine thread; the loader thread then
 * writes and fsyncs while other requests go on. The key scheme is state.h's. With a descriptor the
 * client creates the file and renames it afterwards; with a server path the daemon writes to a
 * temporary beside the target, fsyncs, renames, and fsyncs the folder.
 */
#ifndef FP8D_DAEMON_ENGINE_SAVE_H
#define FP8D_DAEMON_ENGINE_SAVE_H

#include "daemon/engine/lease.h"
#include "daemon/engine/loader.h"
#include "daemon/engine/model.h"
#include "daemon/engine/snapshot.h"

#include <stdatomic.h>

#define SAVES_MAX 8 /* begun and not ended, of one connection: each may hold a descriptor */

struct save_options {
    char model[129];
    const char *server_path; /* NULL: a descriptor is attached; borrowed by save_begin */
    bool no_optimizer;       /* nor gradients */
    struct expect expect;
};

struct save_report {
    uint64_t bytes_written, write_us;
    uint32_t tensors;
    uint64_t incarnation, weight_version;
};

struct save_progress {
    uint64_t bytes_done, bytes_total;
    uint32_t tensors_done, tensors_total;
};

typedef void (*save_progress_cb)(void *arg, const struct save_progress *p);
typedef void (*save_done_cb)(void *arg, const struct fault *f, const struct save_report *r);

struct save {
    struct loader_job job;
    struct engine *engine;
    struct lease *lease;     /* until it is done */
    uint64_t conn;
    uint64_t id;
    struct save_options o;
    char *server_path;       /* own copy */
    int fd;                  /* -1 until attached */
    char file[256];          /* its name, for sentences */
    _Atomic bool cancel;

    struct fault fault;
    struct snapshot snapshot;
    struct save_report report;
    save_progress_cb on_progress;
    save_done_cb done;
    void *arg;
    struct exec_task progress_task;
    _Atomic bool progress_posted;
    _Atomic uint64_t bytes_done, bytes_total;
    _Atomic uint32_t tensors_done;
    uint64_t progress_ns;
};

int save_begin(struct lease *l, uint64_t id, const struct save_options *o, struct fault *f);
int save_find(struct lease *l, uint64_t id, struct save **out, struct fault *f);

/* Takes the descriptor, but not on failure. */
int save_attach(struct save *s, const char *name, int fd, struct fault *f);

/* 0: `done` will be called, and the save is gone then. A status: nothing started, the save stays.
 * FP8D_EFAILED_PRECONDITION while a scope is open on the model. */
int save_commit(struct save *s, save_progress_cb progress, save_done_cb done, void *arg,
                struct fault *f);

void save_cancel(struct save *s); /* stops at the next block, FP8D_ECANCELLED */
void save_end(struct save *s);    /* not while committing */

#endif
