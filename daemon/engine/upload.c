#include "daemon/engine/upload.h"

#include "base/mem.h"

#include <errno.h>

/* Both ends live until the queue has copied. */
struct upload {
    struct op op;
    struct buffer *from, *to;
};

static void finish(struct op *op)
{
    struct upload *u = (struct upload *)op;
    buffer_unref(u->from);
    buffer_unref(u->to);
    mem_free(u);
}

int upload_operand(struct engine *e, struct operand *o, struct fault *f)
{
    if (e->unified || o->q || o->high.buf->kind == BUFFER_DEVICE)
        return 0;
    struct upload *u = mem_zalloc(sizeof *u);
    if (!u)
        return fault_set(f, -ENOMEM, "out of memory for a tensor");
    op_init(&u->op, e->o.exec, finish);
    uint64_t bytes = operand_bytes(o);
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes, "the tensor", &u->to, f);
    if (!rc && bytes)
        rc = backend_copy(e->queue, u->to, 0, o->high.buf, o->high.offset, bytes, f);
    if (rc) {
        buffer_unref(u->to);
        mem_free(u);
        return rc;
    }
    u->from = o->high.buf; /* the operand's reference */
    o->high.buf = buffer_ref(u->to);
    o->high.offset = 0;
    op_submit(&u->op, e->queue);
    return 0;
}
