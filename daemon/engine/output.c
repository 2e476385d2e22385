#include "daemon/engine/output.h"

#include "base/checked.h"

#include <string.h>

int output_make(struct engine *e, const struct output_wish *w, struct operand *out, struct fault *f)
{
    uint64_t n;
    uint64_t bytes;
    *out = (struct operand){0};
    if (!ck_mul(w->rows, w->cols, &n) || !dtype_bytes(w->dtype, n, &bytes))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s [%llu, %llu] has more bytes than a number can count", w->what,
                         (unsigned long long)w->rows, (unsigned long long)w->cols);
    if (!w->stays && w->inline_max && bytes > w->inline_max)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "%s has %llu bytes, a payload at most %llu: keep it with %s", w->what,
                         (unsigned long long)bytes, (unsigned long long)w->inline_max, w->id_field);
    struct operand o = {.rank = w->rank,
                        .high = {.dtype = w->dtype, .rows = w->rows, .cols = w->cols}};
    memcpy(o.dims, w->dims, w->rank * sizeof *o.dims);
    o.dims[w->rank - 1] = w->cols;
    int rc = buffer_new(e->o.backend, e->o.ledger, w->stays ? BUFFER_DEVICE : BUFFER_HOST, bytes,
                        w->what, &o.high.buf, f);
    if (!rc)
        *out = o;
    return rc;
}
