/* gradient.h - what backward requests have added up of one layer's gradients, in float32.
 *
 * The memory comes with the first backward and stays; `held` says whether it means anything: a step
 * or ZeroGrad unsets it, and the next backward overwrites instead of adding. Part of a layer.
 * Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_GRADIENT_H
#define FP8D_DAEMON_ENGINE_GRADIENT_H

#include "kernels/buffer.h"

#include <stdbool.h>

struct gradient {
    struct tensor weight; /* [out, in]; buf NULL: none yet */
    struct tensor bias;   /* [1, out]; buf NULL: none yet, no bias, or one that came since */
    bool held;
    uint64_t contributions; /* backward requests that it is the sum of; 0 unless held */
    uint64_t nonfinite;     /* elements of their grad_output */
};

void gradient_fini(struct gradient *g);            /* also when zeroed */
void gradient_forget(struct gradient *g);          /* not held any more; the memory stays */
uint64_t gradient_bytes(const struct gradient *g); /* charged */

#endif
