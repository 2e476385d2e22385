#include "ckpt/safetensors.h"

#include "base/mem.h"
#include "base/text.h"
#include "ckpt/json.h"
#include "ckpt/safetensors_entry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_CAP 1000000
#define META "__metadata__"
#define SHOWN_MAX 256 /* of a name, in a sentence */

typedef unsigned long long ull;

/* Owner of all a parse makes. */
struct safetensors_store {
    struct safetensors s;
    struct arena arena; /* names, metadata */
    size_t room;        /* tensors that s.tensors can hold */
    bool meta_seen;
    size_t tensor_cap;
};

static int fault_nomem(size_t bytes, const char *what, struct fault *f)
{
    return fault_set(f, -ENOMEM, "no memory for %zu bytes of %s", bytes, what);
}

/* Puts the tensor's name in front. */
static int fault_tensor(struct fault *f, const char *name)
{
    char shown[SHOWN_MAX];
    text_escape(shown, sizeof shown, name, strlen(name));
    return fault_wrap(f, "tensor \"%s\"", shown);
}

void safetensors_free(struct safetensors *s)
{
    if (!s)
        return;
    struct safetensors_store *store = s->store;
    mem_free(store->s.tensors);
    arena_fini(&store->arena);
    mem_free(store);
}

/* --- header members --- */

static int grow(struct safetensors_store *st, struct fault *f)
{
    struct safetensors *s = &st->s;
    if (s->count < st->room)
        return 0;
    size_t room = st->room ? st->room * 2 : 16;
    if (room > st->tensor_cap)
        room = st->tensor_cap;
    if (s->count >= room)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "header has more tensors than the limit %zu",
                         st->tensor_cap);
    void *p = mem_realloc(s->tensors, room * sizeof *s->tensors);
    if (!p)
        return fault_nomem(room * sizeof *s->tensors, "tensor table", f);
    s->tensors = p;
    st->room = room;
    return 0;
}

static int add_tensor(struct safetensors_store *st, const char *name, const json_t *entry,
                      struct fault *f)
{
    struct safetensors_tensor t = {.name = name};
    size_t len = strlen(name);
    int rc;
    if (!text_is_tensor_name(name, len))
        rc = fault_set(f, FP8D_EDATA_LOSS,
                       "name has %zu bytes, needed 1 to 1024 bytes of printable UTF-8", len);
    else
        rc = safetensors_entry(entry, &t, f);
    if (rc)
        return fault_tensor(f, name);
    rc = grow(st, f);
    if (rc)
        return rc;
    t.name = arena_strndup(&st->arena, name, len);
    if (!t.name)
        return fault_nomem(len, "tensor name", f);
    st->s.tensors[st->s.count++] = t;
    return 0;
}

static int add_pair(struct safetensors_store *st, const char *key, const json_t *value,
                    struct fault *f)
{
    char shown[SHOWN_MAX];
    if (!json_is_string(value)) {
        text_escape(shown, sizeof shown, key, strlen(key));
        return fault_set(f, FP8D_EDATA_LOSS, META " \"%s\" is %s, needed a string", shown,
                         json_kind(value));
    }
    struct safetensors_meta m = {
        .key = arena_strndup(&st->arena, key, strlen(key)),
        .value = arena_strndup(&st->arena, json_string_value(value), json_string_length(value)),
    };
    if (!m.key || !m.value)
        return fault_nomem(strlen(key) + json_string_length(value), META, f);
    st->s.meta[st->s.meta_count++] = m;
    return 0;
}

