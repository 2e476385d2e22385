/* wholes.h - one layer of whole numbers: exact in FP8 under scale 1 and in every accumulator, so that
 * gradients are sums of integers on every backend. For tests alone; every failure is a failed check. */
#ifndef FP8D_TESTS_SCENARIO_WHOLES_H
#define FP8D_TESTS_SCENARIO_WHOLES_H

#include "tests/scenario/ask_grad.h"

/* -2 to 2, by seed and place. */
int whole(uint64_t seed, uint64_t i);
float *wholes(uint64_t seed, uint64_t n); /* heap */

/* Model m, layer l, recipe with unset sites: casts with 1 until an update. */
struct fix {
    struct desk *desk;
    struct ask a;
    uint64_t out, in;
    float *w, *bias;
};

enum seeds { W = 1, B = 2, X = 10, DY = 30 };

/* A scope of connection 1 is open all along, so that no scale moves. */
void fix_open(struct fix *f, uint64_t out, uint64_t in, bool with_bias);
void fix_close(struct fix *f);

void forward_wholes(struct fix *f, uint64_t seed, uint64_t tokens, uint64_t context);
/* Of the forward with the same seed; dx is checked. */
struct ask_backward backward_wholes(struct fix *f, uint64_t seed, uint64_t tokens,
                                    uint64_t context);
void run_backward(struct fix *f, uint64_t seed, uint64_t tokens, uint64_t context);

/* What is held is the sum over the seeds of these runs. */
struct part {
    uint64_t seed, tokens;
};
void holds_wholes(struct fix *f, const struct part *parts, size_t n);

#endif
