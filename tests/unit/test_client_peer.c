/* The other end: what a server may do wrong, and what it may do that is right but unusual. */
#include "tests/unit/fake_server.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <fcntl.h>

#define BIG ((size_t)24 << 20)

/* --- cases: errors --- */

static bool serve_codes(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    (void)s;
    return fake_fail(fd, h, n + 1, n == 4 ? "model is \"a\", which does not exist" : "");
}

/* Every google.rpc code arrives as its code, with sentence and stage; unknown ones as UNKNOWN. */
START_TEST(test_error_codes)
{
    struct fake_pair b = fake_begin(serve_codes, NULL);
    struct fp8d_error err;
    for (int n = 0; n < 18; n++) {
        int want = n < 16 ? -1001 - n : FP8D_EUNKNOWN;
        ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), want);
        ck_assert_int_eq(err.code, want);
        ck_assert_int_eq(err.stage, FP8D_STAGE_DECODE);
        ck_assert_str_eq(err.text,
                         n == 4 ? "model is \"a\", which does not exist" : fp8d_code_text(want));
    }
    fake_end(b);
}
END_TEST

static bool serve_goaway(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    (void)s, (void)n, (void)h;
    fake_goaway(fd, 14, "fp8d is stopping");
    return false;
}

/* The server says GOAWAY and closes while a large request is sent: the broken pipe is reported as
 * the reason given, then and ever after. */
START_TEST(test_goaway_then_epipe)
{
    struct fake_pair b = fake_begin(serve_goaway, NULL);
    struct fp8d_error err;
    uint64_t ping = fake_ping(b.c);
    char *data = calloc(1, BIG);
    struct fp8d_tensor t = {
        .dtype = FP8D_F32, .rank = 1, .dims = {BIG / 4}, .data = data, .size = BIG};
    ck_assert_int_eq(fp8d_put_tensor(b.c, 1, &t, NULL, NULL, &err), FP8D_EUNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "fp8d is stopping"));
    ck_assert_int_eq(fp8d_wait(b.c, ping, NULL, &err), FP8D_EUNAVAILABLE);
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), FP8D_EUNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "fp8d is stopping"));
    free(data);
    fake_end(b);
}
END_TEST

static bool serve_close_amid(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    struct frame_header reply = {
        .type = h->type, .flags = FRAME_FLAG_REPLY, .id = h->id, .meta_len = 100};
    (void)s;
    if (n == 0)
        return fake_answer(fd, h, 42);
    fake_send_header(fd, reply);
    fake_write(fd, "half", 4);
    return false;
}

/* A server that dies in the middle of a reply: that request fails, results already in stay good. */
START_TEST(test_close_amid_reply)
{
    struct fake_pair b = fake_begin(serve_close_amid, NULL);
    struct fp8d_error err;
    uint64_t one = fake_ping(b.c);
    uint64_t two = fake_ping(b.c);
    ck_assert_int_eq(fp8d_wait(b.c, two, NULL, &err), FP8D_ECLOSED);
    ck_assert_ptr_nonnull(strstr(err.text, "in the middle of a reply"));
    ck_assert_uint_eq(fake_mark(b.c, one), 42);
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), FP8D_ECLOSED);
    fake_end(b);
}
END_TEST

/* What the n-th connection's server replies to a ping; each ends the connection as a violation. */
static const struct bad {
    const char *what;
    uint64_t id_plus;
    uint16_t type_plus, flags, fds;
    uint32_t meta;
    uint64_t payload;
} bad_frames[] = {
    {"reply to a request never sent", 1000, 0, FRAME_FLAG_REPLY, 0, 0, 0},
    {"reply of another type", 0, 1, FRAME_FLAG_REPLY, 0, 0, 0},
    {"request from the server", 0, 0, 0, 0, 0, 0},
    {"unknown flag", 0, 0, FRAME_FLAG_REPLY | 4, 0, 0, 0},
    {"more with payload", 0, 0, FRAME_FLAG_REPLY | FRAME_FLAG_MORE, 0, 0, 1},
    {"meta above any cap", 0, 0, FRAME_FLAG_REPLY, 0, FRAME_META_HARD + 1, 0},
    {"payload above the cap", 0, 0, FRAME_FLAG_REPLY, 0, 0, FRAME_PAYLOAD_DEFAULT + 1},
    {"payload of 2^63", 0, 0, FRAME_FLAG_REPLY, 0, 0, (uint64_t)1 << 63},
    {"descriptors announced", 0, 0, FRAME_FLAG_REPLY, 1, 0, 0},
};

