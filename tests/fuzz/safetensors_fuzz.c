/* safetensors_fuzz.c - any bytes as a safetensors file: no crash, no leak, and what is accepted
 * obeys the format: tensors inside the file, covering it, and a header that our writer and reader
 * agree on. */
#include "base/dtype.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

struct input {
    const uint8_t *data;
    size_t size;
};

static int64_t input_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    const struct input *in = self;
    (void)fd;
    if (off >= in->size)
        return 0;
    if (len > in->size - off)
        len = in->size - (size_t)off;
    memcpy(buf, in->data + off, len);
    return (int64_t)len;
}

static void check_tensors(const struct safetensors *s)
{
    uint64_t sum = 8 + s->header_bytes;
    for (size_t i = 0; i < s->count; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        uint64_t n = 1, bytes;
        for (unsigned k = 0; k < t->rank; k++)
            n *= t->dims[k];
        REQUIRE(dtype_bytes(t->dtype, n, &bytes) && bytes == t->bytes);
        REQUIRE(t->offset >= 8 + s->header_bytes && t->offset + t->bytes <= s->file_bytes);
        REQUIRE(safetensors_find(s, t->name) == t);
        sum += t->bytes;
    }
    REQUIRE(sum == s->file_bytes);
}

/* What was read can be planned again (in order of names), and is read back the same. */
static void check_rewrite(struct safetensors *s)
{
    struct safetensors_plan p;
    struct safetensors *again;
    struct fault f = {0};
    REQUIRE(safetensors_plan(s->tensors, s->count, s->meta, s->meta_count, &p, &f) == 0);
    REQUIRE(safetensors_parse(p.head + 8, p.head_bytes - 8, p.file_bytes, NULL, &again, &f) == 0);
    REQUIRE(again->count == s->count && again->meta_count == s->meta_count);
    for (size_t i = 0; i < s->count; i++)
        REQUIRE(!strcmp(again->tensors[i].name, s->tensors[i].name) &&
                again->tensors[i].offset == s->tensors[i].offset &&
                again->tensors[i].bytes == s->tensors[i].bytes);
    for (size_t i = 0; i < s->meta_count; i++)
        REQUIRE(!strcmp(again->meta[i].key, s->meta[i].key) &&
                !strcmp(again->meta[i].value, s->meta[i].value));
    safetensors_free(again);
    safetensors_plan_fini(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct io io = {.self = &in, .pread = input_pread};
    struct io_stat st = {.size = size};
    struct fault f = {0};
    struct safetensors *s;
    int64_t blocks = mem_live_blocks();
    int rc = safetensors_read(&io, 0, &st, NULL, &s, &f);
    REQUIRE(rc <= 0 && (rc == 0 || f.text[0]));
    if (!rc) {
        check_tensors(s);
        check_rewrite(s);
        safetensors_free(s);
    }
    REQUIRE(mem_live_blocks() == blocks);
    return 0;
}
