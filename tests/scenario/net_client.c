/* The blocking client of net_fixture.h. */
#include "tests/scenario/net_fixture.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int client_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(fx.path), sizeof a.sun_path);
    memcpy(a.sun_path, fx.path, strlen(fx.path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    struct timeval limit = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ck_assert_msg(connect(fd, (struct sockaddr *)&a, sizeof a) == 0, "%s", strerror(errno));
    return fd;
}

void client_header(unsigned char *out, unsigned type, uint64_t id, uint32_t meta_len,
                   uint64_t payload_len, unsigned fds)
{
    struct frame_header h = {.type = (uint16_t)type,
                             .fds = (uint16_t)fds,
                             .meta_len = meta_len,
                             .id = id,
                             .payload_len = payload_len};
    frame_encode(&h, out);
}

ssize_t client_sendmsg(int fd, const void *bytes, size_t len, const int *fds, unsigned n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(253 * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *m = CMSG_FIRSTHDR(&msg);
        m->cmsg_level = SOL_SOCKET;
        m->cmsg_type = SCM_RIGHTS;
        m->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(m), fds, n * sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

static bool send_all(int fd, const void *p, size_t len)
{
    while (len) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        p = (const char *)p + n;
        len -= (size_t)n;
    }
    return true;
}

void client_send(int fd, unsigned type, uint64_t id, const void *meta, uint32_t meta_len,
                 const void *payload, uint64_t payload_len)
{
    unsigned char head[FRAME_HEADER_BYTES + 4096];
    ck_assert_uint_le(meta_len, 4096);
    client_header(head, type, id, meta_len, payload_len, 0);
    if (meta_len)
        memcpy(head + FRAME_HEADER_BYTES, meta, meta_len);
    if (send_all(fd, head, FRAME_HEADER_BYTES + meta_len) && payload)
        send_all(fd, payload, payload_len);
}

static bool recv_all(int fd, void *p, size_t len)
{
    while (len) {
        ssize_t n = recv(fd, p, len, 0);
        if (n <= 0)
            return false;
        p = (char *)p + n;
        len -= (size_t)n;
    }
    return true;
}

bool client_recv(int fd, struct frame_in *in)
{
    const struct frame_caps caps = {.meta = sizeof in->meta, .payload = 1 << 30, .fds = 0};
    unsigned char raw[FRAME_HEADER_BYTES];
    struct fault f;
    in->payload = NULL;
    if (!recv_all(fd, raw, sizeof raw))
        return false;
    ck_assert_int_eq(frame_decode(raw, &caps, &in->h, &f), 0);
    in->payload = malloc(in->h.payload_len + 1);
    return recv_all(fd, in->meta, in->h.meta_len) && recv_all(fd, in->payload, in->h.payload_len);
}

struct frame_header client_reply(int fd, uint64_t id)
{
    struct frame_in in;
    ck_assert(client_recv(fd, &in));
    free(in.payload);
    ck_assert_msg(in.h.type != FAKE_GOAWAY, "sent away: %.*s", (int)in.h.meta_len, in.meta);
    ck_assert_uint_eq(in.h.id, id);
    ck_assert_uint_eq(in.h.flags, FRAME_FLAG_REPLY);
    return in.h;
}

int client_hello(void)
{
    int fd = client_connect();
    client_send(fd, FAKE_HELLO, 1, NULL, 0, NULL, 0);
    client_reply(fd, 1);
    return fd;
}

void client_goaway(int fd, const char *text)
{
    struct frame_in in;
    ck_assert(client_recv(fd, &in));
    free(in.payload);
    ck_assert_uint_eq(in.h.type, FAKE_GOAWAY);
    ck_assert_uint_eq(in.h.id, 0);
    in.meta[in.h.meta_len] = 0;
    ck_assert_msg(strstr((char *)in.meta, text) != NULL, "GOAWAY says: %s", in.meta);
    char byte;
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

void client_files(int *fds, unsigned n, unsigned first)
{
    for (unsigned i = 0; i < n; i++) {
        char byte = (char)('a' + (i + first) % 26);
        fds[i] = memfd_create("net", MFD_CLOEXEC);
        ck_assert_int_eq(pwrite(fds[i], &byte, 1, 0), 1);
    }
}

void client_close_files(int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}
