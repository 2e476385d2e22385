#include "daemon/engine/highview.h"

#include "base/checked.h"
#include "daemon/engine/engine.h"

int highview_open(struct engine *e, const struct weight *w, struct tensor *out, struct fault *f)
{
    if (!w->primary.q) {
        *out = w->high;
        buffer_ref(out->buf);
        return 0;
    }
    struct qtensor_info info = qtensor_info(w->primary.q);
    struct tensor t = {.dtype = DTYPE_F32, .rows = info.rows, .cols = info.cols};
    uint64_t n;
    uint64_t bytes;
    if (!ck_mul(t.rows, t.cols, &n) || !dtype_bytes(DTYPE_F32, n, &bytes))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "the weight has too many elements");
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes,
                        "the dequantised weight", &t.buf, f);
    if (!rc)
        rc = qtensor_dequantize(e->queue, w->primary.q, &t, f);
    if (rc) {
        buffer_unref(t.buf);
        return rc;
    }
    *out = t;
    return 0;
}
