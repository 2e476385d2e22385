#include "tests/bench/torch_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_MS 120000 /* PyTorch starts and compiles */
#define RUN_MS 20000

static void give_up(struct torch_peer *t, const char *why)
{
    (void)fprintf(stderr, "no torch: %s\n", why);
    kill(t->pid, SIGKILL);
    (void)waitpid(t->pid, NULL, 0);
    close(t->fd);
    t->pid = 0;
}

static void child(int fd, const char *script)
{
    const char *python = getenv("FP8D_PYTHON");
    if (!python || !*python)
        python = "python3";
    dup2(fd, 0);
    dup2(fd, 1);
    execlp(python, python, script, (char *)NULL);
    _exit(127);
}

void torch_start(struct torch_peer *t)
{
    const char *script = getenv("FP8D_TORCH_PEERS");
    int sv[2];
    *t = (struct torch_peer){0};
    if (!script || !*script)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
        return;
    t->pid = fork();
    if (t->pid == 0)
        child(sv[1], script);
    close(sv[1]);
    t->fd = sv[0];
    if (t->pid < 0) {
        close(t->fd);
        t->pid = 0;
    }
}

/* One line, without its end; 0, or -1 when it has not come in time. */
static int answer(struct torch_peer *t, int limit_ms, char *line, size_t size)
{
    for (size_t n = 0; n + 1 < size; n++) {
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        if (poll(&p, 1, limit_ms) <= 0 || recv(t->fd, line + n, 1, 0) != 1)
            return -1;
        line[n + 1] = 0;
        if (line[n] == '\n') {
            line[n] = 0;
            return 0;
        }
    }
    return -1;
}

/* Ask, and have the answer in `line`; gives up where there is none, or it tells of an error. */
static int ask(struct torch_peer *t, int limit_ms, char *line, size_t size, const char *fmt, ...)
{
    char question[160];
    va_list ap;
    if (!t->pid)
        return -1;
    va_start(ap, fmt);
    int n = vsnprintf(question, sizeof question, fmt, ap);
    va_end(ap);
    line[0] = 0;
    if (n < 0 || send(t->fd, question, (size_t)n, MSG_NOSIGNAL) != n ||
        answer(t, limit_ms, line, size)) {
        give_up(t, "its process ended, or did not answer in time");
        return -1;
    }
    if (strncmp(line, "error ", 6) == 0) {
        give_up(t, line + 6);
        return -1;
    }
    return 0;
}

void torch_open(struct torch_peer *t, uint64_t m, uint64_t n, uint64_t k, const char *names)
{
    char line[1024];
    (void)ask(t, OPEN_MS, line, sizeof line, "open %llu %llu %llu %s\n", (unsigned long long)m,
              (unsigned long long)n, (unsigned long long)k, names);
}

double torch_run(struct torch_peer *t, const char *name)
{
    char line[1024];
    if (ask(t, RUN_MS, line, sizeof line, "run %s\n", name))
        return -1;
    double us = strtod(line, NULL);
    return us > 0 ? us : -1;
}

void torch_stop(struct torch_peer *t)
{
    if (!t->pid)
        return;
    close(t->fd); /* end of its input */
    for (int i = 0; i < 100; i++) {
        if (waitpid(t->pid, NULL, WNOHANG) == t->pid) {
            t->pid = 0;
            return;
        }
        usleep(100000);
    }
    kill(t->pid, SIGKILL);
    (void)waitpid(t->pid, NULL, 0);
    t->pid = 0;
}
