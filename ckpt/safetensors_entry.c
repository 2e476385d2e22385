#include "ckpt/safetensors_entry.h"

#include "base/checked.h"
#include "base/text.h"

#include <stdio.h>

typedef unsigned long long ull;

const char *safetensors_shape_text(const struct safetensors_tensor *t,
                                   char out[SAFETENSORS_SHAPE_TEXT])
{
    int at = snprintf(out, SAFETENSORS_SHAPE_TEXT, "[");
    for (unsigned i = 0; i < t->rank; i++)
        at += snprintf(out + at, SAFETENSORS_SHAPE_TEXT - (size_t)at, "%s%llu", i ? ", " : "",
                       (ull)t->dims[i]);
    (void)snprintf(out + at, SAFETENSORS_SHAPE_TEXT - (size_t)at, "]");
    return out;
}

int safetensors_need(const struct safetensors_tensor *t, uint64_t *bytes, struct fault *f)
{
    uint64_t n, bits;
    char shape[SAFETENSORS_SHAPE_TEXT];
    const char *dtype = dtype_name(t->dtype);
    if (!ck_product(t->dims, t->rank, &n) || !ck_mul(n, dtype_bits(t->dtype), &bits))
        return fault_set(f, FP8D_EDATA_LOSS,
                         "shape %s of %s overflows, needed a product below 2^64 bits",
                         safetensors_shape_text(t, shape), dtype);
    if (!dtype_bytes(t->dtype, n, bytes))
        return fault_set(f, FP8D_EDATA_LOSS, "shape %s of %s takes %llu bits, needed whole bytes",
                         safetensors_shape_text(t, shape), dtype, (ull)bits);
    return 0;
}

static int take_dtype(const json_t *entry, enum dtype *out, struct fault *f)
{
    char shown[64];
    const json_t *v = json_object_get(entry, "dtype");
    if (!v)
        return fault_set(f, FP8D_EDATA_LOSS, "dtype is missing, needed a name such as \"BF16\"");
    if (!json_is_string(v))
        return fault_set(f, FP8D_EDATA_LOSS, "dtype is %s, needed a name such as \"BF16\"",
                         json_kind(v));
    *out = dtype_parse(json_string_value(v), json_string_length(v));
    if (*out != DTYPE_NONE)
        return 0;
    text_escape(shown, sizeof shown, json_string_value(v), json_string_length(v));
    return fault_set(f, FP8D_EDATA_LOSS,
                     "dtype is \"%s\", needed a name of the format such as \"BF16\", \"F8_E4M3\"",
                     shown);
}

static int take_number(const char *field, size_t i, const json_t *v, uint64_t *out, struct fault *f)
{
    if (json_is_real(v))
        return fault_set(f, FP8D_EDATA_LOSS,
                         "%s[%zu] is written as a fraction (%g), needed an "
                         "integer of 0 or more",
                         field, i, json_real_value(v));
    if (!json_is_integer(v))
        return fault_set(f, FP8D_EDATA_LOSS, "%s[%zu] is %s, needed an integer of 0 or more", field,
                         i, json_kind(v));
    if (json_integer_value(v) < 0)
        return fault_set(f, FP8D_EDATA_LOSS, "%s[%zu] is %lld, needed an integer of 0 or more",
                         field, i, (long long)json_integer_value(v));
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

/* The array entry[field] of min to max numbers. */
static int take_numbers(const json_t *entry, const char *field, size_t min, size_t max,
                        uint64_t *out, size_t *count, struct fault *f)
{
    const json_t *v = json_object_get(entry, field);
    if (!v)
        return fault_set(f, FP8D_EDATA_LOSS, "%s is missing, needed an array of integers", field);
    if (!json_is_array(v))
        return fault_set(f, FP8D_EDATA_LOSS, "%s is %s, needed an array of integers", field,
                         json_kind(v));
    size_t n = json_array_size(v);
    if (n < min || n > max)
        return fault_set(f, FP8D_EDATA_LOSS, "%s has %zu numbers, needed %s %zu", field, n,
                         min == max ? "exactly" : "at most", max);
    for (size_t i = 0; i < n; i++) {
        int rc = take_number(field, i, json_array_get(v, i), &out[i], f);
        if (rc)
            return rc;
    }
    *count = n;
    return 0;
}

static int check_span(const struct safetensors_tensor *t, const uint64_t span[2], struct fault *f)
{
    uint64_t need;
    char shape[SAFETENSORS_SHAPE_TEXT];
    if (span[1] < span[0])
        return fault_set(f, FP8D_EDATA_LOSS,
                         "data_offsets end at %llu, needed at least their "
                         "begin %llu",
                         (ull)span[1], (ull)span[0]);
    int rc = safetensors_need(t, &need, f);
    if (rc)
        return rc;
    if (span[1] - span[0] != need)
        return fault_set(f, FP8D_EDATA_LOSS,
                         "data_offsets [%llu, %llu] hold %llu bytes, needed %llu for shape %s of "
                         "%s",
                         (ull)span[0], (ull)span[1], (ull)(span[1] - span[0]), (ull)need,
                         safetensors_shape_text(t, shape), dtype_name(t->dtype));
    return 0;
}

int safetensors_entry(const json_t *entry, struct safetensors_tensor *t, struct fault *f)
{
    struct safetensors_tensor r = {.name = t->name};
    uint64_t span[2];
    size_t rank = 0, two;
    if (!json_is_object(entry))
        return fault_set(f, FP8D_EDATA_LOSS, "entry is %s, needed an object", json_kind(entry));
    int rc = take_dtype(entry, &r.dtype, f);
    if (!rc)
        rc = take_numbers(entry, "shape", 0, SAFETENSORS_RANK_MAX, r.dims, &rank, f);
    if (!rc)
        rc = take_numbers(entry, "data_offsets", 2, 2, span, &two, f);
    if (rc)
        return rc;
    r.rank = (unsigned)rank;
    rc = check_span(&r, span, f);
    if (rc)
        return rc;
    r.offset = span[0];
    r.bytes = span[1] - span[0];
    *t = r;
    return 0;
}
