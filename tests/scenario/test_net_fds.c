/* Descriptors on a real socket: each frame gets its own, and every wrong count ends the connection.
 */
#include "tests/scenario/net_fixture.h"
#include "tests/unit/run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two frames sent one behind the other, each with its descriptors, get their own. */
START_TEST(net_fds_of_two_frames)
{
    net_start();
    int fd = client_hello(), files[5];
    unsigned char f[FRAME_HEADER_BYTES + 1000];
    client_files(files, 5, 0);
    memset(f, 'm', sizeof f);
    for (int round = 0; round < 50; round++) {
        client_header(f, FAKE_FDS, 10, 1000, 0, 2);
        client_sendmsg(fd, f, sizeof f, files, 2);
        client_header(f, FAKE_FDS, 11, 0, 0, 3);
        client_sendmsg(fd, f, FRAME_HEADER_BYTES, files + 2, 3);
        struct frame_in in;
        ck_assert(client_recv(fd, &in));
        ck_assert_uint_eq(in.h.id, 10);
        ck_assert_uint_eq(in.h.meta_len, 2);
        ck_assert_mem_eq(in.meta, "ab", 2);
        free(in.payload);
        ck_assert(client_recv(fd, &in));
        ck_assert_uint_eq(in.h.meta_len, 3);
        ck_assert_mem_eq(in.meta, "cde", 3);
        free(in.payload);
    }
    client_close_files(files, 5);
    close(fd);
}
END_TEST

/* The end of one frame and the beginning of the next in one write: descriptors go to the second. */
START_TEST(net_fds_with_tail_of_frame_before)
{
    net_start();
    int fd = client_hello(), files[1];
    unsigned char f[2 * FRAME_HEADER_BYTES + 64];
    client_files(files, 1, 4);
    client_header(f, FAKE_ECHO_LOOP, 20, 0, 64, 0);
    memset(f + FRAME_HEADER_BYTES, 'p', 64);
    client_header(f + FRAME_HEADER_BYTES + 64, FAKE_FDS, 21, 0, 0, 1);
    client_sendmsg(fd, f, FRAME_HEADER_BYTES + 64, NULL, 0);
    client_sendmsg(fd, f + FRAME_HEADER_BYTES + 64, FRAME_HEADER_BYTES, files, 1);
    ck_assert_uint_eq(client_reply(fd, 20).payload_len, 64);
    ck_assert_uint_eq(client_reply(fd, 21).meta_len, 1);
    client_close_files(files, 1);
    close(fd);
}
END_TEST

/* Fewer descriptors than the header says end the connection. */
START_TEST(net_fds_too_few)
{
    net_start();
    int fd = client_hello(), files[1];
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(files, 1, 0);
    client_header(f, FAKE_FDS, 2, 0, 0, 2);
    client_sendmsg(fd, f, sizeof f, files, 1);
    client_goaway(fd, "says 2 descriptors, 1 came");
    client_close_files(files, 1);
}
END_TEST

/* More descriptors than the header says end the connection. */
START_TEST(net_fds_left_over)
{
    net_start();
    int fd = client_hello(), files[3];
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(files, 3, 0);
    client_header(f, FAKE_FDS, 2, 0, 0, 2);
    client_sendmsg(fd, f, sizeof f, files, 3);
    client_reply(fd, 2);
    client_goaway(fd, "1 descriptors are left over");
    client_close_files(files, 3);
}
END_TEST

/* Descriptors that come with a payload belong to no header: the connection ends. */
START_TEST(net_fds_with_payload)
{
    net_start();
    int fd = client_hello(), files[1];
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(files, 1, 0);
    client_header(f, FAKE_ECHO, 2, 0, 100, 0);
    client_sendmsg(fd, f, sizeof f, NULL, 0);
    client_sendmsg(fd, "x", 1, files, 1);
    client_goaway(fd, "left over");
    client_close_files(files, 1);
}
END_TEST

/* The largest count, 64, arrives; a header that says 65 ends the connection. */
START_TEST(net_fds_at_cap)
{
    net_start();
    int fd = client_hello(), files[65];
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(files, 65, 0);
    client_header(f, FAKE_FDS, 2, 0, 0, 64);
    client_sendmsg(fd, f, sizeof f, files, 64);
    ck_assert_uint_eq(client_reply(fd, 2).meta_len, 64);
    client_header(f, FAKE_FDS, 3, 0, 0, 65);
    client_sendmsg(fd, f, sizeof f, files, 64);
    client_goaway(fd, "descriptor count is 65, the cap is 64");
    client_close_files(files, 65);
}
END_TEST

/* More descriptors in one message than a frame can have (MSG_CTRUNC) end the connection, and none
 * stays open. */
START_TEST(net_fds_truncated)
{
    net_start();
    int fd = client_hello(), files[200];
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(files, 200, 0);
    client_header(f, FAKE_FDS, 2, 0, 0, 64);
    client_sendmsg(fd, f, sizeof f, files, 200);
    client_goaway(fd, "more descriptors came at once");
    client_close_files(files, 200);
}
END_TEST

/* Sixty-four descriptors with every byte of a header fill the FIFO: the connection ends. */
START_TEST(net_fds_flood)
{
    net_start();
    int fd = client_hello(), files[64];
    unsigned char f[FRAME_HEADER_BYTES];
    client_files(files, 64, 0);
    client_header(f, FAKE_FDS, 2, 0, 0, 64);
    for (int i = 0; i < 4; i++)
        client_sendmsg(fd, f + i, 1, files, 64);
    client_goaway(fd, "no header has asked for");
    client_close_files(files, 64);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("net_fds");
    TCase *t = tcase_create("net_fds");
    tcase_add_checked_fixture(t, net_setup, net_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, net_fds_of_two_frames);
    tcase_add_test(t, net_fds_with_tail_of_frame_before);
    tcase_add_test(t, net_fds_too_few);
    tcase_add_test(t, net_fds_left_over);
    tcase_add_test(t, net_fds_with_payload);
    tcase_add_test(t, net_fds_at_cap);
    tcase_add_test(t, net_fds_truncated);
    tcase_add_test(t, net_fds_flood);
    suite_add_tcase(s, t);
    return run_suite(s);
}
