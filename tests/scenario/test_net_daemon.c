/* The daemon as a process, as systemd sees it: readiness, watchdog, passed socket, exit codes. */
#include "tests/unit/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_MS 100 /* from exec to READY=1 with --backend cpu; ten times that under sanitizers   \
                      */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SLOW 10
#else
#define SLOW 1
#endif

/* --- fixture --- */

static char dir[64], path[96], notify_path[96], program[512];
static int manager; /* datagram socket */
static pid_t daemon_pid;

static struct sockaddr_un address(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(name), sizeof a.sun_path);
    memcpy(a.sun_path, name, strlen(name) + 1);
    return a;
}

static void setup(void)
{
    const char *build = getenv("FP8D_BUILDDIR");
    snprintf(program, sizeof program, "%s/fp8d", build ? build : ".");
    snprintf(dir, sizeof dir, "/tmp/fp8d-daemon-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(notify_path, sizeof notify_path, "%s/n", dir);
    struct sockaddr_un a = address(notify_path);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(manager, (struct sockaddr *)&a, sizeof a), 0);
}

static void teardown(void)
{
    char command[128];
    if (daemon_pid > 0)
        kill(daemon_pid, SIGKILL);
    close(manager);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

/* --- helpers --- */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* fp8d with up to four arguments; a passed socket at descriptor 3 if listen_fd >= 0. */
static const char *output = "/dev/null"; /* stdout is the test's TAP */
static bool without_files;               /* no standard input, output and error */

static pid_t start(char *const args[], int listen_fd)
{
    pid_t pid = fork();
    if (pid != 0)
        return daemon_pid = pid;
    char self[16];
    char *argv[8] = {program, "--backend", "cpu"};
    for (int i = 0; args[i] && i < 4; i++)
        argv[3 + i] = args[i];
    if (listen_fd >= 0) {
        dup2(listen_fd, 3);
        snprintf(self, sizeof self, "%d", (int)getpid());
        setenv("LISTEN_PID", self, 1);
        setenv("LISTEN_FDS", "1", 1);
    }
    if (!freopen(output, "w", stdout))
        _exit(127);
    for (int fd = 0; without_files && fd <= STDERR_FILENO; fd++)
        close(fd);
    setenv("NOTIFY_SOCKET", notify_path, 1);
    setenv("WATCHDOG_USEC", "2000000", 1);
    unsetenv("WATCHDOG_PID");
    unsetenv("FP8D_SOCKET");
    execv(program, argv);
    _exit(127);
}

/* Wait for a datagram that has this text. */
static void heard(const char *text)
{
    char got[512];
    double end = now_ms() + 10000;
    do {
        struct pollfd p = {.fd = manager, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, 10000) == 1, "the manager never heard %s", text);
        ssize_t n = recv(manager, got, sizeof got - 1, 0);
        got[n > 0 ? n : 0] = 0;
        if (strstr(got, text))
            return;
    } while (now_ms() < end);
    ck_abort_msg("the manager never heard %s", text);
}

