/* forward.h - one linear layer's forward: eval, train, calibrate.
 *
 * y[tokens, out] = x[tokens, in] * W[out, in]^T + b. Checks everything first; then enqueues, and
 * completes on the engine thread. What a request changes (training copy, scope, mirrors, context,
 * calibration maxima) changes when it has succeeded, all at once. Rules: docs/numerics.md 2 to 5.
 */
#ifndef FP8D_DAEMON_ENGINE_FORWARD_H
#define FP8D_DAEMON_ENGINE_FORWARD_H

#include "daemon/engine/lease.h"
#include "daemon/engine/model.h"
#include "daemon/engine/resident.h"

struct forward_args {
    struct lease *lease;
    struct model *model;
    struct layer *layer;
    enum forward_mode mode;       /* not MODE_CHECK */
    enum first_microbatch first;
    const struct operand *input;  /* borrowed until the call returns */
    enum dtype output_dtype;      /* DTYPE_NONE: that of the input, BF16 for FP8 input */
    uint64_t output_id;           /* 0: the output is handed to `done` alone */
    bool replace_output;          /* output_id may be in use */
    uint64_t context_id;          /* 0: none */
    uint64_t inline_max;          /* bytes an output without output_id may have; 0: any */
    bool time_compute;            /* read the device's clock before and behind */
};

struct forward_result {
    struct operand output;        /* the callback takes its own reference if it needs one */
    bool input_cast, weight_cast; /* whether the reports below mean anything */
    struct cast_report input, weight;
    enum dtype input_fmt, weight_fmt;
    bool uncalibrated_input, uncalibrated_weight; /* the scale came from the tensor: unset site */
    enum copy_action copy;        /* COPY_NONE in calibrate and for zero tokens */
    bool applied;                 /* the request's own scope ended with it */
    uint64_t incarnation, weight_version; /* that it was computed with */
    uint64_t compute_ns; /* between the two readings of the device's clock; 0: there are none */
};

/* Exactly one call, on the engine thread; `r` is NULL when the fault's code is not 0. */
typedef void (*forward_done_cb)(void *arg, const struct fault *f, const struct forward_result *r);

/* 0: `done` will be called. A status: nothing was started, `done` will not be called. */
int forward_start(const struct forward_args *a, forward_done_cb done, void *arg, struct fault *f);

/* Everything that can be refused before anything is started; `out` is the output's dtype. */
int forward_check(const struct forward_args *a, enum dtype out, struct fault *f);

/* The checks on an input that all computing requests share: rank, features, dtype. */
int forward_check_input(const struct layer *l, const struct operand *input, bool fp8_allowed,
                        struct fault *f);

#endif
