/* check.h - FP8 against high precision for one input: what eval would compute, and what it costs in
 * accuracy. Changes no state. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_CHECK_H
#define FP8D_DAEMON_ENGINE_CHECK_H

#include "daemon/engine/lease.h"
#include "daemon/engine/model.h"
#include "daemon/engine/resident.h"

struct check_result {
    struct compare_report compare; /* FP8 output against high precision, both F32 */
    struct cast_report input, weight;
    enum dtype input_fmt, weight_fmt;
    bool uncalibrated; /* delayed: a scale taken from a tensor means an unset site */
    uint64_t input_elements, weight_elements;
    uint64_t incarnation, weight_version;
};

typedef void (*check_done_cb)(void *arg, const struct fault *f, const struct check_result *r);

/* As forward_start. `input` is borrowed until the call returns. */
int check_start(struct lease *l, struct model *m, struct layer *layer, const struct operand *input,
                check_done_cb done, void *arg, struct fault *f);

#endif
