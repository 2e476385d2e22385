#include "kernels/buffer.h"

#include "base/mem.h"
#include "kernels/backend.h"

static int buffer_fill(struct buffer *buf, const char *what, struct fault *f)
{
    struct backend *b = buf->backend;
    buf->charged = b->ops->alloc_size(b, buf->kind, buf->bytes);
    if (!buf->charged)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "%s needs %llu bytes, more than can exist",
                         what, (unsigned long long)buf->bytes);
    if (buf->ledger) {
        int rc = ledger_charge(buf->ledger, buf->charged, what, f);
        if (rc)
            return rc;
    }
    int rc = b->ops->alloc(b, buf, f);
    if (!rc)
        return 0;
    if (buf->ledger)
        ledger_release(buf->ledger, buf->charged);
    return fault_wrap(f, "%s", what);
}

int buffer_new(struct backend *b, struct ledger *l, enum buffer_kind kind, uint64_t bytes,
               const char *what, struct buffer **out, struct fault *f)
{
    if (kind != BUFFER_DEVICE && kind != BUFFER_HOST)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "buffer kind is %d, needed 1 (device) or 2 (host)", (int)kind);
    struct buffer *buf = mem_zalloc(sizeof *buf);
    if (!buf)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "%s: no memory for its description", what);
    buf->backend = b;
    buf->ledger = l && l->device && kind == BUFFER_DEVICE ? l->device : l;
    buf->kind = kind;
    buf->bytes = bytes;
    atomic_init(&buf->refs, 1);
    int rc = buffer_fill(buf, what, f);
    if (rc) {
        mem_free(buf);
        return rc;
    }
    *out = buf;
    return 0;
}

struct buffer *buffer_ref(struct buffer *buf)
{
    atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
    return buf;
}

void buffer_unref(struct buffer *buf)
{
    if (!buf || atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel) != 1)
        return;
    buf->backend->ops->free(buf->backend, buf);
    /* Given back only once the memory is: the ledger never promises bytes that are still taken. */
    if (buf->ledger)
        ledger_release(buf->ledger, buf->charged);
    mem_free(buf);
}