static int add_meta(struct safetensors_store *st, json_t *meta, struct fault *f)
{
    const char *key;
    json_t *value;
    if (st->meta_seen)
        return fault_set(f, FP8D_EDATA_LOSS, META " stands twice in the header, needed once");
    st->meta_seen = true;
    if (json_is_null(meta))
        return 0;
    if (!json_is_object(meta))
        return fault_set(f, FP8D_EDATA_LOSS, META " is %s, needed an object of strings",
                         json_kind(meta));
    st->s.meta = arena_zalloc(&st->arena, json_object_size(meta), sizeof *st->s.meta);
    if (!st->s.meta)
        return fault_nomem(json_object_size(meta) * sizeof *st->s.meta, META, f);
    json_object_foreach(meta, key, value)
    {
        int rc = add_pair(st, key, value, f);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_members(struct safetensors_store *st, struct json_members *m, struct fault *f)
{
    const char *name;
    json_t *value;
    int rc;
    while ((rc = json_members_next(m, &name, &value, f)) > 0) {
        rc = strcmp(name, META) ? add_tensor(st, name, value, f) : add_meta(st, value, f);
        if (rc)
            return rc;
    }
    return rc ? fault_wrap(f, "header") : 0;
}

/* --- order and coverage --- */

static int by_place(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
    const struct safetensors_meta *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static void sort(void *base, size_t n, size_t size, int (*cmp)(const void *, const void *))
{
    if (n > 1)
        qsort(base, n, size, cmp);
}

static int check_names(const struct safetensors *s, struct fault *f)
{
    for (size_t i = 1; i < s->count; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name)) {
            fault_set(f, FP8D_EDATA_LOSS, "stands twice in the header, needed once");
            return fault_tensor(f, s->tensors[i].name);
        }
    return 0;
}

/* What ends where the next tensor must begin; NULL is the header. */
static const char *show_end(const char *name, char shown[SHOWN_MAX])
{
    if (!name)
        return "the header";
    char escaped[SHOWN_MAX - 16];
    (void)snprintf(shown, SHOWN_MAX, "tensor \"%s\"",
                   text_escape(escaped, sizeof escaped, name, strlen(name)));
    return shown;
}

/* Tensors in order of place cover the data from 0 to its end, without hole or overlap. */
static int check_cover(struct safetensors_store *st, uint64_t data, struct fault *f)
{
    uint64_t at = 0;
    const char *last = NULL;
    char shown[SHOWN_MAX];
    for (size_t i = 0; i < st->s.count; i++) {
        const struct safetensors_tensor *t = &st->s.tensors[i];
        if (t->offset != at) {
            fault_set(f, FP8D_EDATA_LOSS, "data begins at %llu, needed %llu, where %s ends: %s",
                      (ull)t->offset, (ull)at, show_end(last, shown),
                      t->offset < at ? "they overlap" : "there is a hole");
            return fault_tensor(f, t->name);
        }
        at += t->bytes; /* cannot wrap: it is the end that the header gave */
        last = t->name;
    }
    if (at != data)
        return fault_set(f, FP8D_EDATA_LOSS,
                         "the file has %llu bytes of data, needed %llu, where %s ends", (ull)data,
                         (ull)at, show_end(last, shown));
    return 0;
}

static int check_layout(struct safetensors_store *st, struct fault *f)
{
    struct safetensors *s = &st->s;
    uint64_t start = 8 + s->header_bytes;
    sort(s->tensors, s->count, sizeof *s->tensors, by_name);
    sort(s->meta, s->meta_count, sizeof *s->meta, by_key);
    int rc = check_names(s, f);
    if (rc)
        return rc;
    sort(s->tensors, s->count, sizeof *s->tensors, by_place);
    rc = check_cover(st, s->file_bytes - start, f);
    if (rc)
        return rc;
    sort(s->tensors, s->count, sizeof *s->tensors, by_name);
    for (size_t i = 0; i < s->count; i++)
        s->tensors[i].offset += start;
    return 0;
}

/* --- the whole --- */

int safetensors_check_size(uint64_t header, uint64_t file_size,
                           const struct safetensors_limits *limits, struct fault *f)
{
    uint64_t cap = limits && limits->header_cap ? limits->header_cap : SAFETENSORS_HEADER_CAP;
    if (header > SAFETENSORS_HEADER_HARD)
        return fault_set(f, FP8D_EDATA_LOSS,
                         "header has %llu bytes, needed at most %u, the format's limit",
                         (ull)header, SAFETENSORS_HEADER_HARD);
    if (header > cap)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "header has %llu bytes, needed at most %llu, the limit set here",
                         (ull)header, (ull)cap);
    uint64_t whole = header + 8; /* cannot wrap below the limit */
    if (whole > file_size)
        return fault_set(f, FP8D_EDATA_LOSS,
                         "header of %llu bytes ends at byte %llu, but the file has %llu",
                         (ull)header, (ull)whole, (ull)file_size);
    return 0;
}

int safetensors_parse(const char *json, size_t len, uint64_t file_size,
                      const struct safetensors_limits *limits, struct safetensors **out,
                      struct fault *f)
{
    struct json_members m;
    size_t budget = len * SAFETENSORS_JSON_FACTOR + (64u << 10);
    int rc = safetensors_check_size(len, file_size, limits, f);
    if (rc)
        return rc;
    struct safetensors_store *st = mem_zalloc(sizeof *st);
    if (!st)
        return fault_nomem(sizeof *st, "header", f);
    st->s.store = st;
    st->s.header_bytes = len;
    st->s.file_bytes = file_size;
    st->tensor_cap = limits && limits->tensor_cap ? limits->tensor_cap : TENSOR_CAP;
    arena_init(&st->arena, budget);
    json_members_init(&m, json, len, budget);
    rc = read_members(st, &m, f);
    json_members_fini(&m);
    if (!rc)
        rc = check_layout(st, f);
    if (rc)
        safetensors_free(&st->s);
    else
        *out = &st->s;
    return rc;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct safetensors_tensor key = {.name = name};
    return s->count ? bsearch(&key, s->tensors, s->count, sizeof key, by_name) : NULL;
}

const char *safetensors_meta(const struct safetensors *s, const char *key)
{
    struct safetensors_meta want = {.key = key};
    const struct safetensors_meta *m =
        s->meta_count ? bsearch(&want, s->meta, s->meta_count, sizeof want, by_key) : NULL;
    return m ? m->value : NULL;
}
