/* session.h - the engine's side of a connection: its line of requests and its lease.
 *
 * Ordered requests of one session run one after another; between sessions round-robin. A computing
 * request that may change state runs when no other computes; those that change none (eval,
 * recompute, check) run beside each other where rpc_options.overlap says so. A save begins when no
 * change runs, and then goes on beside them. Others run beside them.
 *
 * While a change computes and no other session waits, the next request of its line may begin ahead,
 * where the engine allows it (daemon/engine/flight.h). One that is refused then, or of which
 * nothing was done, goes back to its place in the line and begins again as if nothing had been.
 * Engine thread.
 */
#ifndef FP8D_DAEMON_RPC_SESSION_H
#define FP8D_DAEMON_RPC_SESSION_H

#include "daemon/engine/lease.h"
#include "daemon/handler.h"
#include "daemon/rpc/request.h"

#define OUTCOMES_KEPT 1024 /* finished requests of a session that `needs` can name */

struct outcome {
    uint64_t id;
    bool ok;
};

struct session {
    struct rpc *rpc;
    uint64_t conn;
    struct lease lease;
    struct request *first, **last; /* the line */
    struct request *running;
    struct request *ahead;       /* begun behind it, before its end; or NULL */
    uint64_t turns;              /* given out to requests of the line */
    bool closed;                 /* the connection is gone */
    struct session *prev, *next; /* in the ring, or NULL */
    struct outcome *outcomes;    /* ring of OUTCOMES_KEPT */
    unsigned outcome_at;
    struct exec_task task; /* opening */
};

/* Loop thread: memory only. */
struct session *session_new(struct rpc *rpc, const struct net_peer *peer);
void session_discard(struct session *s); /* one that was never opened */

/* Engine thread. */
void session_open(struct session *s);
void session_close(struct session *s); /* drops the line; ends when what runs has finished */
void session_enqueue(struct session *s, struct request *rq);

/* A request of the line has ended; called by request.c before it frees it. */
void session_finished(struct session *s, struct request *rq, bool ok);

/* A request that began ahead has failed: true if it is in line again, and not to be answered. */
bool session_take_back(struct session *s, struct request *rq);

/* Take a queued request out of the line, or NULL. */
struct request *session_unqueue(struct session *s, uint64_t id);

/* Start whatever can start. */
void sched_run(struct rpc *rpc);

#endif
