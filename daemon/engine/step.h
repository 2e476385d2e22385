/* step.h - one step of a model's optimizer: all layers that hold gradients, or none.
 *
 * Two rounds on the queue. The first measures: the norm of every gradient, and what is not finite in
 * it or was in a grad_output that contributed. If all is well the second moves masters and moments
 * and writes the weights, with the new FP8 copy and its second form from the same pass; else the step
 * is skipped whole. Both ways the gradients are forgotten and the step counts. Memory for all of it
 * is taken before the first round. Rules: docs/numerics.md. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_STEP_H
#define FP8D_DAEMON_ENGINE_STEP_H

#include "daemon/engine/lease.h"
#include "daemon/engine/model.h"

#define STEP_PROBLEMS_MAX 16

struct step_args {
    struct lease *lease;
    struct model *model;
    uint64_t step;
    double loss_scale; /* finite, above 0 */
    double max_norm;   /* 0: no clipping */
    bool time_compute; /* read the device's clock before and behind each round */
};

enum step_outcome { STEP_APPLIED = 1, STEP_SKIPPED = 2, STEP_REPEATED = 3 };

struct step_problem {
    const struct layer *layer;
    const char *tensor;
    uint64_t nonfinite;
};

struct step_result {
    enum step_outcome outcome;
    double grad_norm, clip;
    uint32_t layers;
    struct step_problem problems[STEP_PROBLEMS_MAX];
    uint32_t problem_count; /* all of them */
    uint64_t compute_ns;    /* both rounds together, without what is between them; 0: not read */
};

typedef void (*step_done_cb)(void *arg, const struct fault *f, const struct step_result *r);

/* As forward_start. */
int step_start(const struct step_args *a, step_done_cb done, void *arg, struct fault *f);

#endif
