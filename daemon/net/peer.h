/* peer.h - the process at the other end of a Unix socket. Pure system calls; any thread. */
#ifndef FP8D_DAEMON_NET_PEER_H
#define FP8D_DAEMON_NET_PEER_H

#include "daemon/net/net.h"

/* pid, uid and gid from SO_PEERCRED; pid is 0 where it is not visible from here. */
int peer_identify(int fd, struct net_peer *peer);

/* A pidfd of the process that connected: readable once it has ended. -ESRCH: it has ended already;
 * other negative errno: it cannot be watched. The kernel's SO_PEERPIDFD is asked first, since a pid
 * may have been given to another process meanwhile. */
int peer_watch(int fd, pid_t pid);

/* The most this side may have on its way: SO_SNDBUF raised, as far as the host allows. */
void peer_widen(int fd);

#endif
