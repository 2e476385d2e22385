/* state_optimizer.h - how the state of training lies in a file: part of the key scheme of state.h.
 *
 * In the metadata, where an optimizer is set:
 *
 *   fp8d_optimizer                    a JSON object with kind ("sgd", "adam", "adamw"), rate,
 *                                     momentum, dampening, nesterov, beta1, beta2, eps,
 *                                     weight_decay, steps (taken), updates (applied)
 *
 * and for each layer X, where it has them, P being weight or bias:
 *
 *   X.fp8d.optimizer.options  [3]  F64   frozen (0, 1), rate, weight_decay (-1: the model's)
 *   X.fp8d.optimizer.P_master      F32   shape of P; not where P is float32, its own master
 *   X.fp8d.optimizer.P_m           F32   first moment, or SGD's momentum buffer
 *   X.fp8d.optimizer.P_v           F32   second moment
 *   X.fp8d.gradient.P              F32   shape of P: what backward requests have added up
 *   X.fp8d.gradient.counters  [2]  U64   their number, non-finite elements of their grad_output
 *   X.fp8d.origin             [1]  U64   FP8 weights: number of the dtype (F32 1, BF16 2, F16 3)
 * that the weight was cast from; a step rounds masters to it
 *
 * Pure functions over plain memory; any thread.
 */
#ifndef FP8D_DAEMON_ENGINE_STATE_OPTIMIZER_H
#define FP8D_DAEMON_ENGINE_STATE_OPTIMIZER_H

#include "daemon/engine/optimizer.h"

#define STATE_OPTIMIZER_META "fp8d_optimizer"
#define STATE_OPTIMIZER_MAX 512
#define STATE_OWN 3
#define STATE_GRADIENT_COUNTERS 2
#define STATE_COUNT_MAX ((uint64_t)1 << 62) /* of steps and backwards: there is room to count on */

enum { STATE_WEIGHT, STATE_BIAS, STATE_PARAMETERS };
enum { STATE_MASTER, STATE_M, STATE_V, STATE_MOVED_PARTS };
enum { STATE_GRADIENT_WEIGHT, STATE_GRADIENT_BIAS, STATE_GRADIENT_COUNTS, STATE_GRADIENT_PARTS };

/* The last part of each name above. */
extern const char *const state_moved_parts[STATE_PARAMETERS][STATE_MOVED_PARTS];
extern const char *const state_gradient_parts[STATE_GRADIENT_PARTS];

/* "X.fp8d.optimizer.weight_m" into out[STATE_NAME_MAX]; false if it does not fit. part: one of
 * state_moved_parts, or "options". */
bool state_optimizer_key(char *out, const char *layer, const char *part);
bool state_gradient_key(char *out, const char *layer, const char *part);
bool state_origin_key(char *out, const char *layer);

/* True for what follows "X.fp8d." in one of these names. */
bool state_is_training_part(const char *rest);

/* "sgd", "adam", "adamw". */
const char *state_optimizer_kind(enum optimizer_kind kind);
void state_put_optimizer(const struct optimizer *o, char out[STATE_OPTIMIZER_MAX]);
/* FP8D_EDATA_LOSS with the member, for what is missing or no save can hold. */
int state_take_optimizer(const char *json, struct optimizer *out, struct fault *f);

void state_put_own(const struct optimizer_own *own, double out[STATE_OWN]);
/* Merged with the model's, they pass optimizer_accept; else FP8D_EDATA_LOSS, *why says which. */
int state_take_own(const double in[STATE_OWN], const struct optimizer *model,
                   struct optimizer_own *out, const char **why);

/* DTYPE_NONE for a number that is none of the three. */
enum dtype state_take_origin(uint64_t number);

#endif
