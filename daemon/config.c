#include "daemon/config.h"

#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define TEXTS_MAX ((size_t)1 << 20) /* of all values ever set */

static const struct entry {
    const char *key;
    const char *standard;
    const char *help;
    size_t offset;
    struct config_rule rule;
} entries[CONFIG_KEYS] = {
#define X(k, KIND, dflt, lo, hi, w, h)                                                             \
    {.key = #k,                                                                                    \
     .standard = (dflt),                                                                           \
     .help = (h),                                                                                  \
     .offset = offsetof(struct config, k),                                                         \
     .rule = {.kind = CONFIG_##KIND, .lowest = (lo), .highest = (hi), .words = (w)}},
    CONFIG_LIST(X)
#undef X
};

static const char *const origins[] = {"default", "file", "environment", "command line"};

/* --- one value --- */

static int store(struct config *c, unsigned i, const char *value, enum config_origin from,
                 struct fault *f)
{
    const struct entry *e = &entries[i];
    void *field = (char *)c + e->offset;
    uint64_t v;
    int rc = config_value_parse(&e->rule, value, &v, f);
    if (rc)
        return fault_wrap(f, "%s", e->key);
    const char *text = arena_strndup(&c->arena, value, strlen(value));
    if (!text)
        return fault_set(f, -ENOMEM, "%s: no memory for its value", e->key);
    if (config_kind_is_text(e->rule.kind))
        memcpy(field, &text, sizeof text);
    else
        memcpy(field, &v, sizeof v);
    c->text[i] = text;
    c->origin[i] = from;
    return 0;
}

static int find(const char *key, size_t len)
{
    for (int i = 0; i < CONFIG_KEYS; i++)
        if (strlen(entries[i].key) == len && memcmp(entries[i].key, key, len) == 0)
            return i;
    return -1;
}

static int unknown(const char *key, size_t len, struct fault *f)
{
    char shown[64];
    return fault_set(f, FP8D_ENOT_FOUND, "unknown key \"%s\"; fp8d --help lists the keys",
                     text_escape(shown, sizeof shown, key, len));
}

int config_set(struct config *c, const char *key, const char *value, enum config_origin from,
               struct fault *f)
{
    int i = find(key, strlen(key));
    return i < 0 ? unknown(key, strlen(key), f) : store(c, (unsigned)i, value, from, f);
}

int config_init(struct config *c, struct fault *f)
{
    int rc = 0;
    *c = (struct config){0};
    arena_init(&c->arena, TEXTS_MAX);
    for (unsigned i = 0; !rc && i < CONFIG_KEYS; i++)
        rc = store(c, i, entries[i].standard, CONFIG_DEFAULT, f);
    if (rc)
        config_fini(c);
    return rc;
}

void config_fini(struct config *c)
{
    arena_fini(&c->arena);
}

/* --- the file --- */

static void trim(char **s, size_t *len)
{
    while (*len && (**s == ' ' || **s == '\t'))
        ++*s, --*len;
    while (*len && ((*s)[*len - 1] == ' ' || (*s)[*len - 1] == '\t'))
        --*len;
}

static int assign(struct config *c, char *key, size_t key_len, const char *value, unsigned line,
                  struct fault *f)
{
    int i = find(key, key_len);
    if (i < 0)
        return unknown(key, key_len, f);
    if (c->line[i])
        return fault_set(f, FP8D_EALREADY_EXISTS, "%s is set again, first in line %u",
                         entries[i].key, c->line[i]);
    c->line[i] = line;
    return store(c, (unsigned)i, value, CONFIG_FROM_FILE, f);
}

/* One line, without its end; it is writable. */
static int read_line(struct config *c, char *s, size_t len, unsigned line, struct fault *f)
{
    if (len > CONFIG_LINE_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the line has %zu bytes, at most %u are allowed", len, CONFIG_LINE_MAX);
    trim(&s, &len);
    if (!len || *s == '#')
        return 0;
    if (*s == '[')
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "there are no sections in this file");
    char *equals = memchr(s, '=', len);
    if (!equals || memchr(s, 0, len))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "the line is not `key = value`");
    char *value = equals + 1;
    size_t key_len = (size_t)(equals - s), value_len = len - key_len - 1;
    trim(&s, &key_len);
    trim(&value, &value_len);
    char copy[CONFIG_LINE_MAX + 1];
    memcpy(copy, value, value_len);
    copy[value_len] = 0;
    return assign(c, s, key_len, copy, line, f);
}

static int read_text(struct config *c, char *s, size_t len, const char *path, struct fault *f)
{
    char shown[256];
    text_escape(shown, sizeof shown, path, strlen(path));
    memset(c->line, 0, sizeof c->line);
    for (unsigned line = 1; len; line++) {
        char *end = memchr(s, '\n', len);
        size_t n = end ? (size_t)(end - s) : len;
        if (read_line(c, s, n, line, f))
            return fault_wrap(f, "%s:%u", shown, line);
        n += end != NULL;
        s += n;
        len -= n;
    }
    return 0;
}

int config_read_file(struct config *c, const struct io *io, const char *path, struct fault *f)
{
    struct io_stat st;
    int fd = io_open_read(io, path, &st, f);
    if (fd < 0)
        return fd;
    int rc = 0;
    char *bytes = NULL;
    if (st.size > CONFIG_FILE_MAX)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "%.200s has %llu bytes, at most %u are allowed",
                       path, (unsigned long long)st.size, CONFIG_FILE_MAX);
    else if (!(bytes = mem_alloc(st.size)))
        rc = fault_set(f, -ENOMEM, "no memory to read %.200s", path);
    if (!rc)
        rc = io_read_full(io, fd, bytes, st.size, 0, f);
    if (!rc)
        rc = read_text(c, bytes, st.size, path, f);
    mem_free(bytes);
    (void)io->close(io->self, fd);
    return rc;
}

