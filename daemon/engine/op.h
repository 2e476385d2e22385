/* op.h - one piece of work on a backend queue, and its way back to the engine thread.
 *
 * Embed it first in what is worked on. The engine thread enqueues operations and calls op_submit;
 * when all of them are complete, `finish` runs on the engine thread. An operation that could not be
 * enqueued sets the fault and still submits: what was enqueued before must complete before its
 * memory may go. fault.again tells `finish` that nothing of it was done, where what changes state
 * was enqueued last.
 */
#ifndef FP8D_DAEMON_ENGINE_OP_H
#define FP8D_DAEMON_ENGINE_OP_H

#include "daemon/exec.h"
#include "kernels/backend.h"

struct op {
    struct queue_note note;
    struct exec_task task;
    const struct exec *exec;
    struct fault fault; /* code 0 while all is well */
    bool unsent;        /* it was set before the note: something was not enqueued */
    void (*finish)(struct op *op);
};

/* Engine thread. */
void op_init(struct op *op, const struct exec *exec, void (*finish)(struct op *op));
void op_submit(struct op *op, struct queue *q);

#endif
