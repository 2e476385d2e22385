#include "ckpt/safetensors.h"

#include "base/checked.h"
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/safetensors_entry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The header as it grows. A failed growth is remembered, so that one check at the end is enough. */
struct sink {
    char *text;
    size_t len, room;
    bool failed;
};

static void put(struct sink *k, const char *s, size_t len)
{
    if (k->failed)
        return;
    if (len > k->room - k->len) {
        size_t room = (k->room + len) * 2;
        char *p =
            room > 2 * (size_t)SAFETENSORS_HEADER_HARD + 4096 ? NULL : mem_realloc(k->text, room);
        k->failed = !p;
        if (!p)
            return;
        k->text = p;
        k->room = room;
    }
    memcpy(k->text + k->len, s, len);
    k->len += len;
}

static void put_text(struct sink *k, const char *s)
{
    put(k, s, strlen(s));
}

static void put_number(struct sink *k, uint64_t v)
{
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%" PRIu64, v);
    put_text(k, digits);
}

/* Well-formed but not printable: a control of C0, DEL or C1. Bytes of it, or 0. */
static unsigned control_length(const unsigned char *s, size_t len)
{
    if (s[0] < 0x20 || s[0] == 0x7f)
        return 1;
    return len > 1 && s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0 ? 2 : 0;
}

static bool is_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t len = strlen(text), n; len; s += n, len -= n) {
        n = utf8_length(s, len);
        if (!n)
            n = control_length(s, len);
        if (!n)
            return false;
    }
    return true;
}

/* A JSON string; text passed is_utf8(). Controls are written as \u00XX. */
static void put_string(struct sink *k, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    put(k, "\"", 1);
    for (size_t len = strlen(text), n; len; s += n, len -= n) {
        char escape[8];
        n = control_length(s, len);
        if (n) {
            (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)s[n - 1]);
            put_text(k, escape);
            continue;
        }
        n = utf8_length(s, len);
        if (*s == '"' || *s == '\\')
            put(k, "\\", 1);
        put(k, (const char *)s, n);
    }
    put(k, "\"", 1);
}

/* --- checks --- */

static int fault_tensor(struct fault *f, const char *name)
{
    char shown[256];
    text_escape(shown, sizeof shown, name, strlen(name));
    f->code = FP8D_EINVALID_ARGUMENT;
    return fault_wrap(f, "tensor \"%s\"", shown);
}

static int check_tensor(const struct safetensors_tensor *t, struct fault *f)
{
    uint64_t need = 0;
    int rc = 0;
    if (!text_is_tensor_name(t->name, strlen(t->name)) || !strcmp(t->name, "__metadata__"))
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "name has %zu bytes, needed 1 to 1024 bytes of printable UTF-8 other than "
                       "\"__metadata__\"",
                       strlen(t->name));
    else if (!dtype_bits(t->dtype))
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "dtype is number %d, needed one of the format",
                       (int)t->dtype);
    else if (t->rank > SAFETENSORS_RANK_MAX)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "shape has %u numbers, needed at most %d",
                       t->rank, SAFETENSORS_RANK_MAX);
    else
        rc = safetensors_need(t, &need, f);
    if (!rc && need != t->bytes)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "has %" PRIu64 " bytes, needed %" PRIu64 " for its shape", t->bytes, need);
    return rc ? fault_tensor(f, t->name) : 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All names differ; `names` is scratch memory and comes back sorted. */
static int check_distinct(const char **names, size_t n, const char *what, struct fault *f)
{
    char shown[256];
    if (n > 1)
        qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1], names[i])) {
            text_escape(shown, sizeof shown, names[i], strlen(names[i]));
            return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s \"%s\" is given twice, needed once",
                             what, shown);
        }
    return 0;
}

static int check_pair(const struct safetensors_meta *m, struct fault *f)
{
    char shown[256];
    if (is_utf8(m->key) && is_utf8(m->value))
        return 0;
    text_escape(shown, sizeof shown, m->key, strlen(m->key));
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "metadata \"%s\" has bytes that are no UTF-8, needed UTF-8", shown);
}

