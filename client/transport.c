#include "client/transport.h"

#include "base/text.h"
#include "proto/frame.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000u
#define BACKLOG_RETRY_MS 5
#define SOCKET_BUFFER (4 << 20) /* asked for; the kernel cuts it to its limit */
#define FDS_IN_MAX 253          /* most the kernel passes at once (SCM_MAX_FD) */

uint64_t transport_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int address_fill(struct sockaddr_un *a, const char *path, struct fault *f)
{
    size_t len = strlen(path);
    if (!len)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "the socket path is empty");
    if (len >= sizeof a->sun_path)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the socket path has %zu bytes, at most %zu are possible", len,
                         sizeof a->sun_path - 1);
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path, path, len);
    return 0;
}

/* A Unix socket connects at once or says EAGAIN while the backlog is full; poll cannot wait for it.
 */
static int connect_retry(int fd, const struct sockaddr_un *a, uint64_t deadline)
{
    while (connect(fd, (const struct sockaddr *)a, sizeof *a)) {
        if (errno == EISCONN)
            return 0;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        if (deadline && transport_now() >= deadline)
            return -ETIMEDOUT;
        (void)poll(NULL, 0, BACKLOG_RETRY_MS);
    }
    return 0;
}

int transport_connect(const char *path, uint64_t deadline, struct fault *f)
{
    struct sockaddr_un a;
    char shown[256];
    int rc = address_fill(&a, path, f);
    if (rc)
        return rc;
    text_escape(shown, sizeof shown, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fault_set(f, -errno, "cannot make a socket: %s", status_text(-errno));
    int want = SOCKET_BUFFER;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &want, sizeof want);
    rc = connect_retry(fd, &a, deadline);
    if (rc) {
        transport_close(fd);
        return fault_set(f, rc, "cannot connect to %s: %s", shown, status_text(rc));
    }
    return fd;
}

void transport_close(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

int64_t transport_send(int fd, const struct iovec *iov, unsigned count, const int *fds,
                       unsigned nfds)
{
    union {
        char bytes[CMSG_SPACE(FRAME_FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = count};
    if (nfds > FRAME_FDS_MAX)
        return -EINVAL;
    if (nfds) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
    }
    ssize_t n;
    do {
        n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static void close_rights(struct msghdr *m)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            (void)close(fd);
        }
    }
}

int64_t transport_recv(int fd, void *buf, size_t len)
{
    union {
        char bytes[CMSG_SPACE(FDS_IN_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    struct msghdr m;
    ssize_t n;
    do {
        m = (struct msghdr){.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
        n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    close_rights(&m);
    return n;
}

int transport_wait(int fd, int out, uint64_t spin_ns, uint64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = (short)(out ? POLLIN | POLLOUT : POLLIN)};
    uint64_t awake_until = spin_ns ? transport_now() + spin_ns : 0;
    for (;;) {
        uint64_t now = deadline || awake_until ? transport_now() : 0;
        if (deadline && now >= deadline)
            return -ETIMEDOUT;
        uint64_t ms = deadline ? (deadline - now + NS_PER_MS - 1) / NS_PER_MS : 0;
        int wait_ms = now < awake_until ? 0 : !deadline ? -1 : ms > 60000 ? 60000 : (int)ms;
        int n = poll(&p, 1, wait_ms);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}
