/* Connections that come and go: deadlines, slow readers, dead peers, limits. */
#include "tests/scenario/net_fixture.h"
#include "tests/unit/run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- helpers --- */

/* A fork that says Hello, forks a child that holds the socket, and waits to be killed. Returns its
 * pid once the grandchild exists; *grandchild gets its pid. */
static pid_t peer_with_child(pid_t *grandchild)
{
    int pipe_fds[2];
    ck_assert_int_eq(pipe(pipe_fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        client_hello();
        pid_t child = fork();
        if (child == 0) {
            for (;;)
                pause();
        }
        if (write(pipe_fds[1], &child, sizeof child) != sizeof child)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(pipe_fds[0], grandchild, sizeof *grandchild), sizeof *grandchild);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return pid;
}

/* --- deadlines --- */

/* Half a frame that does not go on, and a client that says nothing, are sent away; an idle client
 * that is between frames is not. */
START_TEST(life_half_frame_and_no_hello)
{
    fx.options.handshake_ms = 500;
    net_start();
    int idle = client_hello(), silent = client_connect(), half = client_hello();
    unsigned char f[FRAME_HEADER_BYTES];
    client_header(f, FAKE_ECHO, 2, 4, 100, 0);
    client_sendmsg(half, f, 10, NULL, 0);
    client_goaway(half, "the rest of a frame did not come within 500 ms");
    client_goaway(silent, "a Hello did not come within 500 ms");
    client_send(idle, FAKE_PING, 2, NULL, 0, NULL, 0);
    client_reply(idle, 2);
    half = client_hello();
    client_send(half, FAKE_ECHO, 2, "meta", 4, NULL, 100);
    client_goaway(half, "the rest of a frame");
    ck_assert_int_eq(fx.abandoned, 1);
    close(idle);
}
END_TEST

/* --- output --- */

/* A client that does not read is not read any more above high water, and is gone when it takes
 * nothing for output_stall_ms. */
START_TEST(life_slow_reader_stalls)
{
    fx.options.output_high_water = 1 << 20;
    fx.options.output_stall_ms = 500;
    net_start();
    int fd = client_hello();
    for (uint64_t i = 2; i < 12; i++)
        client_send(fd, FAKE_BIG, i, "8000000", 8, NULL, 0);
    net_until(fx.closed == 1);
    ck_assert_int_le(fx.completed, 11);
    close(fd);
}
END_TEST

/* A client that reads slowly, but reads, gets everything. */
START_TEST(life_slow_reader_lives)
{
    fx.options.output_high_water = 1 << 20;
    net_start();
    int fd = client_hello();
    for (uint64_t i = 2; i < 6; i++)
        client_send(fd, FAKE_BIG, i, "8000000", 8, NULL, 0);
    client_send(fd, FAKE_ECHO, 6, NULL, 0, NULL, 0);
    usleep(100000);
    for (uint64_t i = 2; i < 6; i++)
        ck_assert_uint_eq(client_reply(fd, i).payload_len, 8000000);
    client_reply(fd, 6);
    close(fd);
}
END_TEST

/* Above high water, requests stay in the socket. */
START_TEST(life_high_water_pauses)
{
    fx.options.output_high_water = 1 << 20;
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_BIG, 2, "8000000", 8, NULL, 0);
    net_until(fx.completed == 2);
    usleep(50000);
    client_send(fd, FAKE_PING, 3, NULL, 0, NULL, 0);
    usleep(50000);
    ck_assert_int_eq(fx.completed, 2);
    client_reply(fd, 2);
    client_reply(fd, 3);
    close(fd);
}
END_TEST

/* More unread output than output_limit ends the connection at once; one reply may be larger. */
START_TEST(life_output_limit)
{
    fx.options.output_limit = 10 << 20;
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_BIG, 2, "20000000", 9, NULL, 0);
    ck_assert_uint_eq(client_reply(fd, 2).payload_len, 20000000);
    unsigned char two[2 * (FRAME_HEADER_BYTES + 8)];
    for (int i = 0; i < 2; i++) {
        client_header(two + i * 40, FAKE_BIG, 3, 8, 0, 0);
        memcpy(two + i * 40 + FRAME_HEADER_BYTES, "8000000", 8);
    }
    client_sendmsg(fd, two, sizeof two, NULL, 0);
    net_until(fx.closed == 1);
    close(fd);
}
END_TEST

/* --- the end of a client --- */

/* Half-close counts as the end, also behind a request that is being worked on. */
START_TEST(life_half_close)
{
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_STUCK, 2, NULL, 0, NULL, 0);
    net_until(fx.completed == 2);
    shutdown(fd, SHUT_WR);
    net_until(fx.closed == 1);
    close(fd);
}
END_TEST

/* Half-close is heard while reading is paused. */
START_TEST(life_half_close_while_paused)
{
    fx.options.output_high_water = 1 << 20;
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_BIG, 2, "8000000", 8, NULL, 0);
    net_until(fx.completed == 2);
    usleep(20000);
    shutdown(fd, SHUT_WR);
    net_until(fx.closed == 1);
    close(fd);
}
END_TEST

