/* stage.h - tensors on their way between host memory and where the backend computes.
 *
 * On a unified backend (the CPU) nothing is copied and these calls hand out what they were given. On
 * others a tensor in host memory is copied to device memory in queue order. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_STAGE_H
#define FP8D_DAEMON_ENGINE_STAGE_H

#include "daemon/engine/engine.h"

#define STAGE_HELD 4

/* The device memory of one request; embedded in it, zeroed to begin. */
struct stage {
    struct buffer *held[STAGE_HELD];
    unsigned count;
};

/* *out is where the backend can read `t`: itself, or a copy under way. */
int stage_in(struct stage *s, struct engine *e, const struct tensor *t, const char *what,
             struct tensor *out, struct fault *f);

/* *out is where the backend can write what shall end up in `host`. */
int stage_out(struct stage *s, struct engine *e, const struct tensor *host, const char *what,
              struct tensor *out, struct fault *f);

/* Enqueue the way back, if there is one, once `device` (of stage_out) will have been written. */
int stage_back(struct engine *e, const struct tensor *device, const struct tensor *host,
               struct fault *f);

/* Once a note enqueued after all of it has fired. */
void stage_fini(struct stage *s);

/* Bytes of a tensor; the shape has been checked before. */
uint64_t stage_bytes(const struct tensor *t);

#endif
