/* load_read.h - the part of a load that runs on the loader thread: parse, claim, reserve, read. */
#ifndef FP8D_DAEMON_ENGINE_LOAD_READ_H
#define FP8D_DAEMON_ENGINE_LOAD_READ_H

#include "daemon/engine/load.h"

/* Builds ld->built from ld->fd. On failure the fault names the file. */
int load_read(struct load *ld, struct queue *q, struct fault *f);

#endif
