#include "daemon/engine/state.h"

#include "base/mem.h"
#include "ckpt/json.h"
#include "daemon/engine/state_optimizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const enum site_kind state_sites[3] = {SITE_INPUT, SITE_WEIGHT, SITE_GRAD_OUTPUT};

static bool fits(int n)
{
    return n > 0 && n < STATE_NAME_MAX;
}

bool state_site_key(char *out, const char *layer, enum site_kind kind, const char *part)
{
    return fits(snprintf(out, STATE_NAME_MAX, "%s.fp8d.%s.%s", layer, site_name(kind), part));
}

bool state_cached_key(char *out, const char *layer, const char *part)
{
    return fits(snprintf(out, STATE_NAME_MAX, "%s.fp8d.cached.%s", layer, part));
}

static bool ends_with_part(const char *rest)
{
    static const char *const site_parts[] = {"scaling", "amax_history", "counters"};
    static const char *const cached_parts[] = {"weight", "weight_scale", "cast", "counters"};
    char key[64];
    for (unsigned s = 0; s < 3; s++)
        for (unsigned p = 0; p < 3; p++) {
            (void)snprintf(key, sizeof key, "%s.%s", site_name(state_sites[s]), site_parts[p]);
            if (!strcmp(rest, key))
                return true;
        }
    for (unsigned p = 0; p < 4; p++) {
        (void)snprintf(key, sizeof key, "cached.%s", cached_parts[p]);
        if (!strcmp(rest, key))
            return true;
    }
    return state_is_training_part(rest);
}

bool state_is_key(const char *name, size_t *len)
{
    static const char mark[] = ".fp8d.";
    const char *at = name;
    /* The last mark counts: X itself may hold one. */
    const char *found = NULL;
    while ((at = strstr(at, mark)))
        found = at++;
    if (!found || found == name || !ends_with_part(found + sizeof mark - 1))
        return false;
    *len = (size_t)(found - name);
    return true;
}

void state_put_site(const struct site *s, float scaling[STATE_SCALING],
                    uint64_t counters[STATE_COUNTERS])
{
    const struct scaler *m = site_mirror(s);
    scaling[0] = m->scale;
    scaling[1] = m->scale_inv;
    scaling[2] = m->amax_last;
    scaling[3] = s->calibration_amax;
    counters[0] = m->set;
    counters[1] = m->row0_nonfinite;
    counters[2] = m->updates;
    counters[3] = m->skipped_updates;
    counters[4] = m->nonfinite;
    counters[5] = m->saturated;
    counters[6] = m->flushed;
    counters[7] = s->calibration_seen;
}

/* Finite and >= 0: what an amax can be. */
static bool amax_ok(float x)
{
    return x >= 0.0f && x <= FP8_FLT_MAX;
}

/* A cast makes scale_inv = 1/scale; a factor of a file gives scale = 1/scale_inv. */
static bool belong_together(float scale, float scale_inv)
{
    return scale_inv == recipe_scale_inv(scale) || scale == recipe_scale_of(scale_inv);
}

static bool scale_ok(float scale)
{
    return scale >= FP8_FLT_MIN && scale <= FP8_FLT_MAX;
}

static const char *site_fault(const float *scaling, const uint64_t *counters, const float *history,
                              uint32_t len)
{
    if (!scale_ok(scaling[0]))
        return "scale is not a finite normal number above 0";
    if (!recipe_factor_ok(scaling[1]))
        return "scale_inv is not a finite number of at least 2^-128";
    if (!belong_together(scaling[0], scaling[1]))
        return "scale and scale_inv do not belong together, needed 1/scale";
    if (!amax_ok(scaling[2]) || !amax_ok(scaling[3]))
        return "an amax is negative or not finite";
    if (counters[0] > 1 || counters[1] > 1 || counters[7] > 1)
        return "a flag is neither 0 nor 1";
    if (!counters[0] && scaling[0] != 1.0f)
        return "the site is unset but has a scale other than 1";
    for (uint32_t i = 0; i < len; i++)
        if (!amax_ok(history[i]))
            return "the amax history holds a negative or non-finite number";
    return NULL;
}

