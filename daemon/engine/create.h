/* create.h - a model from tensors of a connection. Engine thread, compute slot held.
 *
 * The work of a load without a file: the same layers result. FP8 tensors become primary weights
 * with their bytes and factor; with primary_fp8 high-precision ones are cast with a scale from
 * their own amax, as for an unset site. FP8 codes are not looked at: a load of a save of such a
 * model with NaN codes needs allow_nan. */
#ifndef FP8D_DAEMON_ENGINE_CREATE_H
#define FP8D_DAEMON_ENGINE_CREATE_H

#include "daemon/engine/model.h"
#include "daemon/engine/resident.h"

struct create_layer {
    const char *name;
    struct operand weight; /* owned by the caller */
    struct operand bias;   /* rank 0: none */
};

typedef void (*create_done_cb)(void *arg, const struct fault *f, const struct model *m);

/* 0: `done` will be called, with the installed model. FP8D_EALREADY_EXISTS if the name is taken. */
int create_start(struct lease *l, const char *name, const struct recipe *r,
                 const struct create_layer *layers, size_t count, bool primary_fp8,
                 create_done_cb done, void *arg, struct fault *f);

#endif
