/* flight.h - the change that computes now, and what may begin behind it before it has ended.
 *
 * A request that begins ahead is enqueued while the one before it still computes, so that the
 * device does not wait for the host between the two. Allowed is what decides from nothing that the
 * first one may still change: a backward behind the forward of its context, a step behind a
 * backward of its model, a forward behind a backward, either behind a forward or backward of
 * another layer. What is not allowed is refused here, and rpc begins it again when the first has
 * ended: to begin ahead changes when things happen and nothing else. Should the first one fail on
 * the device, the queue leaves out what follows it (backend_follow), which begins again, too.
 * Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_FLIGHT_H
#define FP8D_DAEMON_ENGINE_FLIGHT_H

#include "daemon/engine/engine.h"

struct context;
struct layer;
struct lease;

/* Of a forward in mode train or a backward; embedded in it. */
struct flight {
    const struct queue_note *note;
    const struct lease *lease;
    const struct model *model;
    struct layer *layer;
    const struct context *used; /* by a backward */
    uint64_t filed;             /* id that its output will have; 0: none */
    bool backward;
};

/* All of it is enqueued. Not for one whose enqueueing failed. */
void flight_begin(struct engine *e, struct flight *fl);
/* It has ended, well or not; fine for one that never began. */
void flight_end(struct engine *e, const struct flight *fl);

/* Whether a request that begins ahead (engine.ahead) may; 0 at once for one that does not. */
int flight_check_forward(const struct engine *e, const struct layer *l, struct fault *f);
int flight_check_backward(const struct engine *e, const struct context *c, struct fault *f);
int flight_check_step(const struct engine *e, const struct model *m, bool repeated,
                      struct fault *f);
/* ... name this tensor, to read it or to file another under its id. */
int flight_check_tensor(const struct engine *e, const struct lease *l, uint64_t id,
                        struct fault *f);

/* Before the first operation of a request that may begin ahead or use an adopted tensor, once
 * nothing can refuse it any more: if what lies before it fails, it is left out. */
int flight_follow(struct engine *e, struct fault *f);

#endif
