/* fake_server.h - a server that says what a test wants it to say.
 *
 * One thread, one socket in a new directory, one connection: a script function gets the accepted
 * descriptor and speaks frames by hand. A script reports what it saw in fields of its own struct,
 * never by ck_assert, which is for the main thread.
 */
#ifndef FP8D_TESTS_UNIT_FAKE_SERVER_H
#define FP8D_TESTS_UNIT_FAKE_SERVER_H

#include "base/status.h" /* before client/fp8d.h, which then leaves its codes to it */
#include "client/fp8d.h"
#include "proto/fp8d.pb-c.h"
#include "proto/frame.h"
#include "proto/requests.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct fake {
    char dir[32];
    char path[64];
    int listener;
    pthread_t thread;
    void (*script)(struct fake *s, int fd);
    void *arg;           /* the script's */
    uint32_t in_flight;  /* told in Hello; 0: 64 */
    unsigned char meta[FRAME_META_DEFAULT]; /* of the last frame received */
    int fds[FRAME_FDS_MAX];                 /* that came with it */
    unsigned nfds;
};

static inline bool fake_read(struct fake *s, int fd, void *buf, size_t len)
{
    unsigned char *p = buf;
    while (len) {
        union {
            char bytes[CMSG_SPACE(FRAME_FDS_MAX * sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {p, len};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        if (n <= 0)
            return false;
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
            s->nfds = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(s->fds, CMSG_DATA(h), s->nfds * sizeof(int));
        }
        p += n;
        len -= (size_t)n;
    }
    return true;
}

/* Header and meta of the next frame; its payload is left on the socket. */
static inline bool fake_recv(struct fake *s, int fd, struct frame_header *h)
{
    unsigned char head[FRAME_HEADER_BYTES];
    struct fault f = {0};
    struct frame_caps caps = {sizeof s->meta, FRAME_PAYLOAD_DEFAULT, FRAME_FDS_MAX};
    s->nfds = 0;
    return fake_read(s, fd, head, sizeof head) && !frame_decode(head, &caps, h, &f) &&
           fake_read(s, fd, s->meta, h->meta_len);
}

static inline bool fake_skip(struct fake *s, int fd, uint64_t len)
{
    static _Thread_local unsigned char waste[65536];
    while (len) {
        size_t n = len < sizeof waste ? (size_t)len : sizeof waste;
        if (!fake_read(s, fd, waste, n))
            return false;
        len -= n;
    }
    return true;
}

static inline bool fake_write(int fd, const void *buf, size_t len)
{
    const unsigned char *p = buf;
    while (len) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static inline bool fake_send_header(int fd, struct frame_header h)
{
    unsigned char head[FRAME_HEADER_BYTES];
    frame_encode(&h, head);
    return fake_write(fd, head, sizeof head);
}

/* A frame with message m and `len` bytes of payload. */
static inline bool fake_send(int fd, unsigned type, uint64_t id, unsigned flags, const void *m,
                             const void *payload, uint64_t len)
{
    size_t need = m ? protobuf_c_message_get_packed_size(m) : 0;
    unsigned char *meta = malloc(need + 1);
    if (m)
        protobuf_c_message_pack(m, meta);
    struct frame_header h = {.type = (uint16_t)type, .flags = (uint16_t)flags, .id = id,
                             .meta_len = (uint32_t)need, .payload_len = len};
    bool ok = fake_send_header(fd, h) && fake_write(fd, meta, need) && fake_write(fd, payload, len);
    free(meta);
    return ok;
}

static inline bool fake_reply(int fd, const struct frame_header *to, const void *m)
{
    return fake_send(fd, to->type, to->id, FRAME_FLAG_REPLY, m, NULL, 0);
}

static inline bool fake_fail(int fd, const struct frame_header *to, unsigned code, const char *text)
{
    Fp8d__V1__ErrorReply m = FP8D__V1__ERROR_REPLY__INIT;
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    head.code = code;
    head.message = (char *)text;
    head.stage = FP8D__V1__STAGE__STAGE_DECODE;
    m.head = &head;
    return fake_reply(fd, to, &m);
}

static inline bool fake_goaway(int fd, unsigned code, const char *text)
{
    Fp8d__V1__GoAway m = FP8D__V1__GO_AWAY__INIT;
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    head.code = code;
    head.message = (char *)text;
    m.head = &head;
    return fake_send(fd, EVENT_GOAWAY, 0, 0, &m, NULL, 0);
}

/* Take the greeting and answer it as a server of this version does. */
static inline bool fake_greet(struct fake *s, int fd)
{
    struct frame_header h;
    Fp8d__V1__HelloReply m = FP8D__V1__HELLO_REPLY__INIT;
    Fp8d__V1__Caps caps = FP8D__V1__CAPS__INIT;
    caps.meta_bytes = FRAME_META_DEFAULT;
    caps.payload_bytes = FRAME_PAYLOAD_DEFAULT;
    caps.descriptors = 4;
    caps.in_flight = s->in_flight ? s->in_flight : 64;
    m.framing_version = FRAME_VERSION;
    m.schema_major = SCHEMA_MAJOR;
    m.schema_minor = SCHEMA_MINOR;
    m.server_name = (char *)"fake";
    m.server_version = (char *)"9.9";
    m.backend = (char *)"none";
    m.device = (char *)"thin air";
    m.instance_id = 77;
    m.caps = &caps;
    return fake_recv(s, fd, &h) && h.type == REQUEST_HELLO && fake_reply(fd, &h, &m);
}

static inline void *fake_run(void *arg)
{
    struct fake *s = arg;
    int fd = accept(s->listener, NULL, NULL);
    if (fd >= 0) {
        s->script(s, fd);
        close(fd);
    }
    return NULL;
}

static inline void fake_listen(struct fake *s, int backlog)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(s->dir, "/tmp/fp8d-fake-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(s->dir));
    snprintf(s->path, sizeof s->path, "%s/s", s->dir);
    strcpy(a.sun_path, s->path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(s->listener, 0);
    ck_assert_int_eq(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(s->listener, backlog), 0);
}

static inline struct fake *fake_start(void (*script)(struct fake *s, int fd), void *arg)
{
    struct fake *s = calloc(1, sizeof *s);
    s->script = script;
    s->arg = arg;
    fake_listen(s, 8);
    ck_assert_int_eq(pthread_create(&s->thread, NULL, fake_run, s), 0);
    return s;
}

static inline void fake_unlisten(struct fake *s)
{
    close(s->listener);
    unlink(s->path);
    rmdir(s->dir);
    free(s);
}

/* After the client closed: the script must end by itself. */
static inline void fake_stop(struct fake *s)
{
    pthread_join(s->thread, NULL);
    fake_unlisten(s);
}

/* --- a connected pair --- */

/* What a script does with the n-th request after the greeting; false ends the connection. */
typedef bool (*fake_serve_cb)(struct fake *s, int fd, unsigned n, const struct frame_header *h);

static inline void fake_script_serve(struct fake *s, int fd)
{
    fake_serve_cb serve = (fake_serve_cb)s->arg;
    struct frame_header h;
    if (!fake_greet(s, fd))
        return;
    for (unsigned n = 0; fake_recv(s, fd, &h); n++)
        if (!serve(s, fd, n, &h))
            return;
}

struct fake_pair {
    struct fake *s;
    struct fp8d *c;
};

static inline struct fake_pair fake_begin(fake_serve_cb serve, const struct fp8d_options *o)
{
    struct fake_pair b = {.s = fake_start(fake_script_serve, (void *)serve)};
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_connect(b.s->path, o, &b.c, &err), 0);
    return b;
}

static inline void fake_end(struct fake_pair b)
{
    fp8d_close(b.c);
    fake_stop(b.s);
}

/* A good reply that says n in queue_us. */
static inline bool fake_answer(int fd, const struct frame_header *h, uint64_t n)
{
    Fp8d__V1__ErrorReply m = FP8D__V1__ERROR_REPLY__INIT;
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    head.queue_us = n;
    m.head = &head;
    return fake_reply(fd, h, &m);
}

static inline uint64_t fake_ping(struct fp8d *c)
{
    uint64_t id;
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_submit_ping(c, NULL, &id, &err), 0);
    return id;
}

static inline uint64_t fake_mark(struct fp8d *c, uint64_t id)
{
    struct fp8d_result *r;
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_wait(c, id, &r, &err), 0);
    uint64_t mark = fp8d_result_reply(r)->queue_us;
    fp8d_result_free(r);
    return mark;
}

#endif
