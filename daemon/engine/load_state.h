/* load_state.h - what a file says about scaling: the recipe, and the state of every site. All of it
 * is in force before anything is quantised with it (Transformer Engine PR #771). Loader thread.
 * Rules: docs/numerics.md section 3. */
#ifndef FP8D_DAEMON_ENGINE_LOAD_STATE_H
#define FP8D_DAEMON_ENGINE_LOAD_STATE_H

#include "daemon/engine/load.h"

/* Option over file over default; differences become notes. For a save ld->file_recipe is set. */
int load_state_recipe(struct load *ld, struct recipe *out, struct fault *f);

/* Reads and checks every factor and all state into ld->parts and the mirrors of ld->built's sites,
 * finishes a calibration if asked, and sends the sites to the backend. */
int load_state_apply(struct load *ld, struct queue *q, struct fault *f);

/* "tensor "X": why", with the code. */
int load_state_wrong(const struct safetensors_tensor *t, int code, const char *why, struct fault *f);

#endif
