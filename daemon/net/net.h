/* net.h - sockets and frames: the only code that knows libuv.
 *
 * net knows nothing of protobuf or models: it moves frames between sockets and a handler, the table
 * that main fills with rpc's functions. All handler calls are on the loop thread.
 */
#ifndef FP8D_DAEMON_NET_NET_H
#define FP8D_DAEMON_NET_NET_H

#include "base/fault.h"
#include "daemon/handler.h"
#include "proto/frame.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct net_options {
    const char *socket_path;  /* to bind; NULL if listen_fd is given */
    int listen_fd;            /* from the service manager, or -1 */
    unsigned socket_mode;     /* e.g. 0660 */
    unsigned connections_max; /* e.g. 1024 */
    struct frame_caps caps;
    uint64_t output_high_water; /* unsent bytes of replies above which reading pauses */
    uint64_t output_limit;      /* above which a client that does not read is disconnected; a single
                                   reply may be larger */
    unsigned handshake_ms;      /* 30 000: no Hello, or half a frame, for so long: closed; every
                                   MiB of payload received starts it anew */
    unsigned output_stall_ms;   /* over high water and not one byte taken for so long: closed */
    unsigned memory_wait_ms;    /* NET_WAIT for so long, then last = true */
    unsigned drain_ms;          /* 50 000: how long a stop waits for running work */
    unsigned cores;             /* of the host, which decides how long threads look for work; 0: ask */
};

#endif
