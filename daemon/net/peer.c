#include "daemon/net/peer.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#define SEND_BUFFER (4 << 20)

int peer_identify(int fd, struct net_peer *peer)
{
    struct ucred who;
    socklen_t len = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len))
        return -errno;
    peer->pid = who.pid;
    peer->uid = who.uid;
    peer->gid = who.gid;
    return 0;
}

int peer_watch(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t len = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
        return pidfd;
    if (errno == ESRCH)
        return -ESRCH;
    if (pid <= 0)
        return -ENOENT;
    long r = syscall(SYS_pidfd_open, pid, 0u);
    return r < 0 ? -errno : (int)r;
}

void peer_widen(int fd)
{
    int bytes = SEND_BUFFER;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}
