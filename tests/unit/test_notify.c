/* sd_notify(3) and sd_listen_fds(3) without systemd: a datagram socket plays the manager. */
#include "daemon/notify.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SECOND 1000000000u

/* --- helpers --- */

/* A bound datagram socket of that name ("@x": abstract). */
static int manager(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    memcpy(a.sun_path, name, len);
    if (name[0] == '@')
        a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (name[0] != '@'));
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, size), 0);
    return fd;
}

/* The next datagram, "" if there is none. */
static const char *heard(int fd)
{
    static char text[256];
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void set_number(const char *name, long v)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", v);
    setenv(name, text, 1);
}

/* Put a socket of the type at descriptor 3 + i; `listening` on an autobound address. */
static void pass(int i, int type, bool listening)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a.sun_family), 0);
    if (listening)
        ck_assert_int_eq(listen(fd, 1), 0);
    if (fd != 3 + i) {
        ck_assert_int_eq(dup2(fd, 3 + i), 3 + i);
        close(fd);
    }
    set_number("LISTEN_PID", getpid());
    set_number("LISTEN_FDS", i + 1);
    setenv("LISTEN_FDNAMES", "fp8d", 1);
}

static void nothing_in_environment(void)
{
    ck_assert_ptr_null(getenv("LISTEN_PID"));
    ck_assert_ptr_null(getenv("LISTEN_FDS"));
    ck_assert_ptr_null(getenv("LISTEN_FDNAMES"));
}

/* --- messages --- */

/* Lines arrive at a path, and nothing of it is left in the environment. */
START_TEST(notify_path)
{
    char dir[] = "/tmp/fp8d-notify-XXXXXX", path[64];
    struct notify n;
    struct fault f;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/n", dir);
    int fd = manager(path);
    setenv("NOTIFY_SOCKET", path, 1);
    ck_assert_int_eq(notify_init(&n, &f), 0);
    ck_assert_ptr_null(getenv("NOTIFY_SOCKET"));
    notify_send(&n, "READY=1\nSTATUS=here\n");
    ck_assert_str_eq(heard(fd), "READY=1\nSTATUS=here\n");
    notify_send(&n, "STOPPING=1\n");
    ck_assert_str_eq(heard(fd), "STOPPING=1\n");
    notify_fini(&n);
    close(fd);
    unlink(path);
    rmdir(dir);
}
END_TEST

/* Lines arrive at an abstract name. */
START_TEST(notify_abstract)
{
    char name[64];
    struct notify n;
    struct fault f;
    snprintf(name, sizeof name, "@fp8d-notify-%d", (int)getpid());
    int fd = manager(name);
    setenv("NOTIFY_SOCKET", name, 1);
    ck_assert_int_eq(notify_init(&n, &f), 0);
    notify_send(&n, "READY=1\n");
    ck_assert_str_eq(heard(fd), "READY=1\n");
    notify_fini(&n);
    close(fd);
}
END_TEST

/* Without a manager, or with one that has gone, sending is a no-op. */
START_TEST(notify_nobody)
{
    struct notify n;
    struct fault f;
    unsetenv("NOTIFY_SOCKET");
    ck_assert_int_eq(notify_init(&n, &f), 0);
    notify_send(&n, "READY=1\n");
    ck_assert(!notify_feed(&n, 100 * (uint64_t)SECOND));
    notify_fini(&n);
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    ck_assert_int_eq(notify_init(&n, &f), 0);
    notify_send(&n, "READY=1\n");
    notify_fini(&n);
}
END_TEST