static int exit_code(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    daemon_pid = 0;
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int ends_with(char *const args[])
{
    return exit_code(start(args, -1));
}

static int connects(void)
{
    struct sockaddr_un a = address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect(fd, (struct sockaddr *)&a, sizeof a);
    close(fd);
    return rc;
}

static char *socket_args[] = {"--socket", path, NULL};

/* --- cases --- */

/* READY=1 comes within 100 ms, once clients can connect; STOPPING=1 and a clean end on SIGTERM. */
START_TEST(daemon_ready_and_stop)
{
    double best = 1e9;
    for (int i = 0; i < 3; i++) { /* of three, on a busy host */
        double began = now_ms();
        pid_t pid = start(socket_args, -1);
        heard("READY=1");
        double took = now_ms() - began;
        best = took < best ? took : best;
        ck_assert_int_eq(connects(), 0);
        kill(pid, SIGTERM);
        heard("STOPPING=1");
        ck_assert_int_eq(exit_code(pid), 0);
        ck_assert_int_ne(access(path, F_OK), 0);
    }
    ck_assert_double_lt(best, READY_MS * SLOW);
}
END_TEST

/* An idle daemon feeds the watchdog. */
START_TEST(daemon_watchdog)
{
    pid_t pid = start(socket_args, -1);
    heard("READY=1");
    heard("WATCHDOG=1");
    heard("WATCHDOG=1");
    kill(pid, SIGINT);
    ck_assert_int_eq(exit_code(pid), 0);
}
END_TEST

/* The end of its terminal is an end as any other, unless it was told not to care. */
START_TEST(daemon_hangup)
{
    if (_i)
        signal(SIGHUP, SIG_IGN);
    pid_t pid = start(socket_args, -1);
    heard("READY=1");
    kill(pid, SIGHUP);
    if (_i) {
        heard("WATCHDOG=1");
        heard("WATCHDOG=1");
        kill(pid, SIGTERM);
    }
    ck_assert_int_eq(exit_code(pid), 0);
    signal(SIGHUP, SIG_DFL);
}
END_TEST

/* A socket that was passed is served and its file stays. */
START_TEST(daemon_passed_socket)
{
    struct sockaddr_un a = address(path);
    char *none[] = {NULL};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    pid_t pid = start(none, fd);
    heard("READY=1");
    ck_assert_int_eq(connects(), 0);
    kill(pid, SIGTERM);
    ck_assert_int_eq(exit_code(pid), 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    close(fd);
}
END_TEST

/* A second daemon on the socket fails with 1 and leaves the first alone; after kill -9 the next one
 * takes the socket over. */
START_TEST(daemon_second_and_after_kill)
{
    pid_t first = start(socket_args, -1);
    heard("READY=1");
    ck_assert_int_eq(ends_with(socket_args), 1);
    ck_assert_int_eq(connects(), 0);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    pid_t next = start(socket_args, -1);
    heard("READY=1");
    ck_assert_int_eq(connects(), 0);
    kill(next, SIGTERM);
    ck_assert_int_eq(exit_code(next), 0);
}
END_TEST

/* 0 for what only prints, 2 for usage, 78 for bad configuration. */
START_TEST(daemon_exit_codes)
{
    char long_path[200];
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[0] = '/';
    long_path[sizeof long_path - 1] = 0;
    ck_assert_int_eq(ends_with((char *[]){"--version", NULL}), 0);
    ck_assert_int_eq(ends_with((char *[]){"--help", NULL}), 0);
    ck_assert_int_eq(ends_with((char *[]){"--check-config", NULL}), 0);
    ck_assert_int_eq(ends_with((char *[]){"--print-config", NULL}), 0);
    ck_assert_int_eq(ends_with((char *[]){"--bogus", NULL}), 2);
    ck_assert_int_eq(ends_with((char *[]){"--device", "x", NULL}), 78);
    ck_assert_int_eq(ends_with((char *[]){"--check-config", "--set", "x=1", NULL}), 78);
    ck_assert_int_eq(ends_with((char *[]){"--socket", path, "--backend", "cuda", NULL}), 78);
    ck_assert_int_eq(ends_with((char *[]){"--socket", long_path, NULL}), 78);
    ck_assert_int_eq(ends_with((char *[]){"--config", "/nonexistent", NULL}), 78);
}
END_TEST

/* What cannot be printed is an error. */
START_TEST(daemon_output_that_cannot_be_written)
{
    output = "/dev/full";
    ck_assert_int_eq(ends_with((char *[]){"--version", NULL}), 1);
    ck_assert_int_eq(ends_with((char *[]){"--help", NULL}), 1);
    ck_assert_int_eq(ends_with((char *[]){"--print-config", NULL}), 1);
    output = "/dev/null";
}
END_TEST

/* Standard files that are closed at the start are no harm, nor is what is opened in their place. */
START_TEST(daemon_without_standard_files)
{
    without_files = true;
    pid_t pid = start(socket_args, -1);
    heard("READY=1");
    ck_assert_int_eq(connects(), 0);
    ck_assert_int_eq(ends_with(socket_args), 1); /* another daemon has the socket */
    kill(pid, SIGTERM);
    ck_assert_int_eq(exit_code(pid), 0);
    without_files = false;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("net_daemon");
    TCase *t = tcase_create("process");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, daemon_ready_and_stop);
    tcase_add_test(t, daemon_watchdog);
    tcase_add_loop_test(t, daemon_hangup, 0, 2);
    tcase_add_test(t, daemon_passed_socket);
    tcase_add_test(t, daemon_second_and_after_kill);
    tcase_add_test(t, daemon_exit_codes);
    tcase_add_test(t, daemon_output_that_cannot_be_written);
    tcase_add_test(t, daemon_without_standard_files);
    suite_add_tcase(s, t);
    return run_suite(s);
}
