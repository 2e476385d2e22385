/* ask_grad.h - the requests about gradients, as ask.h has the others. F32 in and out. */
#ifndef FP8D_TESTS_SCENARIO_ASK_GRAD_H
#define FP8D_TESTS_SCENARIO_ASK_GRAD_H

#include "tests/scenario/ask.h"

struct ask_backward {
    uint64_t context_id;
    struct ask_tensor dy;
    Fp8d__V1__DType grad_input_dtype;
    uint64_t grad_input_id;
    bool replace, no_grad_input;
    /* Filled; ask_backward_free lets them go. */
    Fp8d__V1__BackwardReply *reply;
    void *dx; /* if inline */
    uint64_t dx_bytes;
};
unsigned ask_backward(struct ask *a, struct ask_backward *b);
void ask_backward_free(struct ask_backward *b);

unsigned ask_zero_grad(struct ask *a, const char *model, unsigned *layers); /* layers may be NULL */

struct ask_gradient {
    float *data; /* heap, the caller's */
    uint64_t count, contributions, nonfinite;
};
unsigned ask_gradient(struct ask *a, const char *model, const char *layer, bool bias,
                      struct ask_gradient *g);

#endif
