/* charlm_float32.h - what charlm computes itself: random numbers, Adam, and linear layers in
 * float32, by the rules of the service. */
#ifndef FP8D_EXAMPLES_CHARLM_FLOAT32_H
#define FP8D_EXAMPLES_CHARLM_FLOAT32_H

#include <stddef.h>
#include <stdint.h>

#define RATE 0.003f /* of Adam, here and at the service */

/* Parameters that are moved here. */
struct adam {
    float *p, *g, *m, *v; /* one block, in this order */
    size_t n;
};

/* y = x W^T + b, all row-major; with `fp8d` w and b are what the service begins with. */
struct linear {
    const char *name;
    uint64_t context;
    int out, in;
    struct adam w, b;
};

/* 0 to 1; the same numbers in every run. */
double draw(uint64_t *state);

/* Uniform from -size to size. 0, or 1 without memory. */
int adam_new(struct adam *a, size_t n, double size, uint64_t *state);
/* torch.optim.Adam with its defaults; the gradient is forgotten. Steps count from 1. */
void adam_step(struct adam *a, int number);

/* y = x W^T + b, of that many rows. 0, or 1 without memory. */
int here_forward(const struct linear *l, int tokens, const float *x, float *y);
/* dx = dy W; gradients of W and b are added to. */
void here_backward(const struct linear *l, int tokens, const float *x, const float *dy, float *dx);

#endif
