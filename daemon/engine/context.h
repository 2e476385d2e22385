/* context.h - what a forward leaves behind for its backward: the very FP8 tensors it multiplied.
 *
 * Counted references: whatever scales, copies or models do meanwhile, a context keeps the bytes and
 * factors that were used. Owned by a lease. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_CONTEXT_H
#define FP8D_DAEMON_ENGINE_CONTEXT_H

#include "daemon/engine/lease.h"
#include "daemon/engine/model.h"
#include "daemon/engine/resident.h"

struct context {
    struct lease *lease;
    uint64_t id;
    struct model *model; /* holds a reference */
    struct layer *layer;
    uint64_t weight_version;
    unsigned rank;          /* of the forward's input, */
    uint64_t dims[TENSOR_RANK_MAX];
    uint64_t tokens;        /* product of all but the last */
    struct qtensor *input;  /* NULL for zero tokens */
    struct qtensor *weight;
    uint64_t charged;
};

/* Made before compute, so that nothing can fail after it, and filled or ended when it is done. */
int context_new(struct lease *l, uint64_t id, struct model *m, struct layer *layer,
                const struct operand *input, struct context **out, struct fault *f);
/* Takes its own references; both NULL for zero tokens. */
void context_fill(struct context *c, struct qtensor *input, struct qtensor *weight);
int context_find(struct lease *l, uint64_t id, struct context **out, struct fault *f);
void context_end(struct context *c);

#endif
