/* gradient.h - what backward requests have added up of one layer's gradients, in float32.
 *
 * The memory comes with the first backward and stays; `held` says whether it means anything: a step
 * or ZeroGrad unsets it, and the next backward overwrites instead of adding. The weight's is added
 * to in place, unless a save holds it: then it moves. Part of a layer. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_GRADIENT_H
#define FP8D_DAEMON_ENGINE_GRADIENT_H

#include "kernels/backend.h"

#include <stdbool.h>

struct gradient_next;

struct gradient {
    struct tensor weight; /* [out, in]; buf NULL: none yet */
    struct tensor bias;   /* [1, out]; buf NULL: none yet, no bias, or one that came since */
    bool held;
    uint64_t contributions;             /* backward requests that it is the sum of; 0 unless held */
    uint64_t nonfinite;                 /* elements of their grad_output */
    const struct gradient_next *coming; /* of a backward that computes; NULL: none */
};

void gradient_fini(struct gradient *g);            /* also when zeroed */
void gradient_forget(struct gradient *g);          /* not held any more; the memory stays */
uint64_t gradient_bytes(const struct gradient *g); /* charged */

/* What a step uses: as it will be once the backward that computes has ended, if one does. */
bool gradient_expected(const struct gradient *g);
const struct tensor *gradient_weight(const struct gradient *g);
const struct tensor *gradient_bias(const struct gradient *g); /* buf NULL: none */

/* Where one backward writes. The bias' gradient is made anew each time, so that a request that
 * fails leaves the old one whole. */
struct gradient_next {
    struct tensor weight; /* [out, in], borrowed unless fresh */
    struct buffer *fresh; /* its memory, where the layer has none yet or a save holds it */
    struct tensor bias;   /* [1, out], own; buf NULL: the layer has no bias */
};

struct engine;

/* Memory for a backward of a layer of [out, in]; can be let go after a failure. */
int gradient_reserve(const struct gradient *g, struct engine *e, uint64_t out, uint64_t in,
                     bool bias, struct gradient_next *n, struct fault *f);
/* What the new memory begins with, where the backward adds. Before anything of it is enqueued. */
int gradient_carry(const struct gradient *g, const struct gradient_next *n, struct queue *q,
                   struct fault *f);
/* The backward is complete, and its grad_output had that many elements that are not finite. */
void gradient_settle(struct gradient *g, struct gradient_next *n, uint64_t nonfinite);
void gradient_next_fini(struct gradient_next *n); /* also when zeroed, or settled */

#endif
