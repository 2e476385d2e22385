/* handler.h - what net asks of whoever understands frames.
 *
 * A table that main fills with rpc's functions, so that neither side knows the other. All calls are
 * on the loop thread.
 */
#ifndef FP8D_DAEMON_HANDLER_H
#define FP8D_DAEMON_HANDLER_H

#include "base/fault.h"
#include "daemon/exec.h"
#include "proto/frame.h"

#include <sys/types.h>

/* Who is at the other end. */
struct net_peer {
    uint64_t conn; /* number, never reused while the daemon runs, never 0 */
    pid_t pid;
    uid_t uid;
    gid_t gid;
};

enum net_verdict {
    NET_TAKE,    /* go on: payload goes where *payload says */
    NET_DISCARD, /* the request has been answered: read the payload away, then go on */
    NET_WAIT,    /* no memory now: stop reading this connection, ask again (memory_wait_ms at most) */
    NET_FATAL,   /* send GOAWAY with the fault's sentence and close */
};

struct net_handler {
    void *self;
    /* A client connected. 0, or a status: GOAWAY with the sentence, then close (then no `closed`).
     * Never called from inside another call; nor are `abandon` and `closed`. */
    int (*opened)(void *self, const struct net_peer *peer, struct fault *f);
    /* Header and meta are in (meta is valid during the call), no payload byte is read yet. On
     * NET_TAKE and NET_WAIT *request is set and comes back in the calls below. `received_ns`: when
     * the header came. */
    enum net_verdict (*begin)(void *self, uint64_t conn, const struct frame_header *h,
                              const unsigned char *meta, uint64_t received_ns, void **request,
                              struct fault *f);
    /* Where payload_len bytes go: called after begin took the request, and again after NET_WAIT.
     * `last`: waiting is over, so anything but WAIT. Not called when payload_len is 0, except after
     * begin said NET_WAIT (*payload is then ignored). After DISCARD and FATAL, from begin too, net
     * has forgotten the request: no abandon follows. */
    enum net_verdict (*payload)(void *self, void *request, bool last, void **payload,
                                struct fault *f);
    /* Everything is in. The request and its descriptors are the handler's now; the array itself is
     * valid during the call. */
    void (*complete)(void *self, void *request, int *fds, unsigned nfds);
    /* The connection ended before complete: drop the request. */
    void (*abandon)(void *self, void *request);
    /* A final reply to `id` entered the write queue: the id may be used again. */
    void (*replied)(void *self, uint64_t conn, uint64_t id);
    /* The connection is gone; its number is not used again. */
    void (*closed)(void *self, uint64_t conn);
    /* Build the GOAWAY event with this sentence (NULL when memory is short: just close). conn is 0
     * for a client that was refused before it got a number. */
    struct reply *(*goaway)(void *self, uint64_t conn, const struct fault *f);
};

#endif
