#include "ckpt/safetensors.h"

#include "base/cursor.h"
#include "base/mem.h"

#include <errno.h>
#include <strings.h>

#define SNIFF_MAX 64

/* What is passed by mistake, known by its first bytes (letters in either case). */
static const struct {
    const char *magic;
    size_t len;
    const char *what;
} mistakes[] = {
    {"version https://git-lfs", 23, "a Git LFS pointer (fetch the data with git lfs pull)"},
    {"<!DOCTYPE", 9, "an HTML page"},
    {"<html", 5, "an HTML page"},
    {"PK\003\004", 4, "a zip archive, perhaps of torch.save"},
    {"GGUF", 4, "a GGUF file"},
    {"\200\002", 2, "a Python pickle, perhaps of torch.save"},
    {"\200\003", 2, "a Python pickle, perhaps of torch.save"},
    {"\200\004", 2, "a Python pickle, perhaps of torch.save"},
    {"\200\005", 2, "a Python pickle, perhaps of torch.save"},
    {"{", 1, "bare JSON text"},
};

/* Only asked once the header's length is impossible: some of these may begin a good file. */
static const char *sniff(const unsigned char *head, size_t len)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++)
        if (len >= mistakes[i].len &&
            !strncasecmp((const char *)head, mistakes[i].magic, mistakes[i].len))
            return mistakes[i].what;
    return NULL;
}

static int read_length(const struct io *io, int fd, const struct io_stat *st,
                       const struct safetensors_limits *limits, uint64_t *out, struct fault *f)
{
    unsigned char head[SNIFF_MAX];
    size_t len = st->size < SNIFF_MAX ? (size_t)st->size : SNIFF_MAX;
    if (len == 0)
        return fault_set(f, FP8D_EDATA_LOSS, "the file is empty, needed a safetensors file");
    int rc = io_read_full(io, fd, head, len, 0, f);
    if (rc)
        return rc;
    struct cursor c = cursor_over(head, len);
    uint64_t n = cursor_u64(&c);
    if (c.bad)
        rc = fault_set(f, FP8D_EDATA_LOSS,
                       "the file has %zu bytes, needed at least the 8 of the header's length", len);
    else
        rc = safetensors_check_size(n, st->size, limits, f);
    const char *what = c.bad || n > SAFETENSORS_HEADER_HARD ? sniff(head, len) : NULL;
    if (what)
        return fault_set(f, FP8D_EDATA_LOSS, "the file is %s, needed a safetensors file", what);
    if (!rc)
        *out = n;
    return rc;
}

int safetensors_read(const struct io *io, int fd, const struct io_stat *st,
                     const struct safetensors_limits *limits, struct safetensors **out,
                     struct fault *f)
{
    uint64_t n = 0;
    int rc = read_length(io, fd, st, limits, &n, f);
    if (rc)
        return rc;
    char *json = mem_alloc((size_t)n);
    if (!json)
        return fault_set(f, -ENOMEM, "no memory for %zu bytes of header", (size_t)n);
    rc = io_read_full(io, fd, json, (size_t)n, 8, f);
    if (!rc)
        rc = safetensors_parse(json, (size_t)n, st->size, limits, out, f);
    mem_free(json);
    return rc;
}
