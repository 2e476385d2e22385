/* recompute.h - the output of a context's forward once more: the same operands, bias and plan,
 * hence the same bits (activation recomputation). It casts nothing, feeds nothing, and the context
 * stays. Rules: docs/numerics.md. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_RECOMPUTE_H
#define FP8D_DAEMON_ENGINE_RECOMPUTE_H

#include "daemon/engine/context.h"

struct recompute_args {
    struct lease *lease;
    struct context *context;
    enum dtype output_dtype; /* DTYPE_NONE: that of the forward's output */
    uint64_t output_id;      /* these four as in struct forward_args */
    bool replace_output;
    uint64_t inline_max;
    bool time_compute;
};

struct recompute_result {
    struct operand output;                /* the callback takes its own reference if it needs one */
    uint64_t incarnation, weight_version; /* of the forward */
    uint64_t compute_ns;
};

typedef void (*recompute_done_cb)(void *arg, const struct fault *f,
                                  const struct recompute_result *r);

/* As forward_start. */
int recompute_start(const struct recompute_args *a, recompute_done_cb done, void *arg,
                    struct fault *f);

#endif
