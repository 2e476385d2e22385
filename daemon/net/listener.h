/* listener.h - the listening Unix socket: bound by us or passed by the service manager.
 *
 * A path is guarded by `<path>.lock` (flock), so that two daemons that start at once cannot both
 * take a stale socket away; the lock file stays where it is. A socket file nobody listens on is
 * replaced. Loop thread.
 */
#ifndef FP8D_DAEMON_NET_LISTENER_H
#define FP8D_DAEMON_NET_LISTENER_H

#include "daemon/net/net.h"

#include <stdbool.h>

#define LISTENER_PATH_MAX 107 /* sun_path less its NUL */

struct listener {
    int fd;
    int reserve; /* given up to accept, and refuse, a client when no descriptor is free; or -1 */
    int lock;    /* of <path>.lock, or -1 */
    char path[LISTENER_PATH_MAX + 1]; /* "" when the socket was passed to us */
    uint64_t dev, inode;              /* of what we bound there */
};

/* Faults name the path: longer than 107 bytes (with its length), another daemon listens there, not
 * a socket, no such directory. */
int listener_open(struct listener *l, const struct net_options *o, struct fault *f);

/* The next client, non-blocking and close-on-exec; -EAGAIN when nobody waits; another negative
 * errno when none can be taken now. *starved: it took the last descriptor; refuse it, close it,
 * call listener_rearm. */
int listener_accept(struct listener *l, bool *starved);
void listener_rearm(struct listener *l);

/* Close; remove the socket file if it is still ours. Also on a listener that failed to open. */
void listener_close(struct listener *l);

#endif
