/* edit.h - another weight for one layer: the version goes up, copies of the old one are let go.
 * Engine thread, compute slot held. */
#ifndef FP8D_DAEMON_ENGINE_EDIT_H
#define FP8D_DAEMON_ENGINE_EDIT_H

#include "daemon/engine/model.h"
#include "daemon/engine/resident.h"

typedef void (*edit_done_cb)(void *arg, const struct fault *f);

/* weight: [out, in] of F32, BF16 or F16; its dtype becomes the layer's, also where the weight was FP8
 * primary. bias: NULL keeps the old one; else [out], for a layer that has a bias or not. Both are
 * borrowed until the call returns, and copied: a later FreeTensor changes nothing. 0: `done` will be
 * called; the model has changed when its fault's code is 0. */
int edit_start(struct model *m, struct layer *l, const struct operand *weight,
               const struct operand *bias, edit_done_cb done, void *arg, struct fault *f);

#endif
