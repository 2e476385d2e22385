/* server.h - the daemon's loop: listener, connections, engine thread, signals, the stop sequence.
 *
 * All calls are for one thread, which is the loop thread from server_new on; the exception is said.
 * Order: server_new, server_exec (for rpc_new), server_listen, server_run, server_free.
 */
#ifndef FP8D_DAEMON_NET_SERVER_H
#define FP8D_DAEMON_NET_SERVER_H

#include "daemon/net/net.h"

#include <stdbool.h>
#include <stddef.h>

#define SERVER_TICK_MS 1000u

/* What the loop asks of the rest. Loop thread. All members are required. */
struct server_hooks {
    void *self;
    /* The daemon stops. Refuse new work (UNAVAILABLE), and call done(arg), once, from any thread,
     * when what runs has ended and what was queued is answered. Called twice: before connections
     * are sent away, and again when the last is gone, for what their `closed` left to do. */
    void (*drain)(void *self, void (*done)(void *arg), void *arg);
    /* Every tick, from SERVER_TICK_MS apart: feed a watchdog, write a status. now: monotonic ns. */
    void (*tick)(void *self, uint64_t now);
    /* SIGTERM or SIGINT came: tell the service manager. */
    void (*stopping)(void *self);
    /* A sentence about what still runs, for the log when a stop times out. */
    void (*describe)(void *self, char *out, size_t size);
};

struct server;

/* Makes the loop and starts the engine thread. Ignores SIGPIPE and SIGXFSZ, raises RLIMIT_NOFILE to
 * the hard limit. */
int server_new(const struct net_options *o, struct server **out, struct fault *f);

/* Where threads meet; valid until server_free. */
const struct exec *server_exec(struct server *s);

/* Bind (or adopt the passed socket) and accept from the next turn of the loop on. Takes listen_fd.
 * Both tables must outlive the server. */
int server_listen(struct server *s, const struct net_handler *h, const struct server_hooks *hooks,
                  struct fault *f);

/* Serve until a signal or server_stop. 0: a clean end, every handle closed, the engine thread
 * joined, the loop closed. 75: the drain timed out or a second signal came; threads may hang, so
 * that the process can only _exit. */
int server_run(struct server *s);

/* Begin the stop sequence, as SIGTERM does; a second time gives up at once. Any thread. */
void server_stop(struct server *s);

/* Only before server_run, or after it returned 0. NULL is fine. */
void server_free(struct server *s);

/* Active timers of the loop: 1 when idle. Loop thread. */
unsigned server_timers(struct server *s);

/* Connections alive. Loop thread. */
unsigned server_connections(const struct server *s);

#endif
