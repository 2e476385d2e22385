/* source.h - what one layer is made of in a file: the tensors that bear its name, found and their
 * forms checked. No value is looked at. Pure functions over a header, which they borrow from.
 *
 * An FP8 weight has exactly one factor, X.weight_scale or X.weight_scale_inv: two are an error even
 * if equal, none is one. X.input_scale is a static factor of the input. In a save (state.h) scaling
 * state comes with all its tensors or not at all, and so do a cached copy and a gradient.
 */
#ifndef FP8D_DAEMON_ENGINE_SOURCE_H
#define FP8D_DAEMON_ENGINE_SOURCE_H

#include "daemon/engine/state.h"
#include "daemon/engine/state_optimizer.h"

enum { SOURCE_SCALING, SOURCE_HISTORY, SOURCE_COUNTERS, SOURCE_SITE_PARTS };
enum { SOURCE_CODES, SOURCE_FACTOR, SOURCE_CAST, SOURCE_CAST_COUNTERS, SOURCE_CACHED_PARTS };

/* Tensors that are not there are NULL. */
struct source {
    const char *name; /* of the layer */
    const struct safetensors_tensor *weight, *bias;
    const struct safetensors_tensor *factor; /* of an FP8 weight, and only of one */
    const struct safetensors_tensor *input_factor;
    const struct safetensors_tensor *site[3][SOURCE_SITE_PARTS]; /* in the order of state_sites */
    const struct safetensors_tensor *cached[SOURCE_CACHED_PARTS];
    const struct safetensors_tensor *origin; /* of an FP8 weight */
    const struct safetensors_tensor *own;    /* options of the optimizer */
    const struct safetensors_tensor *moved[STATE_PARAMETERS][STATE_MOVED_PARTS];
    const struct safetensors_tensor *gradient[STATE_GRADIENT_PARTS];
};

/* The tensors of layer `name`, whose weight is given. save: the file has state in it. */
int source_find(const struct safetensors *s, const char *name,
                const struct safetensors_tensor *weight, bool save, struct source *out,
                struct fault *f);

/* Whether masters and moments are those of an optimizer that keeps so many moments; NULL: of none.
 */
int source_check_moved(const struct source *x, const struct optimizer *o, struct fault *f);

/* Without optimizer state and gradients, as if the file had none. */
void source_forget_training(struct source *x);
bool source_has_training(const struct source *x);

bool source_uses(const struct source *x, const struct safetensors_tensor *t);

static inline bool source_has_state(const struct source *x)
{
    return x->site[0][SOURCE_SCALING] != NULL;
}

static inline bool source_has_gradient(const struct source *x)
{
    return x->gradient[STATE_GRADIENT_WEIGHT] != NULL;
}

static inline bool source_has_copy(const struct source *x)
{
    return x->cached[SOURCE_CODES] != NULL;
}

#endif
