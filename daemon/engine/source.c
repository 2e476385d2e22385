#include "daemon/engine/source.h"

#include "base/text.h"
#include "ckpt/form.h"
#include "daemon/engine/factor.h"

#include <stdio.h>
#include <string.h>

#define SHOWN 256

static const char *const site_parts[SOURCE_SITE_PARTS] = {"scaling", "amax_history", "counters"};
static const char *const cached_parts[SOURCE_CACHED_PARTS] = {"weight", "weight_scale", "cast",
                                                              "counters"};

static const char *shown(char buf[SHOWN], const char *name)
{
    return text_escape(buf, SHOWN, name, strlen(name));
}

static const struct safetensors_tensor *sibling(const struct safetensors *s, const char *layer,
                                                const char *suffix)
{
    char name[STATE_NAME_MAX];
    int n = snprintf(name, sizeof name, "%s%s", layer, suffix);
    return n > 0 && n < (int)sizeof name ? safetensors_find(s, name) : NULL;
}

static int check_bias(const struct source *x, struct fault *f)
{
    const struct safetensors_tensor *b = x->bias;
    char name[SHOWN];
    if (!b)
        return 0;
    if (b->rank != 1 || b->dims[0] != x->weight->dims[0])
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "tensor \"%s\" has rank %u and %llu elements in its first dimension, needed "
            "[%llu]",
            shown(name, b->name), b->rank, b->rank ? (unsigned long long)b->dims[0] : 1,
            (unsigned long long)x->weight->dims[0]);
    if (!dtype_is_high(b->dtype))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"%s\" has dtype %s, needed F32, BF16 or F16",
                         shown(name, b->name), dtype_name(b->dtype));
    return 0;
}

/* --- factors --- */

static int find_factor(const struct safetensors *s, struct source *x, struct fault *f)
{
    const struct safetensors_tensor *plain = sibling(s, x->name, ".weight_scale");
    const struct safetensors_tensor *inv = sibling(s, x->name, ".weight_scale_inv");
    char name[SHOWN];
    if (!dtype_is_fp8(x->weight->dtype))
        return 0; /* they are nobody's, and the claim says so */
    shown(name, x->name);
    if (plain && inv)
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "layer \"%s\" has two factors, %s.weight_scale and %s.weight_scale_inv, needed "
            "one",
            name, name, name);
    if (!plain && !inv)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"%s.weight\" is %s and has no factor, needed %s.weight_scale or "
                         "%s.weight_scale_inv",
                         name, dtype_name(x->weight->dtype), name, name);
    x->factor = plain ? plain : inv;
    return factor_check(x->factor, f);
}

static int find_input_factor(const struct safetensors *s, struct source *x, struct fault *f)
{
    x->input_factor = sibling(s, x->name, ".input_scale");
    return x->input_factor ? factor_check(x->input_factor, f) : 0;
}

/* --- state --- */

/* All parts, or none. */
static int check_whole(const struct safetensors_tensor *const *parts, unsigned n,
                       const char *const *keys, const char *layer, const char *of, struct fault *f)
{
    const struct safetensors_tensor *there = NULL;
    const char *missing = NULL;
    char name[SHOWN];
    char found[SHOWN];
    for (unsigned i = 0; i < n; i++)
        if (parts[i])
            there = parts[i];
        else if (!missing)
            missing = keys[i];
    if (!there || !missing)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "tensor \"%s.fp8d.%s.%s\" is missing, needed beside \"%s\"",
                     shown(name, layer), of, missing, shown(found, there->name));
}

static int check_site(const struct source *x, unsigned k, struct fault *f)
{
    const struct safetensors_tensor *const *p = x->site[k];
    int rc = check_whole(p, SOURCE_SITE_PARTS, site_parts, x->name, site_name(state_sites[k]), f);
    if (rc || !p[SOURCE_SCALING])
        return rc;
    const struct safetensors_tensor *h = p[SOURCE_HISTORY];
    char name[SHOWN];
    char found[FORM_TEXT];
    if (h->dtype != DTYPE_F32 || h->rank != 1 || h->dims[0] < 1 || h->dims[0] > RECIPE_HISTORY_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"%s\" is %s, needed F32 of 1 to %u rows", shown(name, h->name),
                         form_text(h, found), RECIPE_HISTORY_MAX);
    rc = form_check(p[SOURCE_SCALING], DTYPE_F32, 1, STATE_SCALING, 0, f);
    return rc ? rc : form_check(p[SOURCE_COUNTERS], DTYPE_U64, 1, STATE_COUNTERS, 0, f);
}