/* The end of the connecting process ends the connection although a forked child holds the socket.
 */
START_TEST(life_peer_killed_child_lives)
{
    net_start();
    pid_t child, peer = peer_with_child(&child);
    ck_assert_int_eq(fx.closed, 0);
    kill(peer, SIGKILL);
    net_until(fx.closed == 1);
    kill(child, SIGKILL);
    waitpid(peer, NULL, 0);
}
END_TEST

/* A client that leaves at any byte of a frame leaves nothing behind. */
START_TEST(life_leave_at_every_byte)
{
    net_start();
    unsigned char f[FRAME_HEADER_BYTES + 4 + 8] = {0};
    int file;
    client_files(&file, 1, 0);
    client_header(f, FAKE_ECHO, 2, 4, 8, 1);
    for (size_t n = 1; n <= sizeof f; n++) {
        int fd = client_hello();
        client_sendmsg(fd, f, n, &file, 1);
        close(fd);
        net_until(fx.closed == (int)n);
    }
    net_until(fx.live == 0);
    ck_assert_int_ge(fx.abandoned, 1);
    client_close_files(&file, 1);
}
END_TEST

/* --- limits --- */

/* One client more than connections_max is told so; a place that becomes free is given again. */
START_TEST(life_connections_max)
{
    fx.options.connections_max = 3;
    net_start();
    int a = client_hello(), b = client_hello(), c = client_hello();
    client_goaway(client_connect(), "all 3 connections");
    close(b);
    net_until(fx.closed == 1);
    b = client_hello();
    close(a);
    close(b);
    close(c);
}
END_TEST

/* A client that the handler refuses reads the reason. */
START_TEST(life_refused_by_handler)
{
    net_start();
    fx.refuse_clients = true;
    client_goaway(client_connect(), "not you");
    fx.refuse_clients = false;
    close(client_hello());
}
END_TEST

/* A thousand clients at once are served, and leave nothing behind. */
START_TEST(life_thousand_connections)
{
    enum { N = 1000 };
    static int fd[N];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    ck_assert_msg(files.rlim_max >= 3 * N + 100, "RLIMIT_NOFILE is too low for this test");
    fx.options.connections_max = 1024;
    net_start();
    for (int i = 0; i < N; i++)
        fd[i] = client_hello();
    for (int i = 0; i < N; i++)
        client_send(fd[i], FAKE_ECHO, 2, &i, sizeof i, NULL, 0);
    for (int i = 0; i < N; i++)
        client_reply(fd[i], 2);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    net_until(fx.closed == N);
}
END_TEST

/* Without a free descriptor a client is accepted all the same, told why, and the listener goes on.
 */
START_TEST(life_no_descriptor_left)
{
    int pair[2];
    ck_assert_int_eq(pipe(pair), 0);
    pid_t pid = fork(); /* clients in a process of their own: the limit is for the server */
    if (pid == 0) {
        char byte;
        if (read(pair[0], &byte, 1) != 1)
            _exit(1);
        client_goaway(client_connect(), "no file descriptor left");
        client_goaway(client_connect(), "no file descriptor left");
        _exit(0);
    }
    net_start();
    int fd = client_hello(), status;
    struct rlimit files, before;
    getrlimit(RLIMIT_NOFILE, &before);
    int next = dup(fd); /* the lowest free number: nothing above it may be opened */
    close(next);
    files = before;
    files.rlim_cur = (rlim_t)next;
    setrlimit(RLIMIT_NOFILE, &files);
    ck_assert_int_eq(write(pair[1], "x", 1), 1);
    waitpid(pid, &status, 0);
    setrlimit(RLIMIT_NOFILE, &before);
    ck_assert_int_eq(status, 0);
    client_send(fd, FAKE_PING, 2, NULL, 0, NULL, 0);
    client_reply(fd, 2);
    close(fd);
    close(client_hello());
    close(pair[0]);
    close(pair[1]);
}
END_TEST

/* --- suite --- */

static Suite *suite(void)
{
    Suite *s = suite_create("net_life");
    TCase *t = tcase_create("life");
    tcase_add_checked_fixture(t, net_setup, net_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, life_half_frame_and_no_hello);
    tcase_add_test(t, life_slow_reader_stalls);
    tcase_add_test(t, life_slow_reader_lives);
    tcase_add_test(t, life_high_water_pauses);
    tcase_add_test(t, life_output_limit);
    tcase_add_test(t, life_half_close);
    tcase_add_test(t, life_half_close_while_paused);
    tcase_add_test(t, life_peer_killed_child_lives);
    tcase_add_test(t, life_leave_at_every_byte);
    tcase_add_test(t, life_connections_max);
    tcase_add_test(t, life_refused_by_handler);
    tcase_add_test(t, life_thousand_connections);
    tcase_add_test(t, life_no_descriptor_left);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
