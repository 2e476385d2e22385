#include "daemon/engine/claim.h"

#include "base/text.h"
#include "ckpt/form.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SHOWN 256
#define PROBLEM_TEXT 640

/* What strict refuses, gathered into one sentence. */
struct problems {
    unsigned count;
    char list[PROBLEM_TEXT];      /* "x" (reason), ... */
    char globs[PROBLEM_TEXT / 3]; /* --skip 'x' ... */
};

void claim_line(struct claim *c, struct claim_lines *l, const char *fmt, ...)
{
    char text[1200];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (l->count >= CLAIM_LINES_MAX) {
        l->dropped++;
        return;
    }
    if (l->count == l->room) {
        size_t room = l->room ? l->room * 2 : 32;
        const char **bigger = arena_zalloc(&c->arena, room, sizeof *bigger);
        if (!bigger) {
            l->dropped++;
            return;
        }
        if (l->count)
            memcpy(bigger, l->line, l->count * sizeof *bigger);
        l->line = bigger;
        l->room = room;
    }
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    const char *copy = arena_strndup(&c->arena, text, len);
    if (copy)
        l->line[l->count++] = copy;
    else
        l->dropped++;
}

static const char *shown(char buf[SHOWN], const char *name)
{
    return text_escape(buf, SHOWN, name, strlen(name));
}

static void append(char *text, size_t size, const char *more, bool *cut)
{
    size_t at = strlen(text);
    size_t len = strlen(more);
    if (at + len + 4 < size)
        memcpy(text + at, more, len + 1);
    else if (!*cut)
        memcpy(text + at, "...", 4);
    if (at + len + 4 >= size)
        *cut = true;
}

/* A glob that matches the name, in letters that a shell takes literally between quotes: people
 * paste it, and the name is the file's. `?` is one byte. */
static const char *glob_of(char out[SHOWN], const char *name, size_t len)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
    size_t at = 0;
    for (; at < len && at < SHOWN - 2; at++)
        out[at] = strchr(plain, name[at]) ? name[at] : '?';
    if (at < len)
        out[at++] = '*';
    out[at] = 0;
    return out;
}

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text);
    size_t k = strlen(tail);
    return n >= k && !strcmp(text + n - k, tail);
}

/* `tensor` cannot be loaded; leaving out its layer, the first `stem` bytes of the name, helps. */
static void problem(struct problems *p, const char *tensor, size_t stem, const char *why)
{
    char name[SHOWN];
    char item[SHOWN + 128];
    bool cut = ends_with(p->list, "...");
    bool cut_globs = ends_with(p->globs, "...");
    shown(name, tensor);
    (void)snprintf(item, sizeof item, "%s\"%s\" (%s)", p->count ? ", " : "", name, why);
    append(p->list, sizeof p->list, item, &cut);
    (void)snprintf(item, sizeof item, "%s--skip '%s'", p->count ? " " : "",
                   glob_of(name, tensor, stem));
    if (!p->count || !ends_with(p->globs, item + 1)) /* else: another tensor of that layer */
        append(p->globs, sizeof p->globs, item, &cut_globs);
    p->count++;
}

static bool any_glob(char *const *globs, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (text_glob(globs[i], name))
            return true;
    return false;
}

/* Why a tensor called X.weight cannot be a layer, or NULL. */
static const char *unfit(const struct safetensors_tensor *t, char why[128])
{
    if (t->rank != 2)
        (void)snprintf(why, 128, "rank %u, needed 2", t->rank);
    else if (!t->dims[0] || t->dims[0] % CLAIM_FEATURE_STEP)
        (void)snprintf(why, 128, "%llu out features, needed a multiple of %d",
                       (unsigned long long)t->dims[0], CLAIM_FEATURE_STEP);
    else if (!t->dims[1] || t->dims[1] % CLAIM_FEATURE_STEP)
        (void)snprintf(why, 128, "%llu in features, needed a multiple of %d",
                       (unsigned long long)t->dims[1], CLAIM_FEATURE_STEP);
    else if (!dtype_is_high(t->dtype) && !dtype_is_fp8(t->dtype))
        (void)snprintf(why, 128, "dtype %s, needed F32, BF16, F16, F8_E4M3 or F8_E5M2",
                       dtype_name(t->dtype));
    else
        return NULL;
    return why;
}

/* X of "X.weight" in the arena, or NULL: no such name. */
static const char *stem(struct claim *c, const char *name, bool *memory)
{
    static const char suffix[] = ".weight";
    size_t n = strlen(name);
    size_t k = sizeof suffix - 1;
    *memory = true;
    if (n <= k || strcmp(name + n - k, suffix) != 0)
        return NULL;
    const char *x = arena_strndup(&c->arena, name, n - k);
    *memory = x != NULL;
    return x;
}

/* Whether the globs let layer x in; `why` says what left it out. */
static bool selected(const struct claim_options *o, const char *x, const char **why)
{
    *why = o->only_count && !any_glob(o->only, o->only_count, x) ? "not named by --only"
           : any_glob(o->skip, o->skip_count, x)                 ? "skipped"
                                                                 : NULL;
    return !*why;
}

