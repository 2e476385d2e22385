#include "client/ctl/tensor_file.h"

#include "base/io.h"
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAMES_SHOWN 4
#define NAMES_TEXT 640 /* room for them */

static int take_shape(const struct safetensors_tensor *from, struct fp8d_tensor *out,
                      struct fault *f)
{
    if (!from->rank)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "tensor has no dimensions, needed 1 to 8");
    if (!dtype_is_high(from->dtype))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "tensor is %s, needed F32, BF16 or F16",
                         dtype_name(from->dtype));
    *out = (struct fp8d_tensor){
        .dtype = (enum fp8d_dtype)from->dtype, .rank = from->rank, .size = from->bytes};
    memcpy(out->dims, from->dims, sizeof out->dims);
    return 0;
}

/* The first names of a file, for a sentence. */
static const char *list_names(const struct safetensors *s, char *out, size_t size)
{
    char one[128];
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < s->count && i < NAMES_SHOWN; i++) {
        text_escape(one, sizeof one, s->tensors[i].name, strlen(s->tensors[i].name));
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", one);
    }
    if (s->count > NAMES_SHOWN)
        (void)snprintf(out + at, size - at, ", ...");
    return out;
}

static int no_such(const struct safetensors *s, const char *name, struct fault *f)
{
    char list[NAMES_TEXT], shown[128];
    text_escape(shown, sizeof shown, name, strlen(name));
    return fault_set(f, FP8D_ENOT_FOUND, "no tensor \"%s\"; there are %zu: %s", shown, s->count,
                     list_names(s, list, sizeof list));
}

static int not_named(const struct safetensors *s, struct fault *f)
{
    char list[NAMES_TEXT];
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "the file has %zu tensors, say which as FILE:TENSOR: %s", s->count,
                     list_names(s, list, sizeof list));
}

static int read_bytes(int fd, const struct io_stat *st, const struct safetensors_tensor *from,
                      struct tensor_file *out, struct fault *f)
{
    int rc = take_shape(from, &out->tensor, f);
    if (rc)
        return rc;
    out->pages = mem_pages(from->bytes);
    if (!out->pages)
        return fault_set(f, -ENOMEM, "no memory for a tensor of %llu bytes",
                         (unsigned long long)from->bytes);
    out->tensor.data = out->pages;
    rc = io_read_full(&io_posix, fd, out->pages, from->bytes, from->offset, f);
    return rc ? rc : io_check_unchanged(&io_posix, fd, st, f);
}

static int read_open(int fd, const struct io_stat *st, const char *name, struct tensor_file *out,
                     struct fault *f)
{
    struct safetensors *s;
    int rc = safetensors_read(&io_posix, fd, st, NULL, &s, f);
    if (rc)
        return rc;
    if (!name) {
        rc = s->count == 1 ? read_bytes(fd, st, &s->tensors[0], out, f) : not_named(s, f);
    } else {
        const struct safetensors_tensor *t = safetensors_find(s, name);
        rc = t ? read_bytes(fd, st, t, out, f) : no_such(s, name, f);
    }
    safetensors_free(s);
    return rc;
}

static int read_path(const char *path, const char *name, struct tensor_file *out, struct fault *f)
{
    char shown[256];
    struct io_stat st;
    struct tensor_file t = {0};
    int fd = io_open_read(&io_posix, path, &st, f);
    if (fd < 0)
        return fd;
    int rc = read_open(fd, &st, name, &t, f);
    (void)io_posix.close(io_posix.self, fd);
    if (rc) {
        tensor_file_fini(&t);
        return fault_wrap(f, "%s", text_escape(shown, sizeof shown, path, strlen(path)));
    }
    *out = t;
    return 0;
}

int tensor_file_read(const char *spec, struct tensor_file *out, struct fault *f)
{
    const char *colon = strrchr(spec, ':');
    if (!colon || !access(spec, F_OK))
        return read_path(spec, NULL, out, f);
    char *path = mem_strndup(spec, (size_t)(colon - spec));
    if (!path)
        return fault_set(f, -ENOMEM, "no memory for a path");
    int rc = read_path(path, colon + 1, out, f);
    mem_free(path);
    return rc;
}

void tensor_file_fini(struct tensor_file *t)
{
    mem_pages_free(t->pages, t->tensor.size);
    *t = (struct tensor_file){0};
}

/* bfloat16 is the upper half of a float32. */
static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* IEEE 754 binary16. */
static float from_f16(uint16_t h)
{
    int exponent = h >> 10 & 31;
    int mantissa = h & 1023;
    float v;
    if (exponent == 31)
        v = mantissa ? NAN : INFINITY;
    else if (exponent)
        v = ldexpf((float)(mantissa + 1024), exponent - 25);
    else
        v = ldexpf((float)mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static float element(const struct fp8d_tensor *t, uint64_t i)
{
    float v;
    uint16_t h;
    if (t->dtype == FP8D_F32) {
        memcpy(&v, (const char *)t->data + 4 * i, sizeof v);
        return v;
    }
    memcpy(&h, (const char *)t->data + 2 * i, sizeof h);
    return t->dtype == FP8D_BF16 ? from_bf16(h) : from_f16(h);
}

static uint64_t element_count(const struct fp8d_tensor *t)
{
    return t->size / (t->dtype == FP8D_F32 ? 4 : 2);
}

void tensor_max_abs(const struct fp8d_tensor *t, float *max, uint64_t *nonfinite)
{
    uint64_t count = element_count(t);
    *max = 0;
    *nonfinite = 0;
    for (uint64_t i = 0; i < count; i++) {
        float v = fabsf(element(t, i));
        if (!isfinite(v))
            ++*nonfinite;
        else if (v > *max)
            *max = v;
    }
}

double tensor_norm(const struct fp8d_tensor *t)
{
    double sum = 0;
    uint64_t count = element_count(t);
    for (uint64_t i = 0; i < count; i++) {
        double v = (double)element(t, i);
        sum += isfinite(v) ? v * v : 0;
    }
    return sqrt(sum);
}