static void script_bad(struct fake *s, int fd)
{
    const struct bad *bad = s->arg;
    struct frame_header h;
    if (!fake_greet(s, fd) || !fake_recv(s, fd, &h))
        return;
    struct frame_header reply = {
        .type = (uint16_t)(h.type + bad->type_plus),
        .flags = bad->flags,
        .fds = bad->fds,
        .id = h.id + bad->id_plus,
        .meta_len = bad->meta,
        .payload_len = bad->payload,
    };
    fake_send_header(fd, reply);
    fake_recv(s, fd, &h);
}

/* Whatever frame the server makes up, the client says PROTOCOL and hangs up; nothing large is
 * allocated. */
START_TEST(test_bad_frames)
{
    struct fake *s = fake_start(script_bad, (void *)&bad_frames[_i]);
    struct fp8d_error err;
    struct fp8d *c;
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), 0);
    int rc = fp8d_ping(c, NULL, NULL, &err);
    ck_assert_msg(rc == FP8D_EPROTOCOL, "%s: %s", bad_frames[_i].what, err.text);
    ck_assert_int_eq(fp8d_ping(c, NULL, NULL, &err), FP8D_EPROTOCOL);
    fake_end((struct fake_pair){s, c});
}
END_TEST

static bool serve_bad_meta(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    struct frame_header reply = {
        .type = h->type, .flags = FRAME_FLAG_REPLY, .id = h->id, .meta_len = 3, .payload_len = 5};
    (void)s;
    if (n == 0)
        return fake_send_header(fd, reply) && fake_write(fd,
                                                         "\xff\xff\xff"
                                                         "12345",
                                                         8);
    if (n == 1)
        return fake_send(fd, h->type, h->id, FRAME_FLAG_REPLY, NULL, "12345", 5);
    return fake_answer(fd, h, n);
}

/* A reply that does not parse, or has bytes nobody asked for, fails alone; the connection lives. */
START_TEST(test_bad_meta)
{
    struct fake_pair b = fake_begin(serve_bad_meta, NULL);
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), FP8D_EPROTOCOL);
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), FP8D_EPROTOCOL);
    ck_assert_ptr_nonnull(strstr(err.text, "5 bytes of payload"));
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 2);
    fake_end(b);
}
END_TEST

/* --- cases: unusual but right --- */

static bool serve_events(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    struct frame_header event = {.type = 0x9999, .meta_len = 4, .payload_len = 5};
    (void)s;
    return fake_send_header(fd, event) && fake_write(fd, "metabytes", 9) && fake_answer(fd, h, n);
}

/* Events of unknown type are read over. */
START_TEST(test_unknown_event)
{
    struct fake_pair b = fake_begin(serve_events, NULL);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 0);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 1);
    fake_end(b);
}
END_TEST

static bool serve_load(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    Fp8d__V1__LoadCommitReply m = FP8D__V1__LOAD_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadProgress p = FP8D__V1__LOAD_PROGRESS__INIT;
    Fp8d__V1__LoadReport report = FP8D__V1__LOAD_REPORT__INIT;
    for (unsigned i = 0; i < s->nfds; i++)
        close(s->fds[i]);
    if (n == 1 && (h->type != REQUEST_LOAD_ATTACH || s->nfds != 1))
        return false;
    if (h->type != REQUEST_LOAD_COMMIT)
        return fake_answer(fd, h, n);
    m.progress = &p;
    p.bytes_total = 100;
    p.stage = (char *)"read";
    for (p.bytes_done = 0; p.bytes_done < 100; p.bytes_done += 25)
        if (!fake_send(fd, h->type, h->id, FRAME_FLAG_REPLY | FRAME_FLAG_MORE, &m, NULL, 0))
            return false;
    m.progress = NULL;
    m.report = &report;
    report.layers = 6;
    return fake_reply(fd, h, &m);
}

static void count_progress(void *arg, const struct fp8d_progress *p)
{
    unsigned *n = arg;
    ck_assert_uint_eq(p->bytes_done, 25 * *n);
    ck_assert_uint_eq(p->bytes_total, 100);
    ck_assert_str_eq(p->stage, "read");
    ++*n;
}

