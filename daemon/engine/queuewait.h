/* queuewait.h - waiting for a queue, where that is fine: on the loader thread, never on the
 * engine's. */
#ifndef FP8D_DAEMON_ENGINE_QUEUEWAIT_H
#define FP8D_DAEMON_ENGINE_QUEUEWAIT_H

#include "kernels/backend.h"

/* Returns when everything enqueued before is complete; a failure of an operation since the last
 * note is the fault. */
int queue_wait(struct queue *q, struct fault *f);

#endif
