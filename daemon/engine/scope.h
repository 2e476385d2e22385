/* scope.h - brackets requests for scale updates.
 *
 * A scope belongs to one lease and one model; a model has at most one. Train requests of its owner
 * merge what their casts saw into it; its end applies all of it at once. Without a scope each train
 * forward and each backward applies its own. If the owner ends first, or the model leaves its name,
 * what was collected is dropped. Rules: docs/numerics.md section 3. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_SCOPE_H
#define FP8D_DAEMON_ENGINE_SCOPE_H

#include "daemon/engine/lease.h"
#include "daemon/engine/model.h"

/* What one layer's sites saw in the scope: input and weight once a forward ran in it, grad_output
 * once a backward did. */
struct scope_part {
    struct layer *layer;
    bool ran[SITE_KINDS];
    struct amax_slot slot[SITE_KINDS];
};

struct scope {
    struct lease *lease;
    uint64_t id;
    struct model *model;      /* holds a reference; NULL for an orphan, unless it is ending */
    char name[129];           /* of the model, for sentences about an orphan */
    bool orphan;              /* the model left its name: nothing will be applied */
    bool ending;              /* its apply is under way */
    struct scope_part *parts; /* layers that ran, in the order they ran first */
    size_t part_count, part_room;
};

int scope_begin(struct lease *l, uint64_t id, struct model *m, struct scope **out, struct fault *f);
int scope_find(struct lease *l, uint64_t id, struct scope **out, struct fault *f);

/* FP8D_EFAILED_PRECONDITION naming the holder if another lease has the model's scope. */
int scope_check_train(const struct model *m, const struct lease *l, struct fault *f);

/* Room for one more part: asked for before compute, so that merging cannot fail and a request that
 * failed leaves no part behind. */
int scope_reserve(struct scope *s, struct fault *f);

/* The part of a layer, made if needed in the room reserved. */
struct scope_part *scope_part(struct scope *s, struct layer *layer);

/* The slots a scope holds of a layer now, or NULL. */
const struct scope_part *scope_peek(const struct model *m, const struct layer *layer);

/* Apply and end. `done` runs on the engine thread; the scope is gone then. After a failure it is
 * still open, with what it collected: it can be ended again or discarded. An orphan is gone in any
 * case. */
typedef void (*scope_done_cb)(void *arg, const struct fault *f, uint32_t updated, uint32_t skipped);
void scope_end(struct scope *s, scope_done_cb done, void *arg);

/* End without an update: discard, or the owner is gone. */
void scope_end_dropped(struct scope *s);

/* The model left its name: its memory is not to wait for the scope's end. */
void scope_orphan(struct scope *s);

/* The apply arguments of one site. mirror: scaler_bytes(history_len) in a host buffer. */
struct apply_site scope_apply_site(const struct layer *l, enum site_kind kind,
                                   const struct recipe *r, const struct amax_slot *slot,
                                   void *mirror);

#endif
