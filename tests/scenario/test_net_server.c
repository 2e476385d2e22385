/* Servers that start and stop: the socket file, a second server, a passed socket, the drain. */
#include "tests/scenario/net_fixture.h"
#include "tests/unit/run.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* --- helpers --- */

static int bound_socket(const char *path, bool listening)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (listening)
        ck_assert_int_eq(listen(fd, 8), 0);
    return fd;
}

/* Make a server that must not start; its fault. */
static struct fault refused(void)
{
    struct fault f = {0};
    struct server *s;
    ck_assert_int_eq(server_new(&fx.options, &s, &f), 0);
    ck_assert_int_lt(server_listen(s, &fx.handler, &fx.hooks, &f), 0);
    server_free(s);
    return f;
}

/* --- start --- */

/* The socket has the mode asked for, whatever the umask. */
START_TEST(server_socket_mode)
{
    struct stat st;
    umask(0077);
    net_start();
    ck_assert_int_eq(stat(fx.path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0660);
}
END_TEST

/* A socket file that nobody listens on is replaced. */
START_TEST(server_stale_socket)
{
    close(bound_socket(fx.path, true));
    net_start();
    close(client_hello());
}
END_TEST

/* A second server on the path of a live one is refused, and the first goes on. */
START_TEST(server_second_server)
{
    net_start();
    ck_assert_ptr_nonnull(strstr(refused().text, "another daemon holds"));
    close(client_hello());
}
END_TEST

/* A listener that holds no lock, a plain file, a missing directory and a path of 108 bytes are
 * refused with the reason. */
START_TEST(server_bad_paths)
{
    char path[110];
    int fd = bound_socket(fx.path, true);
    ck_assert_ptr_nonnull(strstr(refused().text, "another daemon listens on"));
    close(fd);
    unlink(fx.path);
    close(open(fx.path, O_CREAT | O_WRONLY, 0600));
    ck_assert_ptr_nonnull(strstr(refused().text, "is not a socket"));
    unlink(fx.path);
    fx.options.socket_path = "/nonexistent/dir/s";
    ck_assert_ptr_nonnull(strstr(refused().text, "No such file or directory"));
    memset(path, 'a', sizeof path);
    path[0] = '/';
    path[108] = 0;
    fx.options.socket_path = path;
    ck_assert_ptr_nonnull(strstr(refused().text, "has 108 bytes, needed 1 to 107"));
}
END_TEST

/* A listening socket that was passed is served, and its file is left alone at the end. */
START_TEST(server_passed_socket)
{
    fx.options.listen_fd = bound_socket(fx.path, true);
    fcntl(fx.options.listen_fd, F_SETFL, O_NONBLOCK);
    fx.options.socket_path = NULL;
    net_start();
    fx.fds_before--; /* the server closes it */
    close(client_hello());
    server_stop(fx.server);
    pthread_join(fx.thread, NULL);
    fx.running = false;
    ck_assert_int_eq(fx.result, 0);
    ck_assert_int_eq(access(fx.path, F_OK), 0);
}
END_TEST

/* A server can be stopped and started again in one process, with clients connected. */
START_TEST(server_restart)
{
    for (int i = 0; i < 3; i++) {
        net_start();
        int fd = client_hello();
        fx.fds_before++; /* fd is still open */
        net_stop();
        client_goaway(fd, "the server stops");
        fx.opened = fx.closed = 0;
    }
}
END_TEST

/* --- stop --- */

/* Running work is waited for and answered before the client is sent away. */
START_TEST(server_end_drains)
{
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_STUCK, 2, NULL, 0, NULL, 0);
    net_until(fx.completed == 2);
    kill(getpid(), SIGTERM);
    usleep(50000);
    int refused_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, fx.path, strlen(fx.path) + 1);
    ck_assert_int_ne(connect(refused_fd, (struct sockaddr *)&a, sizeof a), 0);
    close(refused_fd);
    fx.release = true;
    client_reply(fd, 2);
    client_goaway(fd, "the server stops");
    pthread_join(fx.thread, NULL);
    fx.running = false;
    ck_assert_int_eq(fx.result, 0);
}
END_TEST

/* A second signal, or the end of drain_ms, gives up with 75. */
START_TEST(server_end_gives_up)
{
    fx.options.drain_ms = _i ? 60000 : 100;
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_STUCK, 2, NULL, 0, NULL, 0);
    net_until(fx.completed == 2);
    server_stop(fx.server);
    if (_i)
        server_stop(fx.server);
    pthread_join(fx.thread, NULL);
    ck_assert_int_eq(fx.result, 75);
    _exit(0); /* as the daemon does; the engine thread hangs */
}
END_TEST

/* A client that takes nothing does not hold up a stop for long. */
START_TEST(server_end_with_slow_reader)
{
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_BIG, 2, "20000000", 9, NULL, 0);
    net_until(fx.completed == 2);
    usleep(50000);
    fx.fds_before++; /* fd is still open */
    net_stop();
    close(fd);
}
END_TEST

/* An idle server ticks, once a second. */
START_TEST(server_ticks)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    net_start();
    usleep(2300000);
    int ticks = fx.ticks;
    clock_gettime(CLOCK_MONOTONIC, &to);
    ck_assert_int_ge(ticks, 2);
    ck_assert_int_le(ticks, to.tv_sec - from.tv_sec + 1); /* the host may sleep longer */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("net_server");
    TCase *t = tcase_create("net_server");
    tcase_add_checked_fixture(t, net_setup, net_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, server_socket_mode);
    tcase_add_test(t, server_stale_socket);
    tcase_add_test(t, server_second_server);
    tcase_add_test(t, server_bad_paths);
    tcase_add_test(t, server_passed_socket);
    tcase_add_test(t, server_restart);
    tcase_add_test(t, server_end_drains);
    tcase_add_test(t, server_end_with_slow_reader);
    tcase_add_test(t, server_ticks);
    suite_add_tcase(s, t);
    t = tcase_create("give_up"); /* needs a process for each test, and no teardown */
    tcase_add_checked_fixture(t, net_setup, NULL);
    tcase_add_loop_exit_test(t, server_end_gives_up, 0, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
