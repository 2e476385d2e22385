/* model.h - a model: a named set of linear layers with one recipe, one version, one scope at most.
 *
 * Counted: the registry holds one reference, contexts and running requests hold others. A model
 * that left the registry (replaced, unloaded) is `gone`: contexts on it work on and feed nothing.
 * Built by the loader, then owned by the engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_MODEL_H
#define FP8D_DAEMON_ENGINE_MODEL_H

#include "daemon/engine/gradient.h"
#include "daemon/engine/optimizer.h"
#include "daemon/engine/site.h"
#include "daemon/engine/weight.h"

#include <sys/types.h>

struct engine;
struct scope;

struct layer {
    char *name;
    uint64_t in, out;
    struct weight weight;
    struct gradient gradient;
    struct optimizer_own own;
    struct optimizer_state weight_state, bias_state;
    struct site sites[SITE_KINDS]; /* OUTPUT and GRAD_INPUT have no memory: nothing is cast there */
};

struct model {
    struct engine *engine;
    uint32_t refs;
    char *name;
    uid_t creator_uid;
    uint64_t incarnation;
    uint64_t weight_version;
    struct recipe recipe;
    struct optimizer optimizer;
    bool frozen;
    bool gone;
    bool calibrating;      /* a calibrate request came since the last finish or abort */
    struct scope *scope;   /* open on this model, or NULL; owned by its lease */
    uint32_t contexts;
    struct layer *layers;  /* sorted by name */
    size_t layer_count;
};

/* A model without layers' contents: room for n, zeroed. One reference. */
int model_new(struct engine *e, const char *name, const struct recipe *r, size_t layers,
              struct model **out, struct fault *f);
struct model *model_ref(struct model *m);
void model_unref(struct model *m); /* NULL is fine; engine or loader thread */

/* Name, sites and (references to) weight and bias of one layer. On failure the model can still be
 * let go. Takes over the references of `high` and `bias`, also on failure. */
int model_fill_layer(struct model *m, size_t i, const char *name, struct tensor high,
                     struct tensor bias, struct fault *f);

/* Sort layers by name, once all are filled. */
void model_finish(struct model *m);

/* The weight version of the model, of all its layers and of the copies they have. */
void model_renumber(struct model *m, uint64_t version);

/* A save holds weight_version and steps up to 2^63 - 1. Only a file that was made to brings a model
 * near: FP8D_EFAILED_PRECONDITION for another change from 2^62 on, which leaves room for those that
 * are under way. */
#define MODEL_CHANGES_MAX ((uint64_t)1 << 62)
int model_check_counts(const struct model *m, struct fault *f);

/* FP8D_EFAILED_PRECONDITION if the model was replaced or unloaded while something was under way. */
int model_check_here(const struct model *m, struct fault *f);

int model_find_layer(struct model *m, const char *name, struct layer **out, struct fault *f);
uint64_t model_parameters(const struct model *m);
uint64_t model_bytes(const struct model *m);

/* True for the sites that have a scaler. */
static inline bool site_exists(enum site_kind kind)
{
    return kind == SITE_INPUT || kind == SITE_WEIGHT || kind == SITE_GRAD_OUTPUT;
}

#endif
