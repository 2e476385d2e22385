#include "daemon/engine/op.h"

#include <stddef.h>
#include <string.h>

#define CONTAINER(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

static void on_engine(struct exec_task *task)
{
    struct op *op = CONTAINER(task, struct op, task);
    if (op->fault.code)
        (void)fault_at(&op->fault, STAGE_COMPUTE);
    /* Nothing was begun of what could not be enqueued, or was left out for what it follows. */
    op->fault.again = op->unsent || op->fault.code == FP8D_EABORTED;
    op->finish(op);
}

/* On a backend thread. */
static void on_complete(struct queue_note *note, int status)
{
    struct op *op = CONTAINER(note, struct op, note);
    if (status && !op->fault.code) /* a backend that lost its device has no sentence for each */
        fault_set(&op->fault, status, "the backend failed: %s", status_text(status));
    const struct exec *x = op->exec;
    x->post(x->self, &op->task); /* which may be its end */
    if (x->under_way)
        atomic_fetch_sub(x->under_way, 1);
}

void op_init(struct op *op, const struct exec *exec, void (*finish)(struct op *op))
{
    memset(op, 0, sizeof *op);
    op->exec = exec;
    op->finish = finish;
    op->task.run = on_engine;
    op->note.done = on_complete;
    op->note.fault = &op->fault;
}

void op_submit(struct op *op, struct queue *q)
{
    if (op->exec->under_way)
        atomic_fetch_add(op->exec->under_way, 1);
    op->unsent = op->fault.code != 0;
    queue_notify(q, &op->note);
}
