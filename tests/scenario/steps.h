/* steps.h - two layers of whole numbers that steps move by whole numbers. For tests alone; every
 * failure is a failed check. */
#ifndef FP8D_TESTS_SCENARIO_STEPS_H
#define FP8D_TESTS_SCENARIO_STEPS_H

#include "tests/scenario/ask_grad.h"

#define OUT 16
#define IN 32
#define TOKENS 4

#define APPLIED FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED
#define SKIPPED FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_SKIPPED
#define REPEATED FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_REPEATED

/* Model m: layer a with a bias, layer b without; SGD with rate 1. */
struct steps {
    struct desk *desk;
    struct ask a;
    float w[OUT * IN], bias[OUT];
};

void steps_open(struct steps *f); /* a scope is open all along: no scale moves */
struct engine_options;
void steps_open_with(struct steps *f, const struct engine_options *options);
void steps_close(struct steps *f);

Fp8d__V1__OptimizerOptions sgd(double rate);

/* One microbatch through a layer: x is `x0` times e_0, dy is `dy0` throughout, so that the weight's
 * gradient is TOKENS * x0 * dy0 in column 0, the bias' TOKENS * dy0. */
void microbatch(struct steps *f, const char *layer, float x0, float dy0);

/* Weight and bias as they are now, by high-precision products with unit vectors. */
void read_layer(struct steps *f, const char *layer, float *w, float *bias);

/* Column 0 of the layer moved by dw from what it was loaded with, the bias by db. */
void moved_by(struct steps *f, const char *layer, float dw, float db);

/* The caller's to free. */
struct ask_step step_gets(struct steps *f, uint64_t number, int outcome);
void step(struct steps *f, uint64_t number, int outcome);

#endif
