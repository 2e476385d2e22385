/* Connecting: paths, timeouts, refusals, versions, fork. */
#include "tests/unit/fake_server.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <sys/wait.h>
#include <time.h>

/* --- helpers --- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The client has gone when the next read ends. */
static void until_eof(struct fake *s, int fd)
{
    struct frame_header h;
    while (fake_recv(s, fd, &h))
        if (!fake_skip(s, fd, h.payload_len))
            return;
}

static void script_good(struct fake *s, int fd)
{
    if (fake_greet(s, fd))
        until_eof(s, fd);
}

static void script_mute(struct fake *s, int fd)
{
    until_eof(s, fd);
}

static void script_refuse(struct fake *s, int fd)
{
    struct frame_header h;
    if (fake_recv(s, fd, &h))
        fake_fail(fd, &h, 9, "field schema_major is 1, this server speaks 7.3");
    until_eof(s, fd);
}

static void script_goaway(struct fake *s, int fd)
{
    (void)s;
    fake_goaway(fd, 8, "1024 connections are open, at most 1024 are possible");
}

static void script_other_major(struct fake *s, int fd)
{
    struct frame_header h;
    Fp8d__V1__HelloReply m = FP8D__V1__HELLO_REPLY__INIT;
    m.schema_major = 2;
    m.schema_minor = 5;
    m.min_schema_minor = 4;
    if (fake_recv(s, fd, &h))
        fake_reply(fd, &h, &m);
    until_eof(s, fd);
}

static void script_not_fp8d(struct fake *s, int fd)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    struct frame_header h;
    if (fake_recv(s, fd, &h))
        fake_write(fd, http, sizeof http - 1);
}

/* --- cases --- */

/* What the server said of itself can be read from the handle. */
START_TEST(test_connect_server_info)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fake *s = fake_start(script_good, NULL);
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), 0);
    const struct fp8d_server *info = fp8d_server_info(c);
    ck_assert_str_eq(info->name, "fake");
    ck_assert_str_eq(info->backend, "none");
    ck_assert_uint_eq(info->instance_id, 77);
    ck_assert_uint_eq(info->in_flight, 64);
    fp8d_close(c);
    fake_stop(s);
}
END_TEST

/* Nobody listens: the errno comes through, the sentence names the path, the output is untouched. */
START_TEST(test_connect_nobody)
{
    struct fp8d *c = (struct fp8d *)&c;
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_connect("/nonexistent/fp8d.sock", NULL, &c, &err), -ENOENT);
    ck_assert_ptr_eq(c, &c);
    ck_assert_int_eq(err.code, -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/fp8d.sock"));
    ck_assert_int_eq(fp8d_connect("/nonexistent/fp8d.sock", NULL, &c, NULL), -ENOENT);
}
END_TEST

/* A path of 108 bytes is refused with its length, one of 107 bytes is tried. */
START_TEST(test_connect_long_path)
{
    struct fp8d *c;
    struct fp8d_error err;
    char path[109];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[108] = 0;
    ck_assert_int_eq(fp8d_connect(path, NULL, &c, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "108"));
    path[107] = 0;
    ck_assert_int_eq(fp8d_connect(path, NULL, &c, &err), -ENOENT);
}
END_TEST

/* $FP8D_SOCKET is the default where it is set; one that is too long is refused with its length. */
START_TEST(test_connect_default_socket)
{
    char path[108], large[200];
    struct fp8d_error err;
    setenv("FP8D_SOCKET", "/some/where.sock", 1);
    ck_assert_int_eq(fp8d_default_socket(path, sizeof path, &err), 0);
    ck_assert_str_eq(path, "/some/where.sock");
    memset(large, 'y', sizeof large - 1);
    large[sizeof large - 1] = 0;
    setenv("FP8D_SOCKET", large, 1);
    ck_assert_int_eq(fp8d_default_socket(path, sizeof path, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "199"));
}
END_TEST