/* A load passes the open file, tells progress frame by frame, and ends with the report. */
START_TEST(test_load_progress)
{
    struct fake_pair b = fake_begin(serve_load, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    unsigned seen = 0;
    char file[] = "/tmp/fp8d-load-XXXXXX";
    close(mkstemp(file));
    ck_assert_int_eq(fp8d_load_file(b.c, "m", file, NULL, count_progress, &seen, &r, &err), 0);
    ck_assert_uint_eq(seen, 4);
    ck_assert_uint_eq(fp8d_result_load(r)->layers, 6);
    fp8d_result_free(r);
    unlink(file);
    ck_assert_int_eq(fp8d_load_file(b.c, "m", file, NULL, NULL, NULL, &r, &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, file));
    fake_end(b);
}
END_TEST

static bool serve_parts(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    Fp8d__V1__ListModelsReply m = FP8D__V1__LIST_MODELS_REPLY__INIT;
    Fp8d__V1__ModelInfo info = FP8D__V1__MODEL_INFO__INIT, *list[100];
    unsigned char meta[4096];
    struct frame_header part = {
        .type = h->type, .id = h->id, .meta_len = 37, .flags = FRAME_FLAG_REPLY | FRAME_FLAG_MORE};
    (void)s, (void)n;
    info.name = (char *)"a-model";
    for (unsigned i = 0; i < 100; i++)
        list[i] = &info;
    m.models = list;
    m.n_models = 100;
    size_t len = protobuf_c_message_pack(&m.base, meta), at = 0;
    for (; len - at > 37; at += 37)
        if (!fake_send_header(fd, part) || !fake_write(fd, meta + at, 37))
            return false;
    part.flags = FRAME_FLAG_REPLY;
    part.meta_len = (uint32_t)(len - at);
    return fake_send_header(fd, part) && fake_write(fd, meta + at, len - at);
}

/* A description cut into several frames (flag MORE) is put together before it is read. */
START_TEST(test_reply_in_parts)
{
    struct fake_pair b = fake_begin(serve_parts, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    ck_assert_int_eq(fp8d_list_models(b.c, NULL, &r, &err), 0);
    ck_assert_uint_eq(fp8d_result_models(r)->count, 100);
    ck_assert_str_eq(fp8d_result_models(r)->models[99].name, "a-model");
    ck_assert_ptr_null(fp8d_result_status(r));
    fp8d_result_free(r);
    fake_end(b);
}
END_TEST

static bool serve_messages(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    Fp8d__V1__ListModelsReply m = FP8D__V1__LIST_MODELS_REPLY__INIT;
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    Fp8d__V1__ModelInfo info = FP8D__V1__MODEL_INFO__INIT, *list[1] = {&info};
    unsigned more = FRAME_FLAG_REPLY | FRAME_FLAG_MORE;
    (void)s;
    info.name = (char *)"b-model";
    head.queue_us = 5;
    m.head = &head;
    m.models = list;
    m.n_models = 1;
    for (unsigned i = 0; i < 2; i++)
        if (!fake_send(fd, h->type, h->id, more, &m, NULL, 0))
            return false;
    return n == 0 ? fake_reply(fd, h, &m) : fake_fail(fd, h, 8, "memory ended amid the list");
}

/* Frames that are a message each join as well; a failure after some of them is the outcome. */
START_TEST(test_reply_in_messages)
{
    struct fake_pair b = fake_begin(serve_messages, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    ck_assert_int_eq(fp8d_list_models(b.c, NULL, &r, &err), 0);
    ck_assert_uint_eq(fp8d_result_models(r)->count, 3);
    ck_assert_uint_eq(fp8d_result_reply(r)->queue_us, 5);
    fp8d_result_free(r);
    ck_assert_int_eq(fp8d_list_models(b.c, NULL, &r, &err), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_str_eq(err.text, "memory ended amid the list");
    fake_end(b);
}
END_TEST

static unsigned open_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static bool serve_descriptor(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    unsigned char head[FRAME_HEADER_BYTES];
    struct frame_header reply = {.type = h->type, .flags = FRAME_FLAG_REPLY, .id = h->id};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {head, sizeof head};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    (void)s, (void)n;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    frame_encode(&reply, head);
    return sendmsg(fd, &m, 0) == (ssize_t)sizeof head;
}

/* Descriptors a server pushes are closed at once. */
START_TEST(test_descriptors_closed)
{
    struct fake_pair b = fake_begin(serve_descriptor, NULL);
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), 0);
    unsigned before = open_fds();
    for (unsigned i = 0; i < 20; i++)
        ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), 0);
    ck_assert_uint_eq(open_fds(), before);
    fake_end(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_peer");
    TCase *t = tcase_create("peer");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_error_codes);
    tcase_add_test(t, test_goaway_then_epipe);
    tcase_add_test(t, test_close_amid_reply);
    tcase_add_loop_test(t, test_bad_frames, 0, sizeof bad_frames / sizeof bad_frames[0]);
    tcase_add_test(t, test_bad_meta);
    tcase_add_test(t, test_unknown_event);
    tcase_add_test(t, test_load_progress);
    tcase_add_test(t, test_reply_in_parts);
    tcase_add_test(t, test_reply_in_messages);
    tcase_add_test(t, test_descriptors_closed);
    suite_add_tcase(s, t);
    return run_suite(s);
}