/* --- the environment --- */

/* The value if the entry is FP8D_<KEY>=value, else NULL. */
static const char *env_value(const char *env, const char *key)
{
    if (strncmp(env, "FP8D_", 5) != 0)
        return NULL;
    env += 5;
    while (*key && *env == (char)toupper((unsigned char)*key))
        env++, key++;
    return !*key && *env == '=' ? env + 1 : NULL;
}

int config_read_env(struct config *c, char *const *env, struct fault *f)
{
    for (; *env; env++)
        for (unsigned i = 0; i < CONFIG_KEYS; i++) {
            const char *value = env_value(*env, entries[i].key);
            if (value && store(c, i, value, CONFIG_FROM_ENV, f))
                return fault_wrap(f, "in the environment");
        }
    return 0;
}

/* --- the whole --- */

int config_check(const struct config *c, struct fault *f)
{
    if (c->output_high_water > c->output_limit)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "output_high_water is %s, needed at most output_limit, %s",
                         c->text[CONFIG_KEY_output_high_water], c->text[CONFIG_KEY_output_limit]);
    if (*c->socket && *c->socket != '/')
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "socket is \"%s\", needed an absolute path",
                         c->socket);
    if (*c->backend_dir && *c->backend_dir != '/')
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "backend_dir is \"%s\", needed an absolute path", c->backend_dir);
    return 0;
}

int config_socket(const struct config *c, bool is_service, const char *runtime_dir, char *out,
                  size_t size, struct fault *f)
{
    int n;
    if (*c->socket)
        n = snprintf(out, size, "%s", c->socket);
    else if (is_service)
        n = snprintf(out, size, "/run/fp8d/0/fp8d.sock");
    else if (runtime_dir && *runtime_dir == '/')
        n = snprintf(out, size, "%s/fp8d.sock", runtime_dir);
    else
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "XDG_RUNTIME_DIR is not set, so that there is no place for the socket; "
                         "name one with --socket PATH or FP8D_SOCKET");
    if (n < 0 || (size_t)n >= size)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the socket path has %d bytes, needed less "
                         "than %zu",
                         n, size);
    return 0;
}

void config_print(const struct config *c, FILE *to)
{
    for (unsigned i = 0; i < CONFIG_KEYS; i++) {
        if (c->origin[i] != CONFIG_DEFAULT)
            fprintf(to, "# from the %s\n", origins[c->origin[i]]);
        fprintf(to, "%s = %s\n", entries[i].key, c->text[i]);
    }
}

void config_help(FILE *to)
{
    for (unsigned i = 0; i < CONFIG_KEYS; i++)
        fprintf(to, "  %s = %s%s%s%s\n        %s\n", entries[i].key, entries[i].rule.words,
                *entries[i].standard ? " (" : "", entries[i].standard,
                *entries[i].standard ? ")" : "", entries[i].help);
}