/* One tensor: claimed, ignored, or a problem. */
static int sort_tensor(struct claim *c, const struct safetensors *s, const struct claim_options *o,
                       const struct safetensors_tensor *t, struct problems *p, struct fault *f)
{
    char why[128];
    char name[SHOWN];
    const char *left_out;
    bool memory = true;
    size_t len;
    const char *x = state_is_key(t->name, &len) ? NULL : stem(c, t->name, &memory);
    if (!memory)
        return fault_set(f, -ENOMEM, "out of memory for the names of layers");
    if (!x)
        return 0;
    if (!selected(o, x, &left_out)) {
        c->left_out++;
        claim_line(c, &c->ignored, "%s (%s)", shown(name, t->name), left_out);
    } else if (t->rank < 2)
        claim_line(c, &c->ignored, "%s (%u-D)", shown(name, t->name), t->rank);
    else if (!unfit(t, why))
        return source_find(s, x, t, c->save, &c->layers[c->layer_count++], f);
    else if (o->no_strict)
        claim_line(c, &c->ignored, "%s (cannot be a layer: %s)", shown(name, t->name), why);
    else
        problem(p, x, strlen(x), why);
    return 0;
}

/* Layers stand in the order of their weights' names, X.weight: a search by that name. */
static const struct source *layer_named(const struct claim *c, const char *name, size_t len)
{
    char weight[1024 + 16];
    if (snprintf(weight, sizeof weight, "%.*s.weight", (int)len, name) >= (int)sizeof weight)
        return NULL;
    size_t lo = 0;
    size_t hi = c->layer_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int order = strcmp(c->layers[mid].weight->name, weight);
        if (order == 0)
            return &c->layers[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* State whose layer has no use for it: X is left out, or is no layer, or this is no save.
 */
static void sort_state(struct claim *c, const struct claim_options *o,
                       const struct safetensors_tensor *t, size_t len, struct problems *p)
{
    char x[STATE_NAME_MAX];
    char name[SHOWN];
    const char *why;
    const struct source *l = layer_named(c, t->name, len);
    if (l && source_uses(l, t))
        return;
    (void)snprintf(x, sizeof x, "%.*s", (int)len, t->name);
    if (selected(o, x, &why)) {
        why = c->save ? "is state of a layer that is not in the file"
                      : "is state of a save, but the metadata has no fp8d_format, needed \"1\"";
        if (!o->no_strict) {
            problem(p, t->name, len, why);
            return;
        }
    }
    claim_line(c, &c->ignored, "%s (%s)", shown(name, t->name), why);
}

/* Tensors that are no X.weight: a bias in use, an unknown sibling of a layer, or ignored. */
static void sort_rest(struct claim *c, const struct claim_options *o,
                      const struct safetensors_tensor *t, struct problems *p)
{
    char name[SHOWN];
    size_t len;
    if (state_is_key(t->name, &len)) {
        sort_state(c, o, t, len, p);
        return;
    }
    const char *dot = strrchr(t->name, '.');
    if ((dot && !strcmp(dot, ".weight") && dot != t->name) || t == c->model)
        return;
    const struct source *l = dot ? layer_named(c, t->name, (size_t)(dot - t->name)) : NULL;
    if (l && source_uses(l, t))
        return;
    shown(name, t->name);
    if (!l)
        claim_line(c, &c->ignored, "%s (%u-D, no layer's)", name, t->rank);
    else if (o->no_strict)
        claim_line(c, &c->notes, "tensor \"%s\" bears the name of layer \"%.*s\" and was not used",
                   name, (int)(dot - t->name), t->name);
    else
        problem(p, t->name, (size_t)(dot - t->name), "bears a layer's name and would not be used");
}

/* Whether the file is a save, of a key scheme that is ours. */
static int take_format(struct claim *c, const struct safetensors *s, struct fault *f)
{
    const char *v = safetensors_meta(s, "fp8d_format");
    char found[64];
    if (!v)
        return 0;
    if (strcmp(v, "1") != 0)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "metadata fp8d_format is \"%s\", this fp8d knows \"1\"",
                         text_escape(found, sizeof found, v, strlen(v)));
    c->save = true;
    c->model = safetensors_find(s, STATE_MODEL_KEY);
    if (!c->model)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "tensor \"" STATE_MODEL_KEY "\" is missing, needed in a save");
    if (!safetensors_meta(s, "fp8d_recipe"))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "metadata fp8d_recipe is missing, needed in a "
                         "save");
    return form_check(c->model, DTYPE_U64, 1, STATE_MODEL, 0, f);
}

static int refuse(const struct claim *c, const struct problems *p, struct fault *f)
{
    if (p->count)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%u tensor%s cannot be loaded as layers: %s; leave them out with %s, or "
                         "--no-strict",
                         p->count, p->count == 1 ? "" : "s", p->list, p->globs);
    if (!c->layer_count && c->left_out)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "no layer was found: only and skip left out all %zu tensors whose names end in "
                         ".weight, needed one of them",
                         c->left_out);
    if (!c->layer_count)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "no layer was found: needed a 2-D tensor whose name ends in .weight, with "
                         "features in multiples of %d",
                         CLAIM_FEATURE_STEP);
    return 0;
}

int claim_make(const struct safetensors *s, const struct claim_options *o, struct claim *out,
               struct fault *f)
{
    struct claim c = {0};
    struct problems p = {0};
    arena_init(&c.arena, s->header_bytes * 8 + (1u << 20));
    c.layers = arena_zalloc(&c.arena, s->count + 1, sizeof *c.layers);
    int rc = c.layers ? 0 : fault_set(f, -ENOMEM, "out of memory for %zu tensors", s->count);
    if (!rc)
        rc = take_format(&c, s, f);
    for (size_t i = 0; !rc && i < s->count; i++)
        rc = sort_tensor(&c, s, o, &s->tensors[i], &p, f);
    for (size_t i = 0; !rc && i < s->count; i++)
        sort_rest(&c, o, &s->tensors[i], &p);
    if (!rc)
        rc = refuse(&c, &p, f);
    if (rc) {
        claim_fini(&c);
        return rc;
    }
    *out = c;
    return 0;
}

void claim_fini(struct claim *c)
{
    arena_fini(&c->arena);
    *c = (struct claim){0};
}