static void fill_scaler(struct scaler *in, const float *scaling, const uint64_t *counters,
                        const float *history)
{
    in->scale = scaling[0];
    in->scale_inv = scaling[1];
    in->amax_last = scaling[2];
    in->set = (uint32_t)counters[0];
    in->row0_nonfinite = (uint32_t)counters[1];
    in->updates = counters[2];
    in->skipped_updates = counters[3];
    in->nonfinite = counters[4];
    in->saturated = counters[5];
    in->flushed = counters[6];
    memcpy(in->history, history, in->len * sizeof(float));
}

int state_take_site(const float scaling[STATE_SCALING], const uint64_t counters[STATE_COUNTERS],
                    const float *history, uint32_t len, struct scaler *out,
                    struct site *calibration, const char **why)
{
    *why = site_fault(scaling, counters, history, len);
    if (*why)
        return FP8D_EDATA_LOSS;
    struct scaler *in = mem_alloc(scaler_bytes(len));
    if (!in) {
        *why = "out of memory";
        return -ENOMEM;
    }
    scaler_init(in, len);
    fill_scaler(in, scaling, counters, history);
    scaler_resize(out, in);
    mem_free(in);
    calibration->calibration_amax = scaling[3];
    calibration->calibration_seen = counters[7] != 0;
    return 0;
}

void state_put_cached(const struct weight_copy *c, float cast[STATE_CACHED_CAST],
                      uint64_t counters[STATE_CACHED_COUNTERS])
{
    cast[0] = c->report.scale;
    cast[1] = c->report.slot.amax;
    counters[0] = c->key.from_tensor;
    counters[1] = (uint64_t)c->key.margin;
    counters[2] = c->report.slot.casts;
    counters[3] = c->report.slot.nonfinite;
    counters[4] = c->report.slot.saturated;
    counters[5] = c->report.slot.flushed;
}

int state_take_cached(const float cast[STATE_CACHED_CAST],
                      const uint64_t counters[STATE_CACHED_COUNTERS], float factor,
                      struct weight_copy *out, const char **why)
{
    *why = !scale_ok(cast[0]) ? "the scale of the cached copy is not a finite normal number above 0"
           : !belong_together(cast[0], factor)
               ? "scale and factor of the cached copy do not belong together, needed 1/scale"
           : !amax_ok(cast[1]) ? "the amax of the cached copy is negative or not finite"
           : counters[0] > 1   ? "a flag of the cached copy is neither 0 nor 1"
           : counters[1] > RECIPE_MARGIN_MAX ? "the margin of the cached copy is above 31"
           : counters[2] > UINT32_MAX        ? "the casts of the cached copy are beyond 2^32"
                                             : NULL;
    if (*why)
        return FP8D_EDATA_LOSS;
    out->key.from_tensor = counters[0] != 0;
    out->key.margin = out->key.from_tensor ? (int)counters[1] : 0;
    out->key.scale = out->key.from_tensor ? 0.0f : cast[0];
    out->key.scale_inv = out->key.from_tensor ? 0.0f : factor;
    out->report.scale = cast[0];
    out->report.scale_inv = factor;
    out->report.slot.amax = cast[1];
    out->report.slot.casts = (uint32_t)counters[2];
    out->report.slot.nonfinite = counters[3];
    out->report.slot.saturated = counters[4];
    out->report.slot.flushed = counters[5];
    out->report.from_tensor = out->key.from_tensor;
    return 0;
}

