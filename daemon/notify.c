#include "daemon/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_FDS_START 3

/* The number that all of the text spells; false for anything else. */
static bool number(const char *s, uint64_t *out)
{
    char *end;
    if (!s || *s < '0' || *s > '9')
        return false;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

static bool number_is_pid(const char *s)
{
    uint64_t pid;
    return number(s, &pid) && pid == (uint64_t)getpid();
}

static int address(struct notify *n, const char *path, struct fault *f)
{
    size_t len = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || len < 2)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "NOTIFY_SOCKET is neither an absolute path nor an @name");
    if (len > sizeof n->to.sun_path - 1)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "NOTIFY_SOCKET has %zu bytes, at most %zu fit",
                         len, sizeof n->to.sun_path - 1);
    n->to = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(n->to.sun_path, path, len);
    bool abstract = path[0] == '@';
    if (abstract)
        n->to.sun_path[0] = 0;
    n->to_len = (unsigned)(offsetof(struct sockaddr_un, sun_path) + len + !abstract);
    return 0;
}

static uint64_t watchdog_limit(void)
{
    uint64_t usec;
    const char *pid = getenv("WATCHDOG_PID");
    if (!number(getenv("WATCHDOG_USEC"), &usec) || (pid && !number_is_pid(pid)))
        return 0;
    return usec < UINT64_MAX / 1000 ? usec * 1000 : 0;
}

int notify_init(struct notify *n, struct fault *f)
{
    int rc = 0;
    *n = (struct notify){.fd = -1, .watchdog_ns = watchdog_limit()};
    const char *path = getenv("NOTIFY_SOCKET");
    if (path && *path)
        rc = address(n, path, f);
    if (path && *path && !rc) {
        n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (n->fd < 0)
            rc = fault_set(f, -errno, "making the notify socket failed: %s", strerror(errno));
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return rc;
}

void notify_fini(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void notify_send(struct notify *n, const char *lines)
{
    if (n->fd >= 0)
        (void)!sendto(n->fd, lines, strlen(lines), MSG_NOSIGNAL, (struct sockaddr *)&n->to,
                      n->to_len);
}

bool notify_feed(struct notify *n, uint64_t now)
{
    if (n->fd < 0 || !n->watchdog_ns || now - n->fed_ns < n->watchdog_ns / 2)
        return false;
    n->fed_ns = now;
    notify_send(n, "WATCHDOG=1\n");
    return true;
}

/* --- sockets that the manager passes --- */

static int option(int fd, int name)
{
    int v = -1;
    socklen_t len = sizeof v;
    return getsockopt(fd, SOL_SOCKET, name, &v, &len) ? -1 : v;
}

static int check_listener(int fd, struct fault *f)
{
    if (option(fd, SO_DOMAIN) != AF_UNIX || option(fd, SO_TYPE) != SOCK_STREAM ||
        option(fd, SO_ACCEPTCONN) != 1)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "descriptor %d from the service manager is not a listening Unix stream "
                         "socket (LISTEN_FDNAMES=%.100s)",
                         fd, getenv("LISTEN_FDNAMES") ? getenv("LISTEN_FDNAMES") : "");
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, O_NONBLOCK))
        return fault_set(f, -errno, "descriptor %d: %s", fd, strerror(errno));
    return fd;
}

static int take(uint64_t count, struct fault *f)
{
    if (count == 1)
        return check_listener(LISTEN_FDS_START, f);
    for (uint64_t i = 0; i < count && i < 1024; i++)
        close(LISTEN_FDS_START + (int)i);
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "the service manager passed %llu sockets, needed 1 (LISTEN_FDNAMES=%.100s)",
                     (unsigned long long)count,
                     getenv("LISTEN_FDNAMES") ? getenv("LISTEN_FDNAMES") : "");
}

int notify_take_listener(struct fault *f)
{
    uint64_t count;
    int fd = -1;
    if (number_is_pid(getenv("LISTEN_PID")) && number(getenv("LISTEN_FDS"), &count) && count)
        fd = take(count, f);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return fd;
}
