/* Frames, descriptors, caps and verdicts on a real socket, with the fake handler of net_fixture. */
#include "tests/scenario/net_fixture.h"
#include "tests/unit/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- frames --- */

/* A frame that comes one byte at a time, descriptors with its first byte, is one frame. */
START_TEST(net_byte_by_byte)
{
    net_start();
    int fd = client_hello(), files[2];
    unsigned char f[FRAME_HEADER_BYTES + 5 + 3];
    client_files(files, 2, 0);
    client_header(f, FAKE_FDS, 7, 5, 3, 2);
    memcpy(f + FRAME_HEADER_BYTES, "metaxabc", 8);
    for (size_t i = 0; i < sizeof f; i++)
        ck_assert_int_eq(client_sendmsg(fd, f + i, 1, files, i ? 0 : 2), 1);
    struct frame_in in;
    ck_assert(client_recv(fd, &in));
    ck_assert_uint_eq(in.h.meta_len, 2);
    ck_assert_mem_eq(in.meta, "ab", 2);
    ck_assert_uint_eq(in.h.payload_len, 3);
    ck_assert_mem_eq(in.payload, "abc", 3);
    free(in.payload);
    client_close_files(files, 2);
    close(fd);
}
END_TEST

/* A payload larger than any socket buffer comes back unchanged, from the engine thread. */
START_TEST(net_big_payload)
{
    net_start();
    int fd = client_hello();
    size_t n = 5 << 20;
    unsigned char *p = malloc(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 2654435761u >> 13);
    client_send(fd, FAKE_ECHO, 30, "meta", 4, p, n);
    struct frame_in in;
    ck_assert(client_recv(fd, &in));
    ck_assert_uint_eq(in.h.payload_len, n);
    ck_assert(memcmp(in.payload, p, n) == 0);
    free(in.payload);
    free(p);
    close(fd);
}
END_TEST

/* A thousand pipelined frames are answered in order. */
START_TEST(net_pipelined)
{
    net_start();
    int fd = client_hello();
    for (uint64_t i = 1; i <= 1000; i++)
        client_send(fd, FAKE_ECHO, i, &i, sizeof i, NULL, 0);
    for (uint64_t i = 1; i <= 1000; i++)
        client_reply(fd, i);
    close(fd);
}
END_TEST

/* --- framing errors --- */

static void bad_header(size_t at, unsigned char value, const char *text)
{
    int fd = client_hello();
    unsigned char f[FRAME_HEADER_BYTES];
    client_header(f, FAKE_PING, 2, 0, 0, 0);
    f[at] = value;
    client_sendmsg(fd, f, sizeof f, NULL, 0);
    client_goaway(fd, text);
}

/* Wrong magic, version and flags end the connection with the reason. */
START_TEST(net_bad_headers)
{
    net_start();
    bad_header(0, 'G', "magic");
    bad_header(4, 2, "version");
    bad_header(20, 4, "flags");
}
END_TEST

/* A meta of exactly the cap is taken; one byte more ends the connection. */
START_TEST(net_meta_cap)
{
    net_start();
    int fd = client_hello();
    unsigned char meta[4096] = {0}, f[FRAME_HEADER_BYTES];
    client_send(fd, FAKE_ECHO_LOOP, 2, meta, sizeof meta, NULL, 0);
    ck_assert_uint_eq(client_reply(fd, 2).meta_len, 4096);
    client_header(f, FAKE_ECHO_LOOP, 3, 4097, 0, 0);
    client_sendmsg(fd, f, sizeof f, NULL, 0);
    client_goaway(fd, "meta length is 4097, the cap is 4096");
}
END_TEST

/* A payload over the cap, up to 2^64-1, ends the connection before anything is allocated. */
START_TEST(net_payload_cap)
{
    net_start();
    uint64_t lengths[] = {(128 << 20) + 1, (uint64_t)1 << 63, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        int fd = client_hello();
        unsigned char f[FRAME_HEADER_BYTES];
        client_header(f, FAKE_ECHO, 3, 0, lengths[i], 0);
        client_sendmsg(fd, f, sizeof f, NULL, 0);
        client_goaway(fd, "payload length");
    }
}
END_TEST

/* The handler's own fatal verdict reaches the client as a sentence. */
START_TEST(net_fatal_verdict)
{
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_FATAL, 2, NULL, 0, NULL, 0);
    client_goaway(fd, "this type is fatal");
    fd = client_connect();
    client_send(fd, FAKE_PING, 2, NULL, 0, NULL, 0);
    client_goaway(fd, "not Hello");
}
END_TEST

/* --- verdicts --- */

/* A refused request's payload is read away, its descriptors are closed, and the next is served. */
START_TEST(net_discard)
{
    net_start();
    int fd = client_hello(), files[2];
    size_t n = 3 << 20;
    unsigned char *p = calloc(1, n), f[FRAME_HEADER_BYTES];
    client_files(files, 2, 0);
    client_header(f, FAKE_REFUSE, 2, 0, n, 2);
    client_sendmsg(fd, f, sizeof f, files, 2);
    client_sendmsg(fd, p, n, NULL, 0);
    ck_assert_uint_eq(client_reply(fd, 2).meta_len, 4);
    client_send(fd, FAKE_ECHO, 3, "ok", 2, p, 100);
    ck_assert_uint_eq(client_reply(fd, 3).payload_len, 100);
    client_close_files(files, 2);
    free(p);
    close(fd);
}
END_TEST

