/* optimizer.h - what a model's steps are taken with: options, per layer, and the state they keep.
 *
 * Master weights and moments are float32 and come with the first step that needs them. A float32
 * weight is its own master. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_OPTIMIZER_H
#define FP8D_DAEMON_ENGINE_OPTIMIZER_H

#include "kernels/backend.h"
#include "kernels/optimizer.h"

struct model;

/* Of a model. */
struct optimizer {
    bool set;
    struct optimizer_options options;
    uint64_t steps;   /* taken: applied or skipped */
    uint64_t updates; /* applied */
};

/* What one layer has otherwise. */
struct optimizer_own {
    bool frozen;
    bool rate_set, decay_set;
    double rate, weight_decay;
};

static inline bool optimizer_has_own(const struct optimizer_own *own)
{
    return own->frozen || own->rate_set || own->decay_set;
}

/* State of one tensor; buffers are NULL until a step needs them. */
struct optimizer_state {
    struct tensor master; /* NULL too where the tensor is float32: it is its own master */
    struct tensor m, v;
};

void optimizer_state_fini(struct optimizer_state *s); /* also when zeroed */
/* The tensor was replaced: the next step takes its master from the new one. */
void optimizer_state_rebase(struct optimizer_state *s);
uint64_t optimizer_state_bytes(const struct optimizer_state *s);

/* The options of a layer: the model's with its own in their place. */
struct optimizer_options optimizer_of(const struct optimizer *o, const struct optimizer_own *own);

/* optimizer_check, and that what float32 makes of the numbers is in their ranges, too. */
int optimizer_accept(const struct optimizer_options *o, struct fault *f);

/* New options for all layers: own[i] is layer i's. State goes where the kind changes. FP8D_EINVALID_-
 * ARGUMENT for options that optimizer_accept refuses, of the model or of a layer. */
int optimizer_set(struct model *m, const struct optimizer_options *options,
                  const struct optimizer_own *own, struct fault *f);

#endif
