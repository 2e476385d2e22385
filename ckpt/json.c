#include "ckpt/json.h"

#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

/* One call of json_loadb. */
struct load {
    struct arena *mem;
    size_t asked; /* size of the allocation that failed */
    jmp_buf give_up;
};

static _Thread_local struct load *current;

static void *hook_alloc(size_t size)
{
    if (!current)
        return mem_alloc(size);
    void *p = arena_alloc(current->mem, size);
    if (p)
        return p;
    current->asked = size;
    longjmp(current->give_up, 1);
}

static void hook_free(void *p)
{
    if (!current)
        mem_free(p);
}

static void set_hooks(void)
{
    json_set_alloc_funcs(hook_alloc, hook_free);
}

void json_setup(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_hooks);
}

/* json_loadb that returns even if memory is short (then false). */
static bool load_run(struct load *l, const char *at, size_t len, size_t flags, json_t **out,
                     json_error_t *err)
{
    json_setup();
    current = l;
    if (setjmp(l->give_up)) {
        current = NULL;
        return false;
    }
    *out = json_loadb(at, len, flags, err);
    current = NULL;
    return true;
}

static int fault_memory(const struct load *l, struct fault *f)
{
    size_t room = l->mem->cap - l->mem->used;
    if (l->asked < room && room - l->asked > 64) /* 64: what the arena adds to a block, at most */
        return fault_set(f, -ENOMEM, "no memory for %zu bytes of JSON", l->asked);
    return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                     "JSON needs more memory than its limit of %zu bytes", l->mem->cap);
}

/* True if the value that begins at `at` nests at most JSON_DEPTH_MAX deep. Text that is no JSON may
 * be judged wrongly: jansson refuses it anyway. */
static bool depth_fits(const char *at, size_t len)
{
    unsigned depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = at[i];
        if (quoted && c == '\\') {
            i++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            if (++depth > JSON_DEPTH_MAX)
                return false;
        } else if (!quoted && (c == '}' || c == ']')) {
            depth -= depth > 0;
        }
        if (!quoted && !depth && strchr("}]\",", c))
            break;
    }
    return true;
}

/* Parse the value at byte `from` of the text; *end is set behind it. */
static int value_at(const char *text, size_t len, size_t from, size_t flags, struct arena *mem,
                    json_t **out, size_t *end, struct fault *f)
{
    const char *at = text + from;
    if (!depth_fits(at, len - from))
        return fault_set(f, FP8D_EDATA_LOSS,
                         "JSON at byte %zu nests deeper than %d levels, needed at most %d", from,
                         JSON_DEPTH_MAX, JSON_DEPTH_MAX);
    struct load l = {.mem = mem};
    json_error_t err;
    json_t *v = NULL;
    flags |= JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    if (!load_run(&l, at, len - from, flags, &v, &err))
        return fault_memory(&l, f);
    if (!v) {
        char shown[256];
        text_escape(shown, sizeof shown, err.text, strlen(err.text));
        bool big = json_error_code(&err) == json_error_numeric_overflow;
        return fault_set(f, FP8D_EDATA_LOSS, "JSON before byte %zu: %s%s",
                         from + (size_t)err.position, shown,
                         big ? ", needed a number below 2^63" : "");
    }
    *out = v;
    *end = from + (size_t)err.position;
    return 0;
}

static int check_length(size_t len, struct fault *f)
{
    if (len <= INT_MAX)
        return 0;
    return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "JSON has %zu bytes, needed at most %d", len,
                     INT_MAX);
}

int json_parse(const char *text, size_t len, struct arena *mem, json_t **out, struct fault *f)
{
    size_t end;
    int rc = check_length(len, f);
    return rc ? rc : value_at(text, len, 0, 0, mem, out, &end, f);
}

/* --- members --- */

void json_members_init(struct json_members *m, const char *text, size_t len, size_t budget)
{
    *m = (struct json_members){
        .text = text, .len = len, .at = cursor_over(text, len), .budget = budget};
    arena_init(&m->mem, budget);
}

void json_members_fini(struct json_members *m)
{
    arena_fini(&m->mem);
}

/* The byte behind the white space, or -1 at the end. */
static int peek(struct json_members *m)
{
    while (m->at.left && strchr(" \t\r\n", *m->at.at) && *m->at.at)
        (void)cursor_take(&m->at, 1);
    return m->at.left ? *m->at.at : -1;
}

static size_t position(const struct json_members *m)
{
    return m->len - m->at.left;
}

static int expected(struct json_members *m, int found, const char *needed, struct fault *f)
{
    char shown[8];
    if (found < 0)
        return fault_set(f, FP8D_EDATA_LOSS, "JSON ends at byte %zu, needed %s", position(m),
                         needed);
    unsigned n = utf8_length(m->at.at, m->at.left);
    text_escape(shown, sizeof shown, (const char *)m->at.at, n ? n : 1);
    return fault_set(f, FP8D_EDATA_LOSS, "JSON at byte %zu has '%s', needed %s", position(m), shown,
                     needed);
}

static int take_mark(struct json_members *m, char mark, const char *needed, struct fault *f)
{
    int c = peek(m);
    if (c != mark)
        return expected(m, c, needed, f);
    (void)cursor_take(&m->at, 1);
    return 0;
}

static int take_value(struct json_members *m, json_t **out, struct fault *f)
{
    size_t end;
    size_t from = position(m);
    int rc = value_at(m->text, m->len, from, JSON_DISABLE_EOF_CHECK, &m->mem, out, &end, f);
    if (!rc)
        (void)cursor_take(&m->at, end - from);
    return rc;
}

static int take_end(struct json_members *m, struct fault *f)
{
    (void)cursor_take(&m->at, 1);
    int c = peek(m);
    return c < 0 ? 0 : expected(m, c, "nothing but white space after the object", f);
}

static int take_member(struct json_members *m, const char **name, json_t **value, struct fault *f)
{
    json_t *key, *v;
    int c = peek(m);
    if (c != '"')
        return expected(m, c, "a name in quotes", f);
    int rc = take_value(m, &key, f);
    if (rc)
        return rc;
    rc = take_mark(m, ':', "':'", f);
    if (!rc)
        rc = take_value(m, &v, f);
    if (rc) {
        char shown[256];
        text_escape(shown, sizeof shown, json_string_value(key), json_string_length(key));
        return fault_wrap(f, "\"%s\"", shown);
    }
    *name = json_string_value(key);
    *value = v;
    return 1;
}

int json_members_next(struct json_members *m, const char **name, json_t **value, struct fault *f)
{
    int rc = 0;
    bool first = !m->started;
    if (first)
        rc = check_length(m->len, f);
    if (first && !rc)
        rc = take_mark(m, '{', "an object, '{'", f);
    if (rc)
        return rc;
    m->started = true;
    arena_fini(&m->mem);
    arena_init(&m->mem, m->budget);
    if (peek(m) == '}')
        return take_end(m, f);
    if (!first)
        rc = take_mark(m, ',', "',' or '}'", f);
    return rc ? rc : take_member(m, name, value, f);
}

const char *json_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}
