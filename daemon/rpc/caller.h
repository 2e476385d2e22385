/* caller.h - the loop's side of a connection: who calls, whether it said Hello, what is in flight.
 * Loop thread. */
#ifndef FP8D_DAEMON_RPC_CALLER_H
#define FP8D_DAEMON_RPC_CALLER_H

#include "daemon/exec.h"
#include "daemon/handler.h"

struct rpc;
struct session;

#define CALLER_NOW_EXTRA 64 /* questions in flight beside the ordered requests */

struct caller_entry {
    uint64_t id;
    bool admitted, ordered; /* counted against the cap */
};

struct caller {
    struct rpc *rpc;
    uint64_t conn;
    struct net_peer peer;
    struct session *session; /* the engine's; only passed on */
    unsigned classes;        /* mask of enum request_class it may send: all, in this version */
    bool greeted;            /* Hello was answered well */
    struct exec_task close;  /* tells the engine that the connection is gone */
    uint32_t ordered, now;   /* admitted and in flight */
    struct caller_entry *entries; /* in flight */
    uint32_t count, room;
};

struct caller *caller_new(struct rpc *rpc, const struct net_peer *peer, struct session *s);
void caller_free(struct caller *c); /* NULL is fine */

/* The connection is gone: posts the session's end, then frees itself on the engine thread. */
void caller_end(struct caller *c);

bool caller_has(const struct caller *c, uint64_t id);
/* In flight from here on. Never fails: room is made when the caller is made, and beyond it an id is
 * simply not remembered (it is being refused). */
void caller_add(struct caller *c, uint64_t id);
/* Count it; FP8D_ERESOURCE_EXHAUSTED over the cap. */
int caller_admit(struct caller *c, uint64_t id, bool ordered, struct fault *f);
void caller_remove(struct caller *c, uint64_t id);

#endif