/* A relative name and one that does not fit are refused with the reason. */
START_TEST(notify_bad_address)
{
    char name[120];
    struct notify n;
    struct fault f;
    setenv("NOTIFY_SOCKET", "relative", 1);
    ck_assert_int_eq(notify_init(&n, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(n.fd, -1);
    memset(name, '/', sizeof name - 1);
    name[sizeof name - 1] = 0;
    setenv("NOTIFY_SOCKET", name, 1);
    ck_assert_int_eq(notify_init(&n, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(f.text, "119 bytes"));
}
END_TEST

/* The watchdog is fed every half of its limit, and only if the limit is meant for this process. */
START_TEST(notify_watchdog)
{
    char name[64];
    struct notify n;
    struct fault f;
    snprintf(name, sizeof name, "@fp8d-watchdog-%d", (int)getpid());
    int fd = manager(name);
    setenv("NOTIFY_SOCKET", name, 1);
    setenv("WATCHDOG_USEC", "4000000", 1);
    set_number("WATCHDOG_PID", getpid());
    ck_assert_int_eq(notify_init(&n, &f), 0);
    ck_assert_ptr_null(getenv("WATCHDOG_USEC"));
    ck_assert(notify_feed(&n, 10 * (uint64_t)SECOND));
    ck_assert_str_eq(heard(fd), "WATCHDOG=1\n");
    ck_assert(!notify_feed(&n, 10 * (uint64_t)SECOND + 2 * (uint64_t)SECOND - 1));
    ck_assert(notify_feed(&n, 12 * (uint64_t)SECOND));
    notify_fini(&n);
    setenv("NOTIFY_SOCKET", name, 1);
    setenv("WATCHDOG_USEC", "4000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    ck_assert_int_eq(notify_init(&n, &f), 0);
    ck_assert(!notify_feed(&n, 100 * (uint64_t)SECOND));
    notify_fini(&n);
    close(fd);
}
END_TEST

/* --- sockets --- */

/* A passed listening stream socket is taken, non-blocking and close-on-exec. */
START_TEST(notify_listener)
{
    struct fault f;
    pass(0, SOCK_STREAM, true);
    ck_assert_int_eq(notify_take_listener(&f), 3);
    ck_assert(fcntl(3, F_GETFD) & FD_CLOEXEC);
    ck_assert(fcntl(3, F_GETFL) & O_NONBLOCK);
    nothing_in_environment();
    ck_assert_int_eq(notify_take_listener(&f), -1);
}
END_TEST

/* Sockets meant for another process, and none at all, are left alone. */
START_TEST(notify_listener_of_others)
{
    struct fault f;
    pass(0, SOCK_STREAM, true);
    setenv("LISTEN_PID", "1", 1);
    ck_assert_int_eq(notify_take_listener(&f), -1);
    ck_assert_int_ge(fcntl(3, F_GETFD), 0);
    nothing_in_environment();
}
END_TEST

/* A datagram socket, one that does not listen, and a second one are refused with the names. */
START_TEST(notify_listener_wrong)
{
    struct fault f;
    pass(0, SOCK_DGRAM, false);
    ck_assert_int_lt(notify_take_listener(&f), -1);
    ck_assert_ptr_nonnull(strstr(f.text, "LISTEN_FDNAMES=fp8d"));
    nothing_in_environment();
    pass(0, SOCK_STREAM, false);
    ck_assert_int_lt(notify_take_listener(&f), -1);
    pass(0, SOCK_STREAM, true);
    pass(1, SOCK_STREAM, true);
    ck_assert_int_lt(notify_take_listener(&f), -1);
    ck_assert_ptr_nonnull(strstr(f.text, "passed 2 sockets"));
    ck_assert_int_lt(fcntl(4, F_GETFD), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("notify");
    TCase *t = tcase_create("messages");
    tcase_add_test(t, notify_path);
    tcase_add_test(t, notify_abstract);
    tcase_add_test(t, notify_nobody);
    tcase_add_test(t, notify_bad_address);
    tcase_add_test(t, notify_watchdog);
    suite_add_tcase(s, t);
    t = tcase_create("sockets");
    tcase_add_test(t, notify_listener);
    tcase_add_test(t, notify_listener_of_others);
    tcase_add_test(t, notify_listener_wrong);
    suite_add_tcase(s, t);
    return run_suite(s);
}
