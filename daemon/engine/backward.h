/* backward.h - the gradients of one linear layer, from the context of a train forward.
 *
 *   grad_input[tokens, in]  = dy[tokens, out] W[out, in]
 *   weight gradient[out, in] (+)= dy^T x,  bias gradient[out] (+)= column sums of grad_output
 *
 * dy is grad_output cast at the layer's grad_output site; W and x are the very tensors that the
 * forward multiplied, with the factors they carry: a scale that moved since, another weight or a
 * model that is gone change nothing. What a request changes (gradient, context, site, resident
 * tensor) changes when it has succeeded. Rules: docs/numerics.md 3 and 5. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_BACKWARD_H
#define FP8D_DAEMON_ENGINE_BACKWARD_H

#include "daemon/engine/context.h"
#include "daemon/engine/resident.h"

struct backward_args {
    struct lease *lease;
    struct context *context;
    const struct operand *grad_output; /* borrowed until the call returns */
    enum dtype grad_input_dtype;       /* DTYPE_NONE: that of grad_output */
    uint64_t grad_input_id;            /* 0: handed to `done` alone */
    bool replace_grad_input;
    bool no_grad_input;
    uint64_t inline_max; /* bytes that grad_input may have without an id; 0: any */
    bool time_compute;
};

struct backward_result {
    struct operand
        grad_input; /* if has_grad_input; the callback takes its own reference if needed */
    bool has_grad_input;
    bool cast; /* whether the report means anything: not for zero tokens */
    struct cast_report grad_output;
    enum dtype fmt;
    bool dropped; /* the model is gone: nobody sees gradients and scales */
    bool accumulated, applied;
    uint64_t incarnation, weight_version; /* of the model now */
    uint64_t compute_ns;
};

typedef void (*backward_done_cb)(void *arg, const struct fault *f, const struct backward_result *r);

/* As forward_start. The context is gone once `done` is called without a fault. */
int backward_start(const struct backward_args *a, backward_done_cb done, void *arg,
                   struct fault *f);

#endif
