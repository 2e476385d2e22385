#include "daemon/engine/upload.h"

#include "base/mem.h"
#include "daemon/engine/flight.h"

#include <errno.h>

struct upload {
    struct op op;
    struct resident *resident;
    struct buffer *from; /* NULL: an FP8 tensor, whose adoption is waited for */
    uint64_t offset;
    upload_done_cb done;
    void *arg;
};

static void finish(struct op *op)
{
    struct upload *u = (struct upload *)op;
    if (op->fault.code)
        resident_end(u->resident);
    buffer_unref(u->from);
    u->done(u->arg, &op->fault);
    mem_free(u);
}

/* A high-precision value gets memory of its own; what it was in is copied from. */
static int move(struct upload *u, struct engine *e, struct operand *value, struct fault *f)
{
    struct buffer *to;
    if (value->q || value->high.buf->kind == BUFFER_DEVICE)
        return 0;
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, operand_bytes(value),
                        "the tensor", &to, f);
    if (rc)
        return rc;
    u->from = value->high.buf; /* the value's reference */
    u->offset = value->high.offset;
    value->high.buf = to;
    value->high.offset = 0;
    return 0;
}

static int file_now(struct lease *l, uint64_t id, struct operand value, upload_done_cb done,
                    void *arg, struct fault *f)
{
    struct resident *r;
    struct fault none = {0};
    int rc = resident_new(l, id, "tensor_id", value, &r, f);
    if (!rc)
        done(arg, &none);
    return rc;
}

int upload_start(struct lease *l, uint64_t id, struct operand value, upload_done_cb done, void *arg,
                 struct fault *f)
{
    struct engine *e = l->engine;
    if (e->unified && !value.q)
        return file_now(l, id, value, done, arg, f);
    struct upload *u = mem_zalloc(sizeof *u);
    if (!u) {
        operand_fini(&value);
        return fault_set(f, -ENOMEM, "out of memory for a tensor");
    }
    op_init(&u->op, e->o.exec, finish);
    u->done = done;
    u->arg = arg;
    int rc = move(u, e, &value, f);
    if (rc)
        operand_fini(&value);
    else
        rc = resident_new(l, id, "tensor_id", value, &u->resident, f);
    if (rc) {
        buffer_unref(u->from);
        mem_free(u);
        return rc;
    }
    (void)flight_follow(e, &u->op.fault);
    uint64_t bytes = operand_bytes(&value);
    if (!u->op.fault.code && u->from && bytes)
        (void)backend_copy(e->queue, value.high.buf, 0, u->from, u->offset, bytes, &u->op.fault);
    op_submit(&u->op, e->queue);
    return 0;
}
