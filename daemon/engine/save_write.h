/* save_write.h - the part of a save that runs on the loader thread: plan, write, fsync. */
#ifndef FP8D_DAEMON_ENGINE_SAVE_WRITE_H
#define FP8D_DAEMON_ENGINE_SAVE_WRITE_H

#include "daemon/engine/save.h"

/* Writes s->snapshot to `fd`, which becomes exactly that file, and fsyncs it. */
int save_write(struct save *s, int fd, struct queue *q, struct fault *f);

/* The same to a path below the roots: temporary, fsync, rename, fsync of the folder. */
int save_write_path(struct save *s, struct queue *q, struct fault *f);

#endif
