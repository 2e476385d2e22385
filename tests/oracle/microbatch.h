/* microbatch.h - one linear layer under FP8 training, emulated in float64 from docs/numerics.md.
 *
 * A second writing of sections 1 to 5 that includes nothing of kernels/ or daemon/: FP8 by ldexp
 * and nearbyint on doubles, histories by scaler_ref, the weight's training copy by the table of
 * section
 * 2. Give it the same sequence of weights, inputs and flags as the program under test, and it says
 * which outputs, scales and histories must come out. High-precision weights with a cached copy;
 * per-tensor scaling; the backward pass is not here. Outputs are not rounded to a dtype.
 *
 * Heap objects of one thread; running out of memory ends the program.
 */
#ifndef FP8D_TESTS_MICROBATCH_H
#define FP8D_TESTS_MICROBATCH_H

#include "tests/oracle/cut.h"
#include "tests/oracle/scaler_ref.h"

struct oracle_layer;

enum oracle_mode { ORACLE_TRAIN, ORACLE_EVAL, ORACLE_CALIBRATE };
enum oracle_flag { ORACLE_UNSET, ORACLE_TRUE, ORACLE_FALSE }; /* is_first_microbatch; train only */
enum oracle_site { ORACLE_INPUT, ORACLE_WEIGHT };

/* What a forward did with the weight. */
enum oracle_copy {
    ORACLE_COPY_CAST = 1, /* train: cast anew, the new training copy */
    ORACLE_COPY_REUSED,   /* the training copy as it was, with the factor it carries */
    ORACLE_COPY_REMADE,   /* train, false, but no copy of this version: cast as for `true` */
    ORACLE_COPY_EVAL,     /* eval: a copy of its own, not kept */
    ORACLE_COPY_NONE,     /* calibrate: high precision */
};

struct oracle_recipe {
    bool current;     /* else delayed */
    bool most_recent; /* else max */
    bool input_e5m2, weight_e5m2;
    int margin;
    size_t history_len;
};

struct oracle_layer *oracle_layer_new(size_t out, size_t in, const struct oracle_recipe *r);
void oracle_layer_free(struct oracle_layer *l); /* NULL is fine */

/* An edit or an optimizer step: a new version of [out, in]; scaling state stays. */
void oracle_set_weight(struct oracle_layer *l, const float *w);
void oracle_set_bias(struct oracle_layer *l, const float *bias); /* [out], or NULL for none */

/* A load: weight and state replaced, the training copy gone. A factor of 0 means that the file has
 * no scale for that site. */
void oracle_load(struct oracle_layer *l, const float *w, float input_scale_inv,
                 float weight_scale_inv);

/* y[tokens, out] of x[tokens, in]. Outside a scope a train forward is its own. */
enum oracle_copy oracle_forward(struct oracle_layer *l, enum oracle_mode mode,
                                enum oracle_flag flag, const float *x, size_t tokens, double *y);
/* From here on every product also writes what its sums may be off on a GPU, factors included, to
 * c[tokens, out]. NULL: no more. */
void oracle_cuts(struct oracle_layer *l, struct cut *c);
/* The same in high precision; touches nothing. */
void oracle_high(const struct oracle_layer *l, const float *x, size_t tokens, double *y);

void oracle_scope_begin(struct oracle_layer *l);
void oracle_scope_end(struct oracle_layer *l);  /* the update of both sites */
void oracle_scope_drop(struct oracle_layer *l); /* its owner died: no update, what it saw is lost */
void oracle_calibration_finish(struct oracle_layer *l);
void oracle_calibration_abort(struct oracle_layer *l);

/* Scale, histories and counters of a site; its list `seen` is the history, newest first. */
const struct scaler_ref *oracle_state(const struct oracle_layer *l, enum oracle_site site);
float oracle_copy_factor(const struct oracle_layer *l); /* of the training copy; 0: there is none */

/* value * scale in float32, rounded to FP8 as section 1 says; the decoded value. */
double oracle_fp8(double v, bool e5m2);

#endif
