/* hand.h - one linear layer trained by hand with kernels alone, beside its float64 oracle.
 *
 * Each step does to backend tensors what docs/numerics.md section 2 asks for and gives the same
 * step to tests/oracle/microbatch; outputs, scales and histories must agree. The engine's own logic
 * is not in here: this shows that the kernels carry the rules, and how they are driven.
 */
#ifndef FP8D_TESTS_SCENARIO_HAND_H
#define FP8D_TESTS_SCENARIO_HAND_H

#include "tests/oracle/microbatch.h"
#include "tests/unit/rig.h"

struct hand {
    struct rig rig;
    struct oracle_layer *oracle;
    struct oracle_recipe recipe;
    size_t out, in;
    struct tensor w;
    uint64_t version;
    struct qtensor *copy; /* the training copy, and what its cast said */
    uint64_t copy_version;
    struct cast_report copy_report;
    struct buffer *state; /* two scalers, reports and slots */
    struct scaler *site[2];
    struct cast_report *report[2];
    struct amax_slot *scope[2]; /* what the casts of the open scope saw */
    bool in_scope;
    float calibrated[2];
};

struct hand_result {
    enum oracle_copy copy;
    double against_high; /* max |y - high precision| */
};

void hand_open(struct hand *h, size_t out, size_t in, const struct oracle_recipe *r,
               unsigned threads);
void hand_close(struct hand *h);
void hand_set_weight(struct hand *h, const float *w);
void hand_load(struct hand *h, const float *w, float input_scale_inv, float weight_scale_inv);

void hand_scope_begin(struct hand *h);
void hand_scope_end(struct hand *h);
void hand_calibration_finish(struct hand *h);

/* One forward on both sides. Fails the test where outputs leave bound.h's, or scale, history or
 * what happened to the copy differ. */
struct hand_result hand_forward(struct hand *h, enum oracle_mode mode, enum oracle_flag flag,
                                const float *x, size_t tokens);

/* Inputs: uniform in [0, 1), and normal with mean 0. Heap; the caller frees. */
float *hand_uniform(uint64_t seed, size_t n);
float *hand_normal(uint64_t seed, size_t n, double spread);

#endif
