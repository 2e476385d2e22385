/* notify.h - what a service manager is told, and what it hands over: sd_notify(3), sd_listen_fds(3).
 *
 * Our own hundred lines, as those manual pages suggest; no libsystemd. Without a manager everything
 * is a quiet no-op. Plain memory of main; loop thread.
 */
#ifndef FP8D_DAEMON_NOTIFY_H
#define FP8D_DAEMON_NOTIFY_H

#include "base/fault.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

struct notify {
    int fd;                    /* datagram socket, or -1: nobody listens */
    struct sockaddr_un to;
    unsigned to_len;
    uint64_t watchdog_ns;      /* the manager's limit between two pings; 0: none */
    uint64_t fed_ns;           /* when it was last fed */
};

/* Reads NOTIFY_SOCKET (a path, or @name for the abstract namespace), WATCHDOG_USEC and WATCHDOG_PID,
 * and unsets them, so that no child speaks for us. A bad address is a fault (and fd stays -1). */
int notify_init(struct notify *n, struct fault *f);
void notify_fini(struct notify *n);

/* Lines such as "READY=1\nSTATUS=...". A manager that does not listen is no error. */
void notify_send(struct notify *n, const char *lines);

/* Send WATCHDOG=1 if half of the limit has passed since the last time. now: monotonic ns. True if
 * it was sent. */
bool notify_feed(struct notify *n, uint64_t now);

/* The listening socket passed by the manager: its descriptor (close-on-exec, non-blocking), -1 if
 * none was passed, or a negative status below -1 with a sentence: more than one socket, or one that
 * is not a listening Unix stream socket. Reads LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES, and unsets
 * them. Surplus descriptors are closed. */
int notify_take_listener(struct fault *f);

#endif
