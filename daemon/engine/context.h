/* context.h - what a forward leaves behind for its backward: the very FP8 tensors it multiplied, and
 * what else its output was made of.
 *
 * Counted references: whatever scales, copies, biases or models do meanwhile, a context keeps the
 * bytes and factors that were used (a step moves a bias that is held here to other memory). Owned by
 * a lease. Engine thread.
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
    uint64_t incarnation, weight_version; /* the model's, at the forward */
    unsigned rank;          /* of the forward's input, */
    uint64_t dims[TENSOR_RANK_MAX];
    uint64_t tokens;        /* product of all but the last */
    struct qtensor *input;  /* NULL for zero tokens */
    struct qtensor *weight;
    struct tensor bias;     /* buf NULL: none */
    enum dtype output_dtype;
    uint64_t charged;
};

/* Made before compute, so that nothing can fail after it, and filled or ended when it is done. */
int context_new(struct lease *l, uint64_t id, struct model *m, struct layer *layer,
                const struct operand *input, struct context **out, struct fault *f);
/* Takes its own references, that of the layer's bias too; both NULL for zero tokens. */
void context_fill(struct context *c, struct qtensor *input, struct qtensor *weight,
                  enum dtype output_dtype);
int context_find(struct lease *l, uint64_t id, struct context **out, struct fault *f);
void context_end(struct context *c);

#endif
