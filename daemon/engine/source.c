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

/* --- state of training --- */

static int check_origin(const struct source *x, struct fault *f)
{
    char name[SHOWN];
    if (!x->origin)
        return 0;
    if (!dtype_is_fp8(x->weight->dtype))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"%s\" is the origin of a weight that is %s, needed none",
                         shown(name, x->origin->name), dtype_name(x->weight->dtype));
    return form_check(x->origin, DTYPE_U64, 1, 1, 0, f);
}

/* Float32 of the shape of the weight or bias that it belongs to; NULL: there is no bias. */
static int check_beside(const struct safetensors_tensor *t, const struct safetensors_tensor *of,
                        const char *layer, struct fault *f)
{
    char name[SHOWN];
    char found[SHOWN];
    if (!t)
        return 0;
    if (!of)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"%s\" is of a bias, needed \"%s.bias\" beside it",
                         shown(found, t->name), shown(name, layer));
    return form_check(t, DTYPE_F32, of->rank, of->dims[0], of->rank > 1 ? of->dims[1] : 0, f);
}

static int check_moved(const struct source *x, unsigned p, struct fault *f)
{
    const struct safetensors_tensor *of = p == STATE_WEIGHT ? x->weight : x->bias;
    const struct safetensors_tensor *master = x->moved[p][STATE_MASTER];
    char name[SHOWN];
    int rc = 0;
    for (unsigned i = 0; !rc && i < STATE_MOVED_PARTS; i++)
        rc = check_beside(x->moved[p][i], of, x->name, f);
    if (!rc && master && of->dtype == DTYPE_F32)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "tensor \"%s\" is the master of a tensor that is F32 itself, needed none",
                       shown(name, master->name));
    return rc;
}

static int check_gradient(const struct source *x, struct fault *f)
{
    const struct safetensors_tensor *const *g = x->gradient;
    const struct safetensors_tensor *whole[2] = {g[STATE_GRADIENT_WEIGHT],
                                                 g[STATE_GRADIENT_COUNTS]};
    static const char *const keys[2] = {"weight", "counters"};
    char name[SHOWN];
    char found[SHOWN];
    int rc = check_whole(whole, 2, keys, x->name, "gradient", f);
    if (!rc && g[STATE_GRADIENT_BIAS] && !whole[0])
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "tensor \"%s.fp8d.gradient.weight\" is missing, needed beside \"%s\"",
                       shown(name, x->name), shown(found, g[STATE_GRADIENT_BIAS]->name));
    if (!rc)
        rc = check_beside(whole[0], x->weight, x->name, f);
    if (!rc)
        rc = check_beside(g[STATE_GRADIENT_BIAS], x->bias, x->name, f);
    if (!rc && whole[1])
        rc = form_check(whole[1], DTYPE_U64, 1, STATE_GRADIENT_COUNTERS, 0, f);
    return rc;
}

static int find_training(const struct safetensors *s, struct source *x, struct fault *f)
{
    char key[STATE_NAME_MAX];
    int rc = 0;
    if (state_origin_key(key, x->name))
        x->origin = safetensors_find(s, key);
    if (state_optimizer_key(key, x->name, "options"))
        x->own = safetensors_find(s, key);
    for (unsigned i = 0; i < STATE_GRADIENT_PARTS; i++)
        if (state_gradient_key(key, x->name, state_gradient_parts[i]))
            x->gradient[i] = safetensors_find(s, key);
    for (unsigned p = 0; !rc && p < STATE_PARAMETERS; p++) {
        for (unsigned i = 0; i < STATE_MOVED_PARTS; i++)
            if (state_optimizer_key(key, x->name, state_moved_parts[p][i]))
                x->moved[p][i] = safetensors_find(s, key);
        rc = check_moved(x, p, f);
    }
    if (!rc)
        rc = check_origin(x, f);
    if (!rc && x->own)
        rc = form_check(x->own, DTYPE_F64, 1, STATE_OWN, 0, f);
    return rc ? rc : check_gradient(x, f);
}

/* The moments there are: as many as the optimizer keeps, or none before the first step. */
static int check_moments(const struct source *x, unsigned p, unsigned needed, struct fault *f)
{
    const struct safetensors_tensor *const *t = x->moved[p];
    char name[SHOWN];
    char found[SHOWN];
    for (unsigned i = STATE_M; i < STATE_MOVED_PARTS; i++) {
        unsigned nth = i - STATE_MASTER;
        if (t[i] && nth > needed)
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "tensor \"%s\" is a moment that the optimizer of the file does not "
                             "keep, needed none",
                             shown(name, t[i]->name));
        if (!t[i] && nth <= needed && (t[STATE_M] || t[STATE_V]))
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "tensor \"%s.fp8d.optimizer.%s\" is missing, needed beside \"%s\"",
                             shown(name, x->name), state_moved_parts[p][i],
                             shown(found, (t[STATE_M] ? t[STATE_M] : t[STATE_V])->name));
    }
    return 0;
}

/* Masters and moments come with the first update. */
static int check_unmoved(const struct source *x, unsigned p, struct fault *f)
{
    char name[SHOWN];
    for (unsigned i = 0; i < STATE_MOVED_PARTS; i++)
        if (x->moved[p][i])
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "tensor \"%s\" is moved by an optimizer that has applied no update, "
                             "needed none",
                             shown(name, x->moved[p][i]->name));
    return 0;
}

int source_check_moved(const struct source *x, const struct optimizer *o, struct fault *f)
{
    char name[SHOWN];
    const struct safetensors_tensor *there = x->own;
    for (unsigned p = 0; p < STATE_PARAMETERS; p++)
        for (unsigned i = 0; i < STATE_MOVED_PARTS; i++)
            there = there ? there : x->moved[p][i];
    if (there && !o)
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "tensor \"%s\" is state of an optimizer, but the metadata has no " STATE_OPTIMIZER_META
            ", needed its options",
            shown(name, there->name));
    int rc = 0;
    for (unsigned p = 0; !rc && there && p < STATE_PARAMETERS; p++)
        rc = o->updates ? check_moments(x, p, optimizer_moments(&o->options), f)
                        : check_unmoved(x, p, f);
    return rc;
}

bool source_has_training(const struct source *x)
{
    struct source without = *x;
    source_forget_training(&without);
    return memcmp(&without, x, sizeof without) != 0;
}

void source_forget_training(struct source *x)
{
    x->own = NULL;
    memset(x->moved, 0, sizeof x->moved);
    memset(x->gradient, 0, sizeof x->gradient);
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
    if (!rc && save)
        rc = find_training(s, out, f);
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
    for (unsigned p = 0; p < STATE_PARAMETERS; p++)
        for (unsigned i = 0; i < STATE_MOVED_PARTS; i++)
            used = used || t == x->moved[p][i];
    for (unsigned i = 0; i < STATE_GRADIENT_PARTS; i++)
        used = used || t == x->gradient[i];
    return used || t == x->origin || t == x->own;
}
