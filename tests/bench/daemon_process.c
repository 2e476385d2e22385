#include "tests/bench/daemon_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double clock_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static int notify_socket(const struct daemon_process *d, char *path, size_t size)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    (void)snprintf(path, size, "%s/notify", d->dir);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    perror("notify socket");
    return -1;
}

static void child(const struct daemon_process *d, const char *program, const char *const *extra,
                  const char *notify)
{
    char *argv[32];
    int n = 0;
    argv[n++] = (char *)(uintptr_t)program;
    argv[n++] = (char *)(uintptr_t)"--socket";
    argv[n++] = (char *)(uintptr_t)d->socket;
    while (extra && *extra && n < 31)
        argv[n++] = (char *)(uintptr_t)*extra++;
    argv[n] = NULL;
    int log = creat(d->log, 0600);
    dup2(log, 2);
    setenv("NOTIFY_SOCKET", notify, 1);
    execv(program, argv);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    _exit(127);
}

static int wait_ready(int fd, pid_t pid)
{
    char buf[2048];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 10000) <= 0 || waitpid(pid, NULL, WNOHANG) == pid)
            return -1;
        ssize_t n = recv(fd, buf, sizeof buf - 1, 0);
        buf[n > 0 ? n : 0] = 0;
        if (strstr(buf, "READY=1"))
            return 0;
    }
}

int daemon_start(struct daemon_process *d, const char *program, const char *const *extra)
{
    char notify[96];
    (void)snprintf(d->dir, sizeof d->dir, "%s/fp8d-XXXXXX",
                   getenv("TMPDIR") && strlen(getenv("TMPDIR")) < 40 ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(d->dir)) {
        perror("mkdtemp");
        return -1;
    }
    (void)snprintf(d->socket, sizeof d->socket, "%s/fp8d.sock", d->dir);
    (void)snprintf(d->log, sizeof d->log, "%s/log", d->dir);
    int fd = notify_socket(d, notify, sizeof notify);
    if (fd < 0)
        return -1;
    double begin = clock_ms();
    d->pid = fork();
    if (d->pid == 0)
        child(d, program, extra, notify);
    int rc = wait_ready(fd, d->pid);
    d->ready_ms = clock_ms() - begin;
    close(fd);
    unlink(notify);
    if (rc)
        fprintf(stderr, "%s did not become ready; its log is %s\n", program, d->log);
    return rc;
}

int daemon_stop(struct daemon_process *d)
{
    kill(d->pid, SIGTERM);
    return daemon_wait(d);
}

int daemon_wait(struct daemon_process *d)
{
    char path[128];
    int status = -1;
    waitpid(d->pid, &status, 0);
    unlink(d->log);
    unlink(d->socket);
    (void)snprintf(path, sizeof path, "%s.lock", d->socket);
    unlink(path);
    rmdir(d->dir);
    return status;
}

uint64_t daemon_memory(const struct daemon_process *d, const char *key)
{
    char path[64];
    char line[256];
    unsigned long long kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)d->pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ':')
            (void)sscanf(line + strlen(key) + 1, "%llu", &kib);
    fclose(f);
    return kib * 1024;
}