static int find_sites(const struct safetensors *s, struct source *x, struct fault *f)
{
    char key[STATE_NAME_MAX];
    char name[SHOWN];
    int rc = 0;
    for (unsigned k = 0; !rc && k < 3; k++) {
        for (unsigned i = 0; i < SOURCE_SITE_PARTS; i++)
            if (state_site_key(key, x->name, state_sites[k], site_parts[i]))
                x->site[k][i] = safetensors_find(s, key);
        rc = check_site(x, k, f);
    }
    for (unsigned k = 1; !rc && k < 3; k++) {
        bool here = x->site[k][SOURCE_SCALING] != NULL;
        if (here != source_has_state(x))
            rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                           "layer \"%s\" has the state of site %s but not of %s, needed all three",
                           shown(name, x->name), site_name(state_sites[here ? k : 0]),
                           site_name(state_sites[here ? 0 : k]));
    }
    if (!rc && source_has_state(x) && x->input_factor)
        rc = fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "layer \"%s\" has two scales for its input, %s.input_scale and the state of a "
            "save, needed one",
            shown(name, x->name), name);
    return rc;
}

static int find_copy(const struct safetensors *s, struct source *x, struct fault *f)
{
    char key[STATE_NAME_MAX];
    char name[SHOWN];
    for (unsigned i = 0; i < SOURCE_CACHED_PARTS; i++)
        if (state_cached_key(key, x->name, cached_parts[i]))
            x->cached[i] = safetensors_find(s, key);
    int rc = check_whole(x->cached, SOURCE_CACHED_PARTS, cached_parts, x->name, "cached", f);
    const struct safetensors_tensor *c = x->cached[SOURCE_CODES];
    if (rc || !c)
        return rc;
    if (dtype_is_fp8(x->weight->dtype))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"%s\" is a copy of a weight that is FP8 itself, needed none",
                         shown(name, c->name));
    enum dtype fmt = c->dtype == DTYPE_F8_E5M2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
    rc = form_check(c, fmt, 2, x->weight->dims[0], x->weight->dims[1], f);
    if (!rc)
        rc = form_check(x->cached[SOURCE_FACTOR], DTYPE_F32, 0, 0, 0, f);
    if (!rc)
        rc = form_check(x->cached[SOURCE_CAST], DTYPE_F32, 1, STATE_CACHED_CAST, 0, f);
    return rc ? rc
              : form_check(x->cached[SOURCE_CAST_COUNTERS], DTYPE_U64, 1, STATE_CACHED_COUNTERS, 0,
                           f);
}

int source_find(const struct safetensors *s, const char *name,
                const struct safetensors_tensor *weight, bool save, struct source *out,
                struct fault *f)
{
    *out = (struct source){.name = name, .weight = weight, .bias = sibling(s, name, ".bias")};
    int rc = check_bias(out, f);
    if (!rc)
        rc = find_factor(s, out, f);
    if (!rc)
        rc = find_input_factor(s, out, f);
    if (!rc && save)
        rc = find_sites(s, out, f);
    if (!rc && save)
        rc = find_copy(s, out, f);
    return rc;
}

bool source_uses(const struct source *x, const struct safetensors_tensor *t)
{
    bool used = t == x->weight || t == x->bias || t == x->factor || t == x->input_factor;
    for (unsigned k = 0; k < 3; k++)
        for (unsigned i = 0; i < SOURCE_SITE_PARTS; i++)
            used = used || t == x->site[k][i];
    for (unsigned i = 0; i < SOURCE_CACHED_PARTS; i++)
        used = used || t == x->cached[i];
    return used;
}