/* A server that accepts but never greets costs the connect timeout, not more. */
START_TEST(test_connect_timeout)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fp8d_options o = {.connect_timeout_ms = 200};
    struct fake *s = fake_start(script_mute, NULL);
    double t = seconds();
    ck_assert_int_eq(fp8d_connect(s->path, &o, &c, &err), -ETIMEDOUT);
    ck_assert_double_ge(seconds() - t, 0.2);
    fake_stop(s);
}
END_TEST

/* A full backlog is tried again until the timeout. */
START_TEST(test_connect_backlog)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fp8d_options o = {.connect_timeout_ms = 200};
    struct fake *s = calloc(1, sizeof *s);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    fake_listen(s, 0);
    strcpy(a.sun_path, s->path);
    int first = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(first, (struct sockaddr *)&a, sizeof a), 0);
    double t = seconds();
    ck_assert_int_eq(fp8d_connect(s->path, &o, &c, &err), -ETIMEDOUT);
    ck_assert_double_ge(seconds() - t, 0.2);
    close(first);
    fake_unlisten(s);
}
END_TEST

/* A refusal carries the server's code and sentence, and what this side is. */
START_TEST(test_connect_refused)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fake *s = fake_start(script_refuse, NULL);
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), FP8D_EFAILED_PRECONDITION);
    ck_assert_int_eq(err.stage, FP8D_STAGE_DECODE);
    ck_assert_ptr_nonnull(strstr(err.text, "this server speaks 7.3"));
    ck_assert_ptr_nonnull(strstr(err.text, "schema 1.0"));
    fake_stop(s);
}
END_TEST

/* A server that closes with GOAWAY before any reply: its reason is the error. */
START_TEST(test_connect_goaway)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fake *s = fake_start(script_goaway, NULL);
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "at most 1024"));
    fake_stop(s);
}
END_TEST

/* A server of another major version that does not refuse is refused here, both versions named. */
START_TEST(test_connect_other_major)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fake *s = fake_start(script_other_major, NULL);
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), FP8D_EFAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(err.text, "schema 2.5"));
    ck_assert_ptr_nonnull(strstr(err.text, "schema 1.0"));
    fake_stop(s);
}
END_TEST

/* Something else that listens there is a protocol error which shows what it said. */
START_TEST(test_connect_not_fp8d)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fake *s = fake_start(script_not_fp8d, NULL);
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), FP8D_EPROTOCOL);
    ck_assert_ptr_nonnull(strstr(err.text, "HTTP"));
    fake_stop(s);
}
END_TEST

/* In a forked child all calls but close fail with FORKED and send nothing; the parent goes on. */
START_TEST(test_connect_fork)
{
    struct fp8d *c;
    struct fp8d_error err;
    struct fake *s = fake_start(script_good, NULL);
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), 0);
    pid_t child = fork();
    if (child == 0) {
        uint64_t id;
        bool good =
            fp8d_ping(c, NULL, NULL, &err) == FP8D_EFORKED &&
            fp8d_submit_ping(c, NULL, &id, &err) == FP8D_EFORKED &&
            fp8d_wait(c, 1, NULL, &err) == FP8D_EFORKED &&
            fp8d_load_file(c, "m", "/dev/null", NULL, NULL, NULL, NULL, &err) == FP8D_EFORKED &&
            fp8d_save_file(c, "m", "/none/x", NULL, NULL, NULL, NULL, &err) == FP8D_EFORKED;
        fp8d_close(c);
        _exit(good ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    uint64_t id;
    ck_assert_int_eq(fp8d_submit_ping(c, NULL, &id, &err), 0);
    fp8d_close(c);
    fake_stop(s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_connect");
    TCase *t = tcase_create("connect");
    tcase_add_test(t, test_connect_server_info);
    tcase_add_test(t, test_connect_nobody);
    tcase_add_test(t, test_connect_long_path);
    tcase_add_test(t, test_connect_default_socket);
    tcase_add_test(t, test_connect_timeout);
    tcase_add_test(t, test_connect_backlog);
    tcase_add_test(t, test_connect_refused);
    tcase_add_test(t, test_connect_goaway);
    tcase_add_test(t, test_connect_other_major);
    tcase_add_test(t, test_connect_not_fp8d);
    tcase_add_test(t, test_connect_fork);
    suite_add_tcase(s, t);
    return run_suite(s);
}