static void wait_then(const char *meta, uint64_t payload_back)
{
    int fd = client_hello(), file;
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(&file, 1, 0);
    client_send(fd, FAKE_WAIT, 2, meta, (uint32_t)strlen(meta) + 1, "0123456789", 10);
    client_header(f, FAKE_FDS, 3, 0, 0, 1);
    client_sendmsg(fd, f, sizeof f, &file, 1);
    ck_assert_uint_eq(client_reply(fd, 2).payload_len, payload_back);
    ck_assert_uint_eq(client_reply(fd, 3).meta_len, 1);
    client_close_files(&file, 1);
    close(fd);
}

/* A request that waits for memory is taken, or refused, later; frames behind it, descriptors and
 * all, keep their turn. */
START_TEST(net_wait)
{
    net_start();
    wait_then("T3", 10);
    wait_then("D3", 0);
    wait_then("T1000000", 10); /* taken when memory_wait_ms is over */
    int fd = client_hello();
    client_send(fd, FAKE_WAIT, 2, "F2", 3, "0123456789", 10);
    client_goaway(fd, "fatal after a wait");
}
END_TEST

/* begin itself may wait, also for a request without payload. */
START_TEST(net_wait_in_begin)
{
    net_start();
    int fd = client_hello();
    client_send(fd, FAKE_WAIT_BEGIN, 2, NULL, 0, NULL, 0);
    client_reply(fd, 2);
    client_send(fd, FAKE_WAIT_BEGIN, 3, NULL, 0, "abc", 3);
    ck_assert_uint_eq(client_reply(fd, 3).payload_len, 3);
    close(fd);
}
END_TEST

/* While something waits there is a second timer, and none but the tick before and after. */
START_TEST(net_one_timer)
{
    net_start();
    int fd = client_hello(), other = client_hello();
    struct frame_in in;
    client_send(fd, FAKE_TIMERS, 2, NULL, 0, NULL, 0);
    ck_assert(client_recv(fd, &in));
    ck_assert_uint_eq(in.meta[0], 1);
    free(in.payload);
    client_send(other, FAKE_WAIT, 2, "T1000000", 9, "abc", 3);
    do {
        client_send(fd, FAKE_TIMERS, 3, NULL, 0, NULL, 0);
        ck_assert(client_recv(fd, &in));
        free(in.payload);
    } while (in.meta[0] != 2);
    client_reply(other, 2);
    client_send(fd, FAKE_TIMERS, 4, NULL, 0, NULL, 0);
    ck_assert(client_recv(fd, &in));
    ck_assert_uint_eq(in.meta[0], 1);
    free(in.payload);
    close(fd);
    close(other);
}
END_TEST

/* A client that leaves while its request waits leaves nothing behind. */
START_TEST(net_leave_while_waiting)
{
    net_start();
    int fd = client_hello(), file;
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(&file, 1, 0);
    client_send(fd, FAKE_WAIT, 2, "T1000000", 9, "abc", 3);
    client_header(f, FAKE_FDS, 3, 0, 0, 1);
    client_sendmsg(fd, f, sizeof f, &file, 1);
    usleep(30000);
    close(fd);
    net_until(fx.closed == 1);
    ck_assert_int_eq(fx.abandoned, 1);
    client_close_files(&file, 1);
}
END_TEST

/* --- a host with many cores --- */

static void setup_many_cores(void)
{
    net_setup();
    fx.options.cores = 64;
}

/* Threads that look for work before they sleep find what comes at any distance, also while tasks
 * are said to be under way. */
START_TEST(net_work_is_looked_for)
{
    static const unsigned pause_us[] = {0, 20, 70, 500, 4000};
    net_start();
    _Atomic unsigned *under_way = server_exec(fx.server)->under_way;
    int fd = client_hello();
    atomic_fetch_add(under_way, (unsigned)_i);
    for (uint64_t i = 1; i <= 200; i++) {
        client_send(fd, i % 2 ? FAKE_ECHO : FAKE_ECHO_LOOP, i, &i, sizeof i, NULL, 0);
        client_reply(fd, i);
        usleep(pause_us[i % 5]);
    }
    atomic_fetch_sub(under_way, (unsigned)_i);
    close(fd);
}
END_TEST

/* --- suite --- */

static Suite *suite(void)
{
    Suite *s = suite_create("net");
    TCase *t = tcase_create("frames");
    tcase_add_checked_fixture(t, net_setup, net_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, net_byte_by_byte);
    tcase_add_test(t, net_big_payload);
    tcase_add_test(t, net_pipelined);
    tcase_add_test(t, net_bad_headers);
    tcase_add_test(t, net_meta_cap);
    tcase_add_test(t, net_payload_cap);
    tcase_add_test(t, net_fatal_verdict);
    tcase_add_test(t, net_discard);
    tcase_add_test(t, net_wait);
    tcase_add_test(t, net_wait_in_begin);
    tcase_add_test(t, net_one_timer);
    tcase_add_test(t, net_leave_while_waiting);
    suite_add_tcase(s, t);
    t = tcase_create("cores");
    tcase_add_checked_fixture(t, setup_many_cores, net_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, net_byte_by_byte);
    tcase_add_test(t, net_big_payload);
    tcase_add_test(t, net_pipelined);
    tcase_add_test(t, net_wait);
    tcase_add_loop_test(t, net_work_is_looked_for, 0, 2);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
