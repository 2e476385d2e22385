#include "tests/bench/raw_peer.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What is asked for, and what says that it is done: 40 bytes. */
struct order {
    char kind; /* 'e'cho, 'p'ut, 'g'et, 'b'oth */
    char pad[31];
    unsigned long count;
};

static void must(bool good, const char *what)
{
    if (good)
        return;
    (void)fprintf(stderr, "raw peer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static bool pull(int fd, char *buf, size_t size)
{
    ssize_t n = 1;
    for (size_t done = 0; done < size && n > 0; done += n > 0 ? (size_t)n : 0)
        n = recv(fd, buf + done, size - done, 0);
    return n > 0;
}

static bool push(int fd, const char *buf, size_t size)
{
    ssize_t n = 1;
    for (size_t done = 0; done < size && n > 0; done += n > 0 ? (size_t)n : 0)
        n = send(fd, buf + done, size - done, MSG_NOSIGNAL);
    return n > 0;
}

/* How far a direction is; moves on where the socket takes or has something. */
static bool step(size_t *done, ssize_t n)
{
    if (n > 0)
        *done += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool both(int fd, char *out, char *in, size_t total)
{
    size_t sent = 0, got = 0;
    bool good = true;
    while (good && (sent < total || got < total)) {
        struct pollfd p = {
            .fd = fd, .events = (short)((sent < total ? POLLOUT : 0) | (got < total ? POLLIN : 0))};
        (void)poll(&p, 1, -1);
        size_t at = sent % RAW_BULK, to = got % RAW_BULK;
        if (sent < total && (p.revents & POLLOUT))
            good = step(&sent, send(fd, out + at, RAW_BULK - at, MSG_DONTWAIT | MSG_NOSIGNAL));
        if (good && got < total && (p.revents & ~POLLOUT))
            good = step(&got, recv(fd, in + to, RAW_BULK - to, MSG_DONTWAIT));
    }
    return good;
}

static void serve(int fd)
{
    char *buf = malloc(RAW_BULK), *other = malloc(RAW_BULK);
    struct order o;
    bool good = buf && other;
    if (good) {
        memset(buf, 1, RAW_BULK);
        memset(other, 1, RAW_BULK);
    }
    while (good && pull(fd, (char *)&o, sizeof o)) {
        if (o.kind == 'p')
            good = pull(fd, buf, RAW_BULK);
        else if (o.kind == 'g')
            good = push(fd, buf, RAW_BULK);
        else if (o.kind == 'b')
            good = both(fd, other, buf, o.count * RAW_BULK);
        good = good && push(fd, (char *)&o, sizeof o);
    }
    _exit(0);
}

int raw_start(void)
{
    int sv[2];
    int size = 4 << 20;
    must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), "socketpair");
    for (int i = 0; i < 2; i++)
        setsockopt(sv[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        close(sv[0]);
        serve(sv[1]);
    }
    close(sv[1]);
    return sv[0];
}

static void ask(int fd, char kind, unsigned count)
{
    struct order o = {.kind = kind, .count = count};
    must(push(fd, (char *)&o, sizeof o), "send");
}

static void done(int fd)
{
    struct order o;
    must(pull(fd, (char *)&o, sizeof o), "recv");
}

void raw_echo(int fd)
{
    ask(fd, 'e', 0);
    done(fd);
}

void raw_put(int fd, char *buf)
{
    ask(fd, 'p', 0);
    must(push(fd, buf, RAW_BULK), "send");
    done(fd);
}

void raw_get(int fd, char *buf)
{
    ask(fd, 'g', 0);
    must(pull(fd, buf, RAW_BULK), "recv");
    done(fd);
}

void raw_both(int fd, char *out, char *in, unsigned count)
{
    ask(fd, 'b', count);
    must(both(fd, out, in, count * RAW_BULK), "copying both ways");
    done(fd);
}
