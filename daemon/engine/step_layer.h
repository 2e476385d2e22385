/* step_layer.h - one layer's part of a step: memory, the measuring round, the moving round, the
 * end. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_STEP_LAYER_H
#define FP8D_DAEMON_ENGINE_STEP_LAYER_H

#include "daemon/engine/engine.h"
#include "daemon/engine/model.h"

/* What the device says of one layer; in host memory that it can write. */
struct step_report {
    struct norm_report weight, bias;
    struct cast_report cast;
};

/* One tensor and what moves it. Fresh memory becomes the layer's when the step has succeeded. */
struct step_tensor {
    struct optimizer_state fresh; /* of state that the layer lacks, or that somebody else holds */
    struct tensor to;             /* where the weight is written: its own memory, or */
    struct buffer *fresh_to;      /* this, while somebody else holds its own */
};

struct step_layer {
    struct layer *layer;
    struct step_tensor weight, bias;
    struct buffer *measured[2]; /* gradients in the first round: a backward may fail and drop them */
    struct qtensor *q;          /* the new FP8 copy, or FP8 primary weight; NULL: none is made */
};

/* All memory but that of the FP8 copy. Can be let go after a failure. */
int step_layer_init(struct step_layer *s, struct model *m, struct layer *l, struct fault *f);
void step_layer_fini(struct step_layer *s); /* also when zeroed */

/* First round: fill what is fresh, measure the gradients. */
int step_layer_begin(struct step_layer *s, struct model *m, struct step_report *r, struct fault *f);
/* That is over. */
void step_layer_measured(struct step_layer *s);
/* Second round. grad_scale multiplies every element of the gradients. */
int step_layer_update(struct step_layer *s, struct model *m, float grad_scale,
                      struct step_report *r, struct fault *f);
/* The model's weight version has been raised. */
void step_layer_settle(struct step_layer *s, struct model *m, const struct step_report *r);

/* Square root, correctly rounded, without libm's errno. */
double step_sqrt(double x);

#endif
