#include "client/ctl/spec.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WHERE 64 /* room for "layers[4294967295].weight" */

static int wrong(struct fault *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int wrong(struct fault *f, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s", text);
}

/* --- members --- */

enum kind {
    WORD,   /* one of a list; the value is its index from 1 */
    NUMBER, /* a whole one */
    TRUTH,
    TEXT,
    NESTED, /* read by its own function */
};

/* One member of an object. */
struct member {
    const char *name;
    enum kind kind;
    bool must;
    int min, max;             /* of a number */
    const char *const *words; /* ends with NULL */
};

/* Its value. */
struct value {
    bool given;
    int number;
    const char *text;
};

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "a string", "a whole number",
                                        "a number",  "true",     "false",    "null"};
    return names[json_typeof(v)];
}

static int take_word(const struct member *m, const json_t *v, const char *where, struct value *out,
                     struct fault *f)
{
    char list[128] = "", shown[128];
    size_t at = 0;
    const char *text = json_string_value(v);
    for (int i = 0; m->words[i]; i++) {
        if (text && !strcmp(m->words[i], text)) {
            out->number = i + 1;
            return 0;
        }
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? " or " : "", m->words[i]);
    }
    if (!text)
        return wrong(f, "%s%s is %s, needed %s", where, m->name, type_name(v), list);
    return wrong(f, "%s%s is \"%s\", needed %s", where, m->name,
                 text_escape(shown, sizeof shown, text, strlen(text)), list);
}

static int take_number(const struct member *m, const json_t *v, const char *where,
                       struct value *out, struct fault *f)
{
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v))
        return wrong(f, "%s%s is %s, needed a whole number from %d to %d", where, m->name,
                     type_name(v), m->min, m->max);
    if (n < m->min || n > m->max)
        return wrong(f, "%s%s is %lld, needed a whole number from %d to %d", where, m->name,
                     (long long)n, m->min, m->max);
    out->number = (int)n;
    return 0;
}

static int take_truth(const struct member *m, const json_t *v, const char *where, struct value *out,
                      struct fault *f)
{
    if (!json_is_boolean(v))
        return wrong(f, "%s%s is %s, needed true or false", where, m->name, type_name(v));
    out->number = json_is_true(v);
    return 0;
}

static int take_text(const struct member *m, const json_t *v, const char *where, struct value *out,
                     struct fault *f)
{
    out->text = json_string_value(v);
    if (out->text && *out->text)
        return 0;
    return wrong(f, "%s%s is %s, needed text", where, m->name, out->text ? "empty" : type_name(v));
}

static int take_value(const struct member *m, const json_t *v, const char *where, struct value *out,
                      struct fault *f)
{
    out->given = true;
    switch (m->kind) {
    case WORD:
        return take_word(m, v, where, out, f);
    case NUMBER:
        return take_number(m, v, where, out, f);
    case TRUTH:
        return take_truth(m, v, where, out, f);
    case TEXT:
        return take_text(m, v, where, out, f);
    case NESTED:
        break;
    }
    return 0;
}

static int unknown(const struct member *known, const char *where, const char *name, struct fault *f)
{
    char list[160] = "", shown[128];
    size_t at = 0;
    for (const struct member *m = known; m->name; m++)
        at +=
            (size_t)snprintf(list + at, sizeof list - at, "%s%s", m == known ? "" : ", ", m->name);
    return wrong(f, "%s%s is no member here; there are %s", where,
                 text_escape(shown, sizeof shown, name, strlen(name)), list);
}

static const struct member *find(const struct member *known, const char *name)
{
    for (const struct member *m = known; m->name; m++)
        if (!strcmp(m->name, name))
            return m;
    return NULL;
}

/* The members of object o, one value for each row of the table, zeroed where it is not given. */
static int take_members(json_t *o, const char *where, const struct member *known, struct value *out,
                        struct fault *f)
{
    const char *name;
    json_t *v;
    int rc = 0;
    json_object_foreach(o, name, v) if (!find(known, name)) return unknown(known, where, name, f);
    for (unsigned i = 0; !rc && known[i].name; i++) {
        v = json_object_get(o, known[i].name);
        if (v)
            rc = take_value(&known[i], v, where, &out[i], f);
        else if (known[i].must)
            rc = wrong(f, "%s%s is missing", where, known[i].name);
    }
    return rc;
}

/* --- the document --- */

#define MEMBERS_END                                                                                \
    {                                                                                              \
        NULL, TEXT, false, 0, 0, NULL                                                              \
    }

