/* hub.h - what the connections of one server share. Owned by the server; loop thread, except for
 * roster_alive. */
#ifndef FP8D_DAEMON_NET_HUB_H
#define FP8D_DAEMON_NET_HUB_H

#include "daemon/net/net.h"
#include "daemon/net/roster.h"

#include <stdbool.h>
#include <uv.h>

#define HUB_SCRATCH ((size_t)64 << 10) /* bytes read ahead at once; one buffer for all */
#define HUB_RETRY_MS 10                /* how often frames that wait for memory are asked about */

struct hub {
    uv_loop_t loop;
    struct net_options options;
    const struct net_handler *handler; /* set before the first connection */
    struct roster roster;
    unsigned char *scratch;
    uv_timer_t retry; /* runs only while waiting > 0: an idle daemon has one timer, the tick */
    unsigned waiting; /* connections with a frame that waits for memory */
    unsigned closing; /* connections whose handles are not closed yet */
    void (*emptied)(struct hub *hub); /* a connection has gone for good, and it was the last */
};

/* Makes the loop, its tables grown to what connections_max needs: libuv aborts when it cannot grow
 * them later. */
int hub_init(struct hub *hub, const struct net_options *o, struct fault *f);

/* Loop thread: close the timer; the loop has to run once more. */
void hub_close(struct hub *hub);

/* The loop must be closed already. */
void hub_fini(struct hub *hub);

/* One more, or one fewer, connection waits for memory. */
void hub_wait_begin(struct hub *hub);
void hub_wait_end(struct hub *hub);

/* Call fn for every connection alive; fn may end any of them. */
void hub_each(struct hub *hub, void (*fn)(struct conn *c));

#endif