int state_check_model(const uint64_t model[STATE_MODEL], const char **why)
{
    *why = model[0] != STATE_FORMAT ? "its key scheme is not that of the metadata, needed 1"
           : model[1] < 1 || model[1] > INT64_MAX
               ? "its weight version is not between 1 and 2^63 - 1"
           : model[2] > 1 ? "its flag frozen is neither 0 nor 1"
           : model[3] > 1 ? "its flag calibrating is neither 0 nor 1"
                          : NULL;
    return *why ? FP8D_EDATA_LOSS : 0;
}

/* --- recipe --- */

static const char *const kinds[] = {NULL, "delayed", "current"};
static const char *const formats[] = {NULL, "hybrid", "e4m3"};
static const char *const algos[] = {NULL, "max", "most_recent"};
static const char *const sums[] = {NULL, "fast", "precise"};

/* Named only where it is not what a file without it means: a save of a model from before it was a
 * choice is the same file again. */
#define PRECISE_MEMBER ",\"fprop_accumulation\":\"precise\""

void state_put_recipe(const struct recipe *r, char out[STATE_RECIPE_MAX])
{
    (void)snprintf(out, STATE_RECIPE_MAX,
                   "{\"kind\":\"%s\",\"fp8_format\":\"%s\",\"amax_algo\":\"%s\","
                   "\"amax_history_len\":%u,\"margin\":%d%s}",
                   kinds[r->kind], formats[r->format], algos[r->algo], r->history_len, r->margin,
                   r->fprop == ACCUMULATION_PRECISE ? PRECISE_MEMBER : "");
}

/* 1 or 2, or 0 after a fault. */
static int word_of(const json_t *object, const char *member, const char *const names[3],
                   struct fault *f)
{
    const char *s = json_string_value(json_object_get(object, member));
    for (int i = 1; s && i < 3; i++)
        if (!strcmp(s, names[i]))
            return i;
    fault_set(f, FP8D_EDATA_LOSS,
              "metadata fp8d_recipe: %s is missing or unknown, needed \"%s\" or "
              "\"%s\"",
              member, names[1], names[2]);
    return 0;
}

static int accumulation_of(const json_t *object, struct fault *f)
{
    return json_object_get(object, "fprop_accumulation")
               ? word_of(object, "fprop_accumulation", sums, f)
               : ACCUMULATION_FAST;
}

static int number_of(const json_t *object, const char *member, int64_t low, int64_t high,
                     int64_t *out, struct fault *f)
{
    const json_t *v = json_object_get(object, member);
    if (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high)
        return fault_set(f, FP8D_EDATA_LOSS,
                         "metadata fp8d_recipe: %s is missing or out of range, needed %lld to %lld",
                         member, (long long)low, (long long)high);
    *out = json_integer_value(v);
    return 0;
}

int state_take_recipe(const char *json, struct recipe *out, struct fault *f)
{
    struct arena a;
    json_t *object;
    int64_t len = 0;
    int64_t margin = 0;
    arena_init(&a, 65536);
    int rc = json_parse(json, strlen(json), &a, &object, f);
    struct recipe r = {0};
    if (!rc) {
        r.kind = (enum recipe_kind)word_of(object, "kind", kinds, f);
        r.format = r.kind ? (enum recipe_format)word_of(object, "fp8_format", formats, f) : 0;
        r.algo = r.format ? (enum amax_algo)word_of(object, "amax_algo", algos, f) : 0;
        r.fprop = r.algo ? (enum recipe_accumulation)accumulation_of(object, f) : 0;
        rc = r.fprop ? 0 : f->code;
    } else {
        rc = fault_wrap(f, "metadata fp8d_recipe");
    }
    if (!rc)
        rc = number_of(object, "amax_history_len", 1, RECIPE_HISTORY_MAX, &len, f);
    if (!rc)
        rc = number_of(object, "margin", 0, RECIPE_MARGIN_MAX, &margin, f);
    arena_fini(&a);
    if (rc)
        return rc;
    r.history_len = (uint32_t)len;
    r.margin = (int)margin;
    *out = r;
    return 0;
}
