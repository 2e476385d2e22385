/* The handler that echoes, refuses, waits or stalls as the frame's type says. */
#include "tests/scenario/net_fixture.h"

#include "base/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_request {
    struct exec_task task;
    struct reply reply;
    struct frame_header h;
    uint64_t conn;
    unsigned waits;
    char after_wait;
    unsigned char meta[4096];
    void *payload;
};

static void request_free(struct fake_request *q)
{
    mem_pages_free(q->payload, q->h.payload_len);
    mem_free(q);
    atomic_fetch_sub(&fx.live, 1);
}

static void reply_done(struct reply *r)
{
    request_free((struct fake_request *)((char *)r - offsetof(struct fake_request, reply)));
}

static struct fake_request *request_new(uint64_t conn, const struct frame_header *h,
                                        const unsigned char *meta)
{
    struct fake_request *q = mem_zalloc(sizeof *q);
    ck_assert(q && h->meta_len <= sizeof q->meta);
    q->h = *h;
    q->conn = conn;
    if (meta)
        memcpy(q->meta, meta, h->meta_len);
    q->reply = (struct reply){.conn = conn,
                              .id = h->id,
                              .type = h->type,
                              .flags = FRAME_FLAG_REPLY,
                              .meta = q->meta,
                              .done = reply_done};
    atomic_fetch_add(&fx.live, 1);
    return q;
}

static void send_reply(struct fake_request *q)
{
    const struct exec *x = server_exec(fx.server);
    x->reply(x->self, &q->reply);
}

static void on_engine(struct exec_task *task)
{
    struct fake_request *q = (struct fake_request *)task;
    const struct exec *x = server_exec(fx.server);
    while (q->h.type == FAKE_STUCK && !atomic_load(&fx.release) && !x->cancelled(x->self, q->conn))
        usleep(1000);
    send_reply(q);
}

static int fake_opened(void *self, const struct net_peer *peer, struct fault *f)
{
    (void)self;
    ck_assert(peer->conn && peer->uid == getuid());
    if (fx.refuse_clients)
        return fault_set(f, FP8D_EPERMISSION_DENIED, "not you");
    fx.greeted[peer->conn & 63] = 0;
    atomic_fetch_add(&fx.opened, 1);
    return 0;
}

static enum net_verdict fake_begin(void *self, uint64_t conn, const struct frame_header *h,
                                   const unsigned char *meta, uint64_t received_ns, void **request,
                                   struct fault *f)
{
    (void)self;
    ck_assert(received_ns != 0);
    if (h->type == FAKE_HELLO)
        fx.greeted[conn & 63] = conn;
    else if (fx.options.connections_max <= 64 && fx.greeted[conn & 63] != conn)
        return fault_set(f, FP8D_EPROTOCOL, "the first frame is not Hello"), NET_FATAL;
    if (h->type == FAKE_FATAL)
        return fault_set(f, FP8D_EPROTOCOL, "this type is fatal"), NET_FATAL;
    struct fake_request *q = request_new(conn, h, meta);
    if (h->type == FAKE_REFUSE) {
        q->h.payload_len = 0; /* no memory was taken for it */
        q->reply.meta_len = 4;
        memcpy(q->meta, "busy", 4);
        send_reply(q);
        return NET_DISCARD;
    }
    if (h->type == FAKE_WAIT) {
        q->after_wait = (char)q->meta[0];
        q->waits = (unsigned)atoi((const char *)q->meta + 1);
    }
    *request = q;
    if (h->type == FAKE_WAIT_BEGIN)
        q->waits = 3;
    return h->type == FAKE_WAIT_BEGIN ? NET_WAIT : NET_TAKE;
}

static enum net_verdict fake_payload(void *self, void *request, bool last, void **payload,
                                     struct fault *f)
{
    (void)self;
    struct fake_request *q = request;
    if (q->waits && !last) {
        q->waits--;
        return NET_WAIT;
    }
    if (q->after_wait == 'D') {
        q->h.payload_len = 0;
        send_reply(q);
        return NET_DISCARD;
    }
    if (q->after_wait == 'F') {
        q->h.payload_len = 0;
        request_free(q);
        return fault_set(f, FP8D_EPROTOCOL, "fatal after a wait"), NET_FATAL;
    }
    q->payload = mem_pages(q->h.payload_len);
    ck_assert_ptr_nonnull(q->payload);
    *payload = q->payload;
    return NET_TAKE;
}

static void read_fds(struct fake_request *q, int *fds, unsigned n)
{
    ck_assert_uint_eq(n, q->h.fds);
    for (unsigned i = 0; i < n; i++) {
        if (q->h.type == FAKE_FDS)
            ck_assert_int_eq(pread(fds[i], q->meta + i, 1, 0), 1);
        close(fds[i]);
    }
    if (q->h.type == FAKE_FDS)
        q->reply.meta_len = n;
}

static void big_reply(struct fake_request *q)
{
    q->h.payload_len = strtoull((const char *)q->meta, NULL, 10);
    q->payload = mem_pages(q->h.payload_len);
    memset(q->payload, 'b', q->h.payload_len);
    q->reply.payload = q->payload;
    q->reply.payload_len = q->h.payload_len;
}

static void fake_complete(void *self, void *request, int *fds, unsigned nfds)
{
    (void)self;
    struct fake_request *q = request;
    const struct exec *x = server_exec(fx.server);
    atomic_fetch_add(&fx.completed, 1);
    q->reply.meta_len = q->h.type == FAKE_BIG ? 0 : q->h.meta_len;
    q->reply.payload = q->payload;
    q->reply.payload_len = q->payload ? q->h.payload_len : 0;
    read_fds(q, fds, nfds);
    if (q->h.type == FAKE_TIMERS) {
        q->reply.meta_len = 1;
        q->meta[0] = (unsigned char)server_timers(fx.server);
    }
    if (q->h.type == FAKE_BIG)
        big_reply(q);
    q->task.run = on_engine;
    if (q->h.type == FAKE_ECHO || q->h.type == FAKE_BIG || q->h.type == FAKE_STUCK)
        x->post(x->self, &q->task);
    else
        send_reply(q);
}

static void fake_abandon(void *self, void *request)
{
    (void)self;
    atomic_fetch_add(&fx.abandoned, 1);
    request_free(request);
}

static void fake_replied(void *self, uint64_t conn, uint64_t id)
{
    (void)self;
    ck_assert(conn && id);
}

static void fake_closed(void *self, uint64_t conn)
{
    (void)self;
    const struct exec *x = server_exec(fx.server);
    ck_assert(x->cancelled(x->self, conn));
    atomic_fetch_add(&fx.closed, 1);
}

static struct reply *fake_goaway(void *self, uint64_t conn, const struct fault *f)
{
    (void)self;
    struct frame_header h = {.type = FAKE_GOAWAY};
    struct fake_request *q = request_new(conn, &h, NULL);
    q->reply.flags = 0;
    q->reply.meta_len = (uint32_t)strlen(f->text);
    memcpy(q->meta, f->text, q->reply.meta_len);
    return &q->reply;
}

struct net_handler net_fake_handler(void)
{
    return (struct net_handler){
        .opened = fake_opened,
        .begin = fake_begin,
        .payload = fake_payload,
        .complete = fake_complete,
        .abandon = fake_abandon,
        .replied = fake_replied,
        .closed = fake_closed,
        .goaway = fake_goaway,
    };
}
