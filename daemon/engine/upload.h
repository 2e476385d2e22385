/* upload.h - a tensor that stays goes to where the backend computes, once. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_UPLOAD_H
#define FP8D_DAEMON_ENGINE_UPLOAD_H

#include "daemon/engine/resident.h"

/* A high-precision operand in host memory gets device memory of its own, and the copy is enqueued; what
 * is enqueued later finds it there. Nothing to do for FP8 tensors and on a unified backend. On failure
 * the operand is as it was. */
int upload_operand(struct engine *e, struct operand *o, struct fault *f);

#endif