static int take_recipe(json_t *o, struct fp8d_recipe *out, struct fault *f)
{
    static const char *const kinds[] = {"delayed", "current", NULL};
    static const char *const formats[] = {"hybrid", "e4m3", NULL};
    static const char *const algos[] = {"max", "most_recent", NULL};
    static const char *const sums[] = {"fast", "precise", NULL};
    static const struct member known[] = {
        {"kind", WORD, false, 0, 0, kinds},
        {"fp8_format", WORD, false, 0, 0, formats},
        {"amax_algo", WORD, false, 0, 0, algos},
        {"amax_history_len", NUMBER, false, 1, 65536, NULL},
        {"margin", NUMBER, false, 0, 31, NULL},
        {"fprop_accumulation", WORD, false, 0, 0, sums},
        MEMBERS_END,
    };
    struct value v[6] = {0};
    if (!json_is_object(o))
        return wrong(f, "recipe is %s, needed an object", type_name(o));
    int rc = take_members(o, "recipe.", known, v, f);
    if (rc)
        return rc;
    *out = (struct fp8d_recipe){
        .kind = (enum fp8d_recipe_kind)v[0].number,
        .format = (enum fp8d_format)v[1].number,
        .amax_algo = (enum fp8d_amax_algo)v[2].number,
        .amax_history_len = (uint32_t)v[3].number,
        .margin = (uint32_t)v[4].number,
        .margin_set = v[4].given,
        .fprop_accumulation = (enum fp8d_accumulation)v[5].number,
    };
    return 0;
}

/* FILE[:TENSOR] as seen from here: behind the folder of the spec, if it is relative. */
static char *in_folder(const char *path, const char *file)
{
    const char *slash = strrchr(path, '/');
    size_t folder = slash && *file != '/' ? (size_t)(slash - path) + 1 : 0;
    size_t len = strlen(file) + 1;
    char *out = mem_alloc(folder + len);
    if (!out)
        return NULL;
    memcpy(out, path, folder);
    memcpy(out + folder, file, len);
    return out;
}

static int take_layer(json_t *o, size_t i, const char *path, struct spec_layer *out,
                      struct fault *f)
{
    static const struct member known[] = {
        {"name", TEXT, true, 0, 0, NULL},
        {"weight", TEXT, true, 0, 0, NULL},
        {"bias", TEXT, false, 0, 0, NULL},
        MEMBERS_END,
    };
    struct value v[3] = {0};
    char where[WHERE];
    (void)snprintf(where, sizeof where, "layers[%zu].", i);
    if (!json_is_object(o))
        return wrong(f, "layers[%zu] is %s, needed an object", i, type_name(o));
    int rc = take_members(o, where, known, v, f);
    if (rc)
        return rc;
    out->name = v[0].text;
    out->weight = in_folder(path, v[1].text);
    out->bias = v[2].given ? in_folder(path, v[2].text) : NULL;
    if (!out->weight || (v[2].given && !out->bias))
        return fault_set(f, -ENOMEM, "no memory for a path");
    return 0;
}

static int take_layers(json_t *list, const char *path, struct spec *s, struct fault *f)
{
    if (!json_array_size(list))
        return wrong(f, "layers is %s, needed an array of objects",
                     json_is_array(list) ? "empty" : type_name(list));
    s->count = json_array_size(list);
    s->layers = mem_array(s->count, sizeof *s->layers);
    if (!s->layers)
        return fault_set(f, -ENOMEM, "no memory for %zu layers", s->count);
    int rc = 0;
    for (size_t i = 0; !rc && i < s->count; i++)
        rc = take_layer(json_array_get(list, i), i, path, &s->layers[i], f);
    return rc;
}

static int take_document(json_t *o, const char *path, struct spec *s, struct fault *f)
{
    static const struct member known[] = {
        {"recipe", NESTED, false, 0, 0, NULL},
        {"primary_fp8", TRUTH, false, 0, 0, NULL},
        {"layers", NESTED, true, 0, 0, NULL},
        MEMBERS_END,
    };
    struct value v[3] = {0};
    if (!json_is_object(o))
        return wrong(f, "the document is %s, needed an object", type_name(o));
    int rc = take_members(o, "", known, v, f);
    if (rc)
        return rc;
    s->primary_fp8 = v[1].number;
    json_t *recipe = json_object_get(o, "recipe");
    if (recipe)
        rc = take_recipe(recipe, &s->recipe, f);
    return rc ? rc : take_layers(json_object_get(o, "layers"), path, s, f);
}

static int parse(FILE *in, const char *path, struct spec *s, struct fault *f)
{
    char shown[JSON_ERROR_TEXT_LENGTH];
    json_error_t e;
    s->document = json_loadf(in, JSON_REJECT_DUPLICATES, &e);
    if (!s->document)
        return wrong(f, "line %d is no JSON: %s", e.line,
                     text_escape(shown, sizeof shown, e.text, strlen(e.text)));
    return take_document(s->document, path, s, f);
}

int spec_read(const char *path, struct spec *out, struct fault *f)
{
    char shown[256];
    struct spec s = {0};
    FILE *in = fopen(path, "re");
    text_escape(shown, sizeof shown, path, strlen(path));
    if (!in) {
        int rc = -errno;
        return fault_set(f, rc, "cannot open %s: %s", shown, status_text(rc));
    }
    int rc = parse(in, path, &s, f);
    (void)fclose(in);
    if (rc) {
        spec_fini(&s);
        return fault_wrap(f, "%s", shown);
    }
    *out = s;
    return 0;
}

void spec_fini(struct spec *s)
{
    for (size_t i = 0; i < s->count && s->layers; i++) {
        mem_free(s->layers[i].weight);
        mem_free(s->layers[i].bias);
    }
    mem_free(s->layers);
    json_decref(s->document);
    *s = (struct spec){0};
}