static int check_names(const struct safetensors_tensor *tensors, size_t count,
                       const struct safetensors_meta *meta, size_t meta_count, struct fault *f)
{
    size_t most = count > meta_count ? count : meta_count;
    const char **names = mem_array(most, sizeof *names);
    if (!names)
        return fault_set(f, -ENOMEM, "no memory for %zu names", most);
    for (size_t i = 0; i < count; i++)
        names[i] = tensors[i].name;
    int rc = check_distinct(names, count, "tensor", f);
    for (size_t i = 0; i < meta_count; i++)
        names[i] = meta[i].key;
    if (!rc)
        rc = check_distinct(names, meta_count, "metadata", f);
    mem_free(names);
    return rc;
}

static int check_all(const struct safetensors_tensor *tensors, size_t count,
                     const struct safetensors_meta *meta, size_t meta_count, uint64_t *data,
                     struct fault *f)
{
    uint64_t sum = 0;
    int rc = 0;
    for (size_t i = 0; i < count && !rc; i++) {
        rc = check_tensor(&tensors[i], f);
        if (!rc && (!ck_add(sum, tensors[i].bytes, &sum) || sum > INT64_MAX))
            rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                           "the tensors take 2^63 bytes or more, needed less");
    }
    for (size_t i = 0; i < meta_count && !rc; i++)
        rc = check_pair(&meta[i], f);
    *data = sum;
    return rc ? rc : check_names(tensors, count, meta, meta_count, f);
}

/* --- the header --- */

static void put_meta(struct sink *k, const struct safetensors_meta *meta, size_t count)
{
    put_text(k, "\"__metadata__\":{");
    for (size_t i = 0; i < count; i++) {
        put_text(k, i ? "," : "");
        put_string(k, meta[i].key);
        put_text(k, ":");
        put_string(k, meta[i].value);
    }
    put_text(k, "}");
}

static void put_tensor(struct sink *k, const struct safetensors_tensor *t, uint64_t begin)
{
    put_string(k, t->name);
    put_text(k, ":{\"dtype\":\"");
    put_text(k, dtype_name(t->dtype));
    put_text(k, "\",\"shape\":[");
    for (unsigned i = 0; i < t->rank; i++) {
        put_text(k, i ? "," : "");
        put_number(k, t->dims[i]);
    }
    put_text(k, "],\"data_offsets\":[");
    put_number(k, begin);
    put_text(k, ",");
    put_number(k, begin + t->bytes);
    put_text(k, "]}");
}

static void put_header(struct sink *k, const struct safetensors_tensor *tensors, size_t count,
                       const struct safetensors_meta *meta, size_t meta_count)
{
    uint64_t begin = 0;
    put(k, "\0\0\0\0\0\0\0\0{", 9);
    if (meta_count)
        put_meta(k, meta, meta_count);
    for (size_t i = 0; i < count; i++) {
        put_text(k, i || meta_count ? "," : "");
        put_tensor(k, &tensors[i], begin);
        begin += tensors[i].bytes;
    }
    put_text(k, "}");
    put(k, "        ", -k->len & 7);
    for (unsigned i = 0; !k->failed && i < 8; i++)
        k->text[i] = (char)((k->len - 8) >> (8 * i));
}

int safetensors_plan(struct safetensors_tensor *tensors, size_t count,
                     const struct safetensors_meta *meta, size_t meta_count,
                     struct safetensors_plan *out, struct fault *f)
{
    struct sink k = {0};
    uint64_t data;
    int rc = check_all(tensors, count, meta, meta_count, &data, f);
    if (rc)
        return rc;
    put_header(&k, tensors, count, meta, meta_count);
    if (k.len > SAFETENSORS_HEADER_HARD + 8)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "header takes %zu bytes or more, needed at most %u, the format's limit",
                       k.len - 8, SAFETENSORS_HEADER_HARD);
    else if (k.failed)
        rc = fault_set(f, -ENOMEM, "no memory for a header of more than %zu bytes", k.len);
    if (rc) {
        mem_free(k.text);
        return rc;
    }
    uint64_t at = k.len;
    for (size_t i = 0; i < count; at += tensors[i++].bytes)
        tensors[i].offset = at;
    *out = (struct safetensors_plan){.head = k.text, .head_bytes = k.len, .file_bytes = at};
    return 0;
}

void safetensors_plan_fini(struct safetensors_plan *p)
{
    mem_free(p->head);
    *p = (struct safetensors_plan){0};
}
