/* state.h - how a model lies in a file: the key scheme, version 1.
 *
 * A save is a safetensors file that any reader can open. For each layer X:
 *
 *   X.weight                  [out, in]  as held: F32, BF16, F16, or F8_E4M3/F8_E5M2 (FP8 primary)
 *   X.weight_scale            []   F32   FP8 primary only: real = code * weight_scale
 *   X.bias                    [out]      where the layer has one
 *   X.fp8d.S.scaling          [4]  F32   scale, scale_inv, amax_last, calibration_amax
 *   X.fp8d.S.amax_history     [L]  F32   row 0 collects, row 1 oldest, row L-1 newest
 *   X.fp8d.S.counters         [8]  U64   set, row 0 non-finite, updates, skipped_updates,
 *                                        nonfinite, saturated, flushed, calibration seen
 *   X.fp8d.cached.weight      [out, in]  FP8 codes of the training copy, where there is one
 *   X.fp8d.cached.weight_scale []  F32   their factor, real = code * weight_scale
 *   X.fp8d.cached.cast        [2]  F32   scale it was cast with, amax that it saw
 *   X.fp8d.cached.counters    [6]  U64   scale came from the tensor, margin, casts, nonfinite,
 *                                        saturated, flushed
 *
 * with S one of input, weight, grad_output; what training adds is in state_optimizer.h. For the
 * model:
 *
 *   fp8d.model                [4]  U64   key scheme, weight_version, frozen, calibrating
 *   __metadata__              fp8d_format "1"; fp8d_recipe, a JSON object with kind, fp8_format,
 *                             amax_algo, amax_history_len, margin, and fprop_accumulation where
 *                             it is precise (absent: fast)
 *
 * FP8 codes without their factor, and the other way round, are an error. Nothing in a save depends
 * on how many steps a model has seen. Pure functions over plain memory; any thread.
 */
#ifndef FP8D_DAEMON_ENGINE_STATE_H
#define FP8D_DAEMON_ENGINE_STATE_H

#include "ckpt/safetensors.h"
#include "daemon/engine/site.h"
#include "daemon/engine/weight.h"

#define STATE_FORMAT 1
#define STATE_SCALING 4
#define STATE_COUNTERS 8
#define STATE_CACHED_CAST 2
#define STATE_CACHED_COUNTERS 6
#define STATE_MODEL 4
#define STATE_MODEL_KEY "fp8d.model"
#define STATE_NAME_MAX 1100
#define STATE_SAVED_MAX 994 /* bytes of a layer's name that a save has room for */
#define STATE_LAYER_MAX 984 /* bytes of a layer's name: all names above have at most 1024 */

/* The sites that have state, in the order they are written. */
extern const enum site_kind state_sites[3];

/* "X.fp8d.input.scaling" into out[STATE_NAME_MAX]; false if it does not fit. part: "scaling",
 * "amax_history", "counters". */
bool state_site_key(char *out, const char *layer, enum site_kind kind, const char *part);
/* part: "weight", "weight_scale", "cast", "counters". */
bool state_cached_key(char *out, const char *layer, const char *part);

/* True for the names of the key scheme: "X.fp8d....", whatever X. *len is that of X. */
bool state_is_key(const char *name, size_t *len);

/* A scaler and its calibration as arrays, and back: history has len rows, out has out->len and is
 * filled by scaler_resize. FP8D_EDATA_LOSS, and *why says which, for values that no save can hold:
 * scale not finite or not positive, scale and scale_inv that do not belong together, an unset site
 * with a scale, an amax negative or not finite, a flag that is neither 0 nor 1. -ENOMEM. */
void state_put_site(const struct site *s, float scaling[STATE_SCALING],
                    uint64_t counters[STATE_COUNTERS]);
int state_take_site(const float scaling[STATE_SCALING], const uint64_t counters[STATE_COUNTERS],
                    const float *history, uint32_t len, struct scaler *out,
                    struct site *calibration, const char **why);

void state_put_cached(const struct weight_copy *c, float cast[STATE_CACHED_CAST],
                      uint64_t counters[STATE_CACHED_COUNTERS]);
/* `factor` is what the copy's codes are multiplied with. key.version, fmt and granularity are the
 * caller's. FP8D_EDATA_LOSS as above. */
int state_take_cached(const float cast[STATE_CACHED_CAST],
                      const uint64_t counters[STATE_CACHED_COUNTERS], float factor,
                      struct weight_copy *out, const char **why);

/* The tensor fp8d.model: FP8D_EDATA_LOSS, and *why says which value is out of its range. */
int state_check_model(const uint64_t model[STATE_MODEL], const char **why);

/* The recipe as one line of JSON, and back: FP8D_EDATA_LOSS names the member. */
#define STATE_RECIPE_MAX 192
void state_put_recipe(const struct recipe *r, char out[STATE_RECIPE_MAX]);
int state_take_recipe(const char *json, struct recipe *out, struct fault *f);

#endif
