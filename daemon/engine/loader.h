/* loader.h - the thread for everything that reads files, one job after another.
 *
 * A job runs on the loader thread and finishes on the engine thread. It has its own backend queue,
 * so that a load and a forward overlap.
 */
#ifndef FP8D_DAEMON_ENGINE_LOADER_H
#define FP8D_DAEMON_ENGINE_LOADER_H

#include "daemon/engine/engine.h"

struct loader;

struct loader_job {
    struct loader_job *next;
    void (*run)(struct loader_job *job, struct queue *q); /* loader thread */
    void (*finish)(struct loader_job *job);               /* engine thread */
    const struct exec *exec;
    struct exec_task task;
};

int loader_new(struct engine *e, struct loader **out, struct fault *f);
void loader_free(struct loader *l); /* finishes what is queued, then joins; NULL is fine */
void loader_post(struct loader *l, struct loader_job *job);

#endif
