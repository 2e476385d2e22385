/* ask_grad.h - the requests about gradients, as ask.h has the others. F32 in and out. */
#ifndef FP8D_TESTS_SCENARIO_ASK_GRAD_H
#define FP8D_TESTS_SCENARIO_ASK_GRAD_H

#include "tests/scenario/ask.h"

struct ask_backward {
    uint64_t context_id;
    struct ask_tensor dy;
    Fp8d__V1__DType grad_input_dtype;
    uint64_t grad_input_id;
    bool replace, no_grad_input, time_compute;
    /* Filled; ask_backward_free lets them go. */
    Fp8d__V1__BackwardReply *reply;
    void *dx; /* if inline */
    uint64_t dx_bytes;
};
unsigned ask_backward(struct ask *a, struct ask_backward *b);
void ask_backward_free(struct ask_backward *b);

struct ask_recompute {
    uint64_t context_id, output_id;
    Fp8d__V1__DType output_dtype;
    bool replace_output, time_compute;
    /* Filled; ask_recompute_free lets them go. */
    Fp8d__V1__RecomputeReply *reply;
    void *y; /* if inline */
    uint64_t y_bytes;
};
unsigned ask_recompute(struct ask *a, struct ask_recompute *r);
void ask_recompute_free(struct ask_recompute *r);

unsigned ask_zero_grad(struct ask *a, const char *model, unsigned *layers); /* layers may be NULL */

struct ask_gradient {
    float *data; /* heap, the caller's */
    uint64_t count, contributions, nonfinite;
};
unsigned ask_gradient(struct ask *a, const char *model, const char *layer, bool bias,
                      struct ask_gradient *g);

/* `layers` of count may be NULL. */
unsigned ask_optimizer(struct ask *a, const char *model, const Fp8d__V1__OptimizerOptions *o,
                       Fp8d__V1__LayerOptions **layers, size_t count);

struct ask_step {
    uint64_t step;
    double loss_scale, max_norm;
    bool time_compute;
    Fp8d__V1__StepReply *reply; /* filled; ask_step_free lets it go */
};
unsigned ask_step(struct ask *a, const char *model, struct ask_step *s);
void ask_step_free(struct ask_step *s);

#endif
