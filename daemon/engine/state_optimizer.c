#include "daemon/engine/state_optimizer.h"

#include "base/mem.h"
#include "ckpt/json.h"
#include "daemon/engine/state.h"

#include <stdio.h>
#include <string.h>

const char *const state_moved_parts[STATE_PARAMETERS][STATE_MOVED_PARTS] = {
    {"weight_master", "weight_m", "weight_v"},
    {"bias_master", "bias_m", "bias_v"},
};
const char *const state_gradient_parts[STATE_GRADIENT_PARTS] = {"weight", "bias", "counters"};

static const char own_part[] = "options";
static const char origin_part[] = "origin";

/* --- names --- */

static bool key(char *out, const char *layer, const char *of, const char *part)
{
    int n = snprintf(out, STATE_NAME_MAX, "%s.fp8d.%s%s", layer, of, part);
    return n > 0 && n < STATE_NAME_MAX;
}

bool state_optimizer_key(char *out, const char *layer, const char *part)
{
    return key(out, layer, "optimizer.", part);
}

bool state_gradient_key(char *out, const char *layer, const char *part)
{
    return key(out, layer, "gradient.", part);
}

bool state_origin_key(char *out, const char *layer)
{
    return key(out, layer, "", origin_part);
}

/* What follows `of` in text, or NULL. */
static const char *after(const char *text, const char *of)
{
    size_t n = strlen(of);
    return strncmp(text, of, n) ? NULL : text + n;
}

bool state_is_training_part(const char *rest)
{
    const char *part = after(rest, "gradient.");
    for (unsigned i = 0; part && i < STATE_GRADIENT_PARTS; i++)
        if (!strcmp(part, state_gradient_parts[i]))
            return true;
    part = after(rest, "optimizer.");
    for (unsigned p = 0; part && p < STATE_PARAMETERS; p++)
        for (unsigned i = 0; i < STATE_MOVED_PARTS; i++)
            if (!strcmp(part, state_moved_parts[p][i]))
                return true;
    return part ? !strcmp(part, own_part) : !strcmp(rest, origin_part);
}

/* --- the model's options --- */

static const char *const kinds[] = {NULL, "sgd", "adam", "adamw"};

const char *state_optimizer_kind(enum optimizer_kind kind)
{
    return kinds[kind];
}

struct member {
    const char *name;
    size_t at; /* of a double in struct optimizer_options */
};

#define NUMBER(name)                                                                               \
    {                                                                                              \
#name, offsetof(struct optimizer_options, name)                                            \
    }
static const struct member numbers[] = {
    NUMBER(rate),  NUMBER(momentum), NUMBER(dampening),    NUMBER(beta1),
    NUMBER(beta2), NUMBER(eps),      NUMBER(weight_decay),
};
#undef NUMBER
#define NUMBERS (sizeof numbers / sizeof numbers[0])

static double *number_at(struct optimizer_options *o, unsigned i)
{
    return (double *)(void *)((char *)o + numbers[i].at);
}

/* 17 digits are a double's value and no other's. At most 40 bytes each: it fits. */
void state_put_optimizer(const struct optimizer *o, char out[STATE_OPTIMIZER_MAX])
{
    struct optimizer_options options = o->options;
    size_t at = (size_t)snprintf(out, STATE_OPTIMIZER_MAX, "{\"kind\":\"%s\"", kinds[options.kind]);
    for (unsigned i = 0; i < NUMBERS; i++)
        at += (size_t)snprintf(out + at, STATE_OPTIMIZER_MAX - at, ",\"%s\":%.17g", numbers[i].name,
                               *number_at(&options, i));
    (void)snprintf(out + at, STATE_OPTIMIZER_MAX - at,
                   ",\"nesterov\":%s,\"steps\":%llu,\"updates\":%llu}",
                   options.nesterov ? "true" : "false", (unsigned long long)o->steps,
                   (unsigned long long)o->updates);
}

static int wrong(const char *member, const char *needed, struct fault *f)
{
    return fault_set(f, FP8D_EDATA_LOSS,
                     "metadata " STATE_OPTIMIZER_META ": %s is missing or unknown, needed %s",
                     member, needed);
}

