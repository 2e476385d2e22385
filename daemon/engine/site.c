#include "daemon/engine/site.h"

#include "daemon/engine/engine.h"

#include <string.h>

int site_init(struct site *s, struct engine *e, uint32_t len, struct fault *f)
{
    *s = (struct site){0};
    uint64_t bytes = scaler_bytes(len);
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes, "scaling state", &s->state,
                        f);
    if (!rc)
        rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_HOST, bytes, "scaling state",
                        &s->mirror_buf, f);
    if (rc) {
        site_fini(s);
        return rc;
    }
    scaler_init(site_mirror(s), len);
    if (s->state->host)
        scaler_init(s->state->host, len);
    return 0;
}

void site_fini(struct site *s)
{
    buffer_unref(s->state);
    buffer_unref(s->mirror_buf);
    *s = (struct site){0};
}

int site_upload(struct site *s, struct queue *q, struct fault *f)
{
    return backend_copy(q, s->state, 0, s->mirror_buf, 0, scaler_bytes(site_mirror(s)->len), f);
}

void site_refresh(struct site *s, const struct scaler *from)
{
    memcpy(site_mirror(s), from, scaler_bytes(from->len));
}
