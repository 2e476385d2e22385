/* rpc.h - requests between frames and the engine: decode, line up, run, answer.
 *
 * The only protobuf code of the daemon. On the loop thread it decodes and checks; then a request
 * waits in its connection's line on the engine thread, where one handler runs it.
 */
#ifndef FP8D_DAEMON_RPC_RPC_H
#define FP8D_DAEMON_RPC_RPC_H

#include "base/idmap.h"
#include "daemon/engine/engine.h"
#include "daemon/handler.h"

#include <stdatomic.h>

struct session;

struct rpc_options {
    struct engine *engine;
    const struct exec *exec;
    struct frame_caps caps;      /* what Hello states */
    uint32_t in_flight_max;      /* ordered requests in line or running, per connection */
    uint32_t connections_max;
    uint32_t overlap;            /* computing requests that change no state run beside each other, as
                                    many as this; 0 or 1: none do */
    uint64_t instance_id;        /* random per start */
    const char *version;         /* of the server */
    const char *backend_reason;  /* why this backend was taken */
};

/* What the drain came to; on the engine thread. */
typedef void (*rpc_drained_cb)(void *arg);

struct rpc {
    struct rpc_options o;
    /* Loop thread. */
    struct idmap callers;
    uint64_t watched_progress;
    _Atomic uint64_t watched_ns; /* when the compute queue was last seen idle or moving */
    /* Engine thread. */
    struct session *ring;   /* sessions with something in line, circular */
    uint32_t session_count;
    uint32_t queued, running;
    uint64_t requests_done;
    uint32_t ahead;         /* requests that have begun before the one before them has ended */
    uint64_t begun_ahead;   /* requests that began before the one before them had ended */
    uint32_t computing;     /* computing requests that run */
    bool changing;          /* one of them may change state: then it is the only one */
    bool scheduling;
    bool draining;
    rpc_drained_cb drained;
    void *drained_arg;
    struct exec_task drain_task;
    struct exec_task again_task; /* sched_run, later */
    bool again;                  /* it is posted */
};

int rpc_new(const struct rpc_options *o, struct rpc **out, struct fault *f);

/* All connections are closed and the executor has run what they posted. NULL is fine. */
void rpc_free(struct rpc *rpc);

/* The table for net; `self` is rpc. */
struct net_handler rpc_handler(struct rpc *rpc);

/* Any one thread, once: queued requests are answered UNAVAILABLE, new ones too, running ones finish.
 * `drained` is called on the engine thread when nothing runs. */
void rpc_drain(struct rpc *rpc, rpc_drained_cb drained, void *arg);

/* Loop thread: false if the compute queue has had work for `stall_ns` without moving: what the
 * watchdog asks. */
bool rpc_alive(struct rpc *rpc, uint64_t now_ns, uint64_t stall_ns);

/* Any thread: milliseconds since the compute queue was last seen moving while it has work, as fine
 * as rpc_alive is called; 0 when idle. */
uint64_t rpc_progress_age_ms(struct rpc *rpc);

#endif