static int take_kind(const json_t *object, struct optimizer *out, struct fault *f)
{
    const char *s = json_string_value(json_object_get(object, "kind"));
    for (unsigned i = OPTIMIZER_SGD; s && i <= OPTIMIZER_ADAMW; i++)
        if (!strcmp(s, kinds[i])) {
            out->options.kind = (enum optimizer_kind)i;
            return 0;
        }
    return wrong("kind", "\"sgd\", \"adam\" or \"adamw\"", f);
}

static int take_count(const json_t *object, const char *member, uint64_t *out, struct fault *f)
{
    const json_t *v = json_object_get(object, member);
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        json_integer_value(v) > (json_int_t)STATE_COUNT_MAX)
        return wrong(member, "an integer from 0 to 2^62", f);
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

static int take_members(const json_t *object, struct optimizer *out, struct fault *f)
{
    int rc = take_kind(object, out, f);
    for (unsigned i = 0; !rc && i < NUMBERS; i++) {
        const json_t *v = json_object_get(object, numbers[i].name);
        if (!json_is_number(v))
            return wrong(numbers[i].name, "a number", f);
        *number_at(&out->options, i) = json_number_value(v);
    }
    const json_t *nesterov = json_object_get(object, "nesterov");
    if (!rc && !json_is_boolean(nesterov))
        rc = wrong("nesterov", "true or false", f);
    out->options.nesterov = json_is_true(nesterov);
    if (!rc)
        rc = take_count(object, "steps", &out->steps, f);
    if (!rc)
        rc = take_count(object, "updates", &out->updates, f);
    if (!rc && out->updates > out->steps)
        rc = fault_set(f, FP8D_EDATA_LOSS,
                       "metadata " STATE_OPTIMIZER_META
                       ": updates is %llu, needed at most steps, %llu",
                       (unsigned long long)out->updates, (unsigned long long)out->steps);
    return rc;
}

int state_take_optimizer(const char *json, struct optimizer *out, struct fault *f)
{
    struct arena a;
    json_t *object;
    struct optimizer o = {.set = true};
    arena_init(&a, 65536);
    int rc = json_parse(json, strlen(json), &a, &object, f);
    if (rc)
        (void)fault_wrap(f, "metadata " STATE_OPTIMIZER_META);
    else
        rc = take_members(object, &o, f);
    arena_fini(&a);
    if (!rc && optimizer_accept(&o.options, f)) {
        f->code = rc = FP8D_EDATA_LOSS;
        (void)fault_wrap(f, "metadata " STATE_OPTIMIZER_META);
    }
    if (!rc)
        *out = o;
    return rc;
}

/* --- a layer's --- */

void state_put_own(const struct optimizer_own *own, double out[STATE_OWN])
{
    out[0] = own->frozen;
    out[1] = own->rate_set ? own->rate : -1.0;
    out[2] = own->decay_set ? own->weight_decay : -1.0;
}

int state_take_own(const double in[STATE_OWN], const struct optimizer *model,
                   struct optimizer_own *out, const char **why)
{
    struct fault none;
    struct optimizer_own own = {
        .frozen = in[0] == 1.0,
        .rate_set = in[1] != -1.0,
        .decay_set = in[2] != -1.0,
        .rate = in[1] != -1.0 ? in[1] : 0.0,
        .weight_decay = in[2] != -1.0 ? in[2] : 0.0,
    };
    struct optimizer_options o = optimizer_of(model, &own);
    *why = in[0] != 0.0 && in[0] != 1.0 ? "the flag frozen is neither 0 nor 1"
           : optimizer_accept(&o, &none)
               ? "rate or weight_decay is neither -1 nor a finite float32 of at least 0"
               : NULL;
    if (*why)
        return FP8D_EDATA_LOSS;
    *out = own;
    return 0;
}

enum dtype state_take_origin(uint64_t number)
{
    return number <= DTYPE_F16 && dtype_is_high((enum dtype)number) ? (enum dtype)number
                                                                    : DTYPE_NONE;
}
