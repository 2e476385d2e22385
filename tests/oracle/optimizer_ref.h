/* optimizer_ref.h - torch.optim.SGD, Adam and AdamW (amsgrad and maximize off) in float64, written
 * down from PyTorch's documentation of their algorithms. Includes nothing of kernels/. */
#ifndef FP8D_TESTS_ORACLE_OPTIMIZER_REF_H
#define FP8D_TESTS_ORACLE_OPTIMIZER_REF_H

#include <stdbool.h>
#include <stddef.h>

struct optimizer_ref {
    enum { REF_SGD = 1, REF_ADAM = 2, REF_ADAMW = 3 } kind;
    double lr, momentum, dampening, beta1, beta2, eps, weight_decay;
    bool nesterov;
};

/* The state of one parameter; zero before its first step. */
struct optimizer_ref_state {
    double buf, exp_avg, exp_avg_sq;
    unsigned long step;
};

/* One step: the new parameter. */
double optimizer_ref_step(const struct optimizer_ref *o, struct optimizer_ref_state *s,
                          double param, double grad);

#endif
