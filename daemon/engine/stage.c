#include "daemon/engine/stage.h"

#include <assert.h>

uint64_t stage_bytes(const struct tensor *t)
{
    return t->rows * t->cols * (dtype_bits(t->dtype) / 8);
}

static bool in_place(const struct engine *e, const struct tensor *t)
{
    return e->unified || t->buf->kind == BUFFER_DEVICE;
}

static int device_copy_of(struct stage *s, struct engine *e, const struct tensor *t,
                          const char *what, struct tensor *out, struct fault *f)
{
    struct buffer *buf;
    assert(s->count < STAGE_HELD);
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, stage_bytes(t), what, &buf, f);
    if (rc)
        return rc;
    s->held[s->count++] = buf;
    *out = (struct tensor){buf, 0, t->dtype, t->rows, t->cols};
    return 0;
}

int stage_in(struct stage *s, struct engine *e, const struct tensor *t, const char *what,
             struct tensor *out, struct fault *f)
{
    if (in_place(e, t)) {
        *out = *t;
        return 0;
    }
    int rc = device_copy_of(s, e, t, what, out, f);
    return rc ? rc : backend_copy(e->queue, out->buf, 0, t->buf, t->offset, stage_bytes(t), f);
}

int stage_out(struct stage *s, struct engine *e, const struct tensor *host, const char *what,
              struct tensor *out, struct fault *f)
{
    if (in_place(e, host)) {
        *out = *host;
        return 0;
    }
    return device_copy_of(s, e, host, what, out, f);
}

int stage_back(struct engine *e, const struct tensor *device, const struct tensor *host,
               struct fault *f)
{
    if (device->buf == host->buf)
        return 0;
    return backend_copy(e->queue, host->buf, host->offset, device->buf, device->offset,
                        stage_bytes(host), f);
}

void stage_fini(struct stage *s)
{
    while (s->count)
        buffer_unref(s->held[--s->count]);
}
