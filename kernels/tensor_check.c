#include "kernels/tensor_check.h"

#include "base/checked.h"

int check_range(const struct backend *b, const struct buffer *buf, uint64_t offset, uint64_t bytes,
                const char *field, struct fault *f)
{
    uint64_t end;
    if (!buf)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s has no buffer", field);
    if (buf->backend != b)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is memory of another backend", field);
    if (!ck_add(offset, bytes, &end) || end > buf->bytes)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s is %llu bytes at offset %llu, needed to end within the %llu bytes of "
                         "its buffer",
                         field, (unsigned long long)bytes, (unsigned long long)offset,
                         (unsigned long long)buf->bytes);
    return 0;
}

int check_tensor(const struct backend *b, const struct tensor *t, const char *field,
                 struct fault *f)
{
    uint64_t elements, bytes;
    if (!t)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is missing", field);
    if (!dtype_is_high(t->dtype))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.dtype is %s, needed F32, BF16 or F16",
                         field, dtype_name(t->dtype));
    if (!t->cols)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.cols is 0, needed at least 1", field);
    if (!ck_mul(t->rows, t->cols, &elements) || !dtype_bytes(t->dtype, elements, &bytes))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s is [%llu, %llu], needed fewer than 2^64 bits", field,
                         (unsigned long long)t->rows, (unsigned long long)t->cols);
    unsigned size = dtype_bits(t->dtype) / 8;
    if (t->offset % size)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.offset is %llu, needed a multiple of %u",
                         field, (unsigned long long)t->offset, size);
    return check_range(b, t->buf, t->offset, bytes, field, f);
}

int check_apart(const struct tensor *a, const char *a_field, const struct tensor *b,
                const char *b_field, struct fault *f)
{
    uint64_t a_bytes = a->rows * a->cols * (dtype_bits(a->dtype) / 8);
    uint64_t b_bytes = b->rows * b->cols * (dtype_bits(b->dtype) / 8);
    if (a->buf != b->buf || a->offset >= b->offset + b_bytes || b->offset >= a->offset + a_bytes)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "%s overlaps %s (both in one buffer, at offsets %llu and %llu), needed apart",
                     a_field, b_field, (unsigned long long)a->offset,
                     (unsigned long long)b->offset);
}

int check_fp8(enum dtype fmt, const char *field, struct fault *f)
{
    if (dtype_is_fp8(fmt))
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is %s, needed F8_E4M3 or F8_E5M2", field,
                     dtype_name(fmt));
}

int check_dim(uint64_t found, uint64_t needed, const char *field, struct fault *f)
{
    if (found == needed)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is %llu, needed %llu", field,
                     (unsigned long long)found, (unsigned long long)needed);
}
