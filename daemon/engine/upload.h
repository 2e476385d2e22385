/* upload.h - a tensor that stays goes to where the backend computes, once. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_UPLOAD_H
#define FP8D_DAEMON_ENGINE_UPLOAD_H

#include "daemon/engine/resident.h"

/* code 0: it is there; else nothing is filed. */
typedef void (*upload_done_cb)(void *arg, const struct fault *f);

/* File a tensor under `id`, a high-precision one in memory of the device, and tell when it is
 * there: inside the call on a unified backend. Takes over the value, also on failure, of which
 * `done` is not told. */
int upload_start(struct lease *l, uint64_t id, struct operand value, upload_done_cb done, void *arg,
                 struct fault *f);

#endif
