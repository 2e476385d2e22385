#include "daemon/net/conn.h"

#include "base/mem.h"
#include "daemon/log.h"
#include "daemon/net/peer.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What one connection may move in one go before the others have their turn. */
#define READ_BUDGET ((size_t)2 << 20)
#define WRITE_BUDGET ((size_t)2 << 20)

static void on_poll(uv_poll_t *poll, int status, int events);

static const struct net_options *options(const struct conn *c)
{
    return &c->hub->options;
}

static bool reads(const struct conn *c)
{
    return !c->ended && !c->leaving && c->intake.state != INTAKE_WAIT &&
           c->outbox.queued <= options(c)->output_high_water;
}

/* Tell the loop what this connection waits for. The peer's end is always heard. */
static void settle(struct conn *c)
{
    if (c->ended)
        return;
    int want = UV_DISCONNECT | (reads(c) ? UV_READABLE : 0) | (c->outbox.head ? UV_WRITABLE : 0);
    if (want == c->events)
        return;
    c->events = want;
    if (uv_poll_start(&c->poll, want, on_poll))
        conn_end(c, "it cannot be polled");
}

/* --- end --- */

static void on_closed(uv_handle_t *handle)
{
    struct conn *c = handle->data;
    struct hub *hub = c->hub;
    if (--c->handles)
        return;
    intake_fini(&c->intake);
    outbox_fini(&c->outbox);
    close(c->fd);
    if (c->pidfd >= 0)
        close(c->pidfd);
    hub->handler->closed(hub->handler->self, c->number);
    mem_free(c);
    if (--hub->closing == 0 && hub->roster.live == 0)
        hub->emptied(hub);
}

void conn_end(struct conn *c, const char *why)
{
    if (c->ended)
        return;
    c->ended = c->intake.stop = true;
    roster_remove(&c->hub->roster, c->number);
    c->hub->closing++;
    if (c->waiting)
        hub_wait_end(c->hub);
    c->waiting = false;
    uv_close((uv_handle_t *)&c->poll, on_closed);
    if (c->handles == 2)
        uv_close((uv_handle_t *)&c->watch, on_closed);
    log_line(LOG_INFO, LOG_PAIRS(LOG_NUM("conn", c->number), LOG_NUM("pid", c->pid)),
             "client gone: %s", why);
}

void conn_leave(struct conn *c, const struct fault *why)
{
    if (c->ended || c->leaving)
        return;
    struct reply *r = c->hub->handler->goaway(c->hub->handler->self, c->number, why);
    log_line(LOG_WARN, LOG_PAIRS(LOG_NUM("conn", c->number), LOG_NUM("pid", c->pid)),
             "client sent away: %s", why->text);
    if (!r) {
        conn_end(c, "no memory for its GOAWAY");
        return;
    }
    c->leaving = c->intake.stop = true;
    c->leave_due = uv_now(&c->hub->loop) + CONN_FLUSH_MS;
    r->close_after = true;
    conn_send(c, r);
}

/* --- output --- */

static void note_output(struct conn *c)
{
    if (c->outbox.total == c->moved && c->outbox.queued > options(c)->output_high_water)
        return;
    c->moved = c->outbox.total;
    c->moved_ms = uv_now(&c->hub->loop);
}

static void flush(struct conn *c)
{
    if (c->ended || c->sending)
        return;
    c->sending = true;
    int rc = outbox_flush(&c->outbox, c->fd, WRITE_BUDGET);
    c->sending = false;
    note_output(c);
    if (rc)
        conn_end(c, strerror(-rc));
    else if (c->outbox.last_sent)
        conn_end(c, "it was sent away");
    else if (c->outbox.queued > options(c)->output_limit && !outbox_single(&c->outbox))
        conn_end(c, "it reads too slowly: more output waits than output_limit allows");
    settle(c);
}

void conn_send(struct conn *c, struct reply *r)
{
    const struct net_handler *h = c->hub->handler;
    bool final = (r->flags & FRAME_FLAG_REPLY) && !(r->flags & FRAME_FLAG_MORE);
    bool was_empty = !c->outbox.head;
    uint64_t id = r->id;
    outbox_push(&c->outbox, r);
    if (final && id)
        h->replied(h->self, c->number, id);
    if (was_empty || c->outbox.queued > options(c)->output_limit)
        flush(c);
    else
        settle(c);
}

/* --- input --- */

/* Everything came out of the intake's last calls: set deadlines, or send the client away. */
static void after_input(struct conn *c, int rc, const struct fault *f)
{
    uint64_t now = uv_now(&c->hub->loop);
    if (rc)
        conn_leave(c, f);
    bool waits = !c->ended && c->intake.state == INTAKE_WAIT;
    if (waits && !c->waiting) {
        c->wait_until = now + options(c)->memory_wait_ms;
        hub_wait_begin(c->hub);
    }
    if (!waits && c->waiting)
        hub_wait_end(c->hub);
    c->waiting = waits;
    if (intake_idle(&c->intake) && c->intake.frames)
        c->frame_due = 0;
    else if (c->seen != c->intake.progress)
        c->frame_due = now + options(c)->handshake_ms;
    c->seen = c->intake.progress;
}

/* The descriptors of one message go to the intake. */
static int take_fds(struct conn *c, struct msghdr *msg, struct fault *f)
{
    int rc = 0;
    for (struct cmsghdr *m = CMSG_FIRSTHDR(msg); m; m = CMSG_NXTHDR(msg, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
            continue;
        int fds[FRAME_FDS_MAX + 1];
        unsigned n = (unsigned)((m->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(m), n * sizeof(int));
        int one = intake_fds(&c->intake, fds, n, f);
        rc = rc ? rc : one;
    }
    if (!rc && msg->msg_flags & MSG_CTRUNC)
        rc = fault_set(f, FP8D_EPROTOCOL, "more descriptors came at once than a frame can have, %u",
                       FRAME_FDS_MAX);
    return rc;
}

static int take_bytes(struct conn *c, size_t n, size_t direct, struct fault *f)
{
    size_t head = n < direct ? n : direct;
    int rc = head ? intake_landed(&c->intake, head, n > head, f) : 0;
    if (!rc && n > head && !c->intake.stop)
        rc = intake_feed(&c->intake, c->hub->scratch, n - head, uv_hrtime(), f);
    return rc;
}

/* One recvmsg: first what the frame's payload is due, never a byte more, then the read-ahead.
 * Returns what it received, 0 at the end, or a negative errno; *more is false if the socket is
 * likely to be empty now. */
static ssize_t receive(struct conn *c, size_t budget, bool *more)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FRAME_FDS_MAX * sizeof(int))];
    } control;
    struct fault f = {0};
    struct iovec iov[2] = {{0}, {c->hub->scratch, HUB_SCRATCH}};
    iov[0].iov_base = intake_room(&c->intake, &iov[0].iov_len);
    if (iov[0].iov_len > budget) {
        iov[0].iov_len = budget;
        iov[1].iov_len = 0;
    }
    struct msghdr msg = {.msg_iov = iov,
                         .msg_iovlen = 2,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return -errno;
    int rc = take_fds(c, &msg, &f);
    if (!rc && n > 0)
        rc = take_bytes(c, (size_t)n, iov[0].iov_len, &f);
    /* in the middle of a payload the sender has probably gone on meanwhile */
    *more = (size_t)n == iov[0].iov_len + iov[1].iov_len || c->intake.left > HUB_SCRATCH;
    after_input(c, rc, &f);
    return n;
}

static void read_some(struct conn *c)
{
    size_t budget = READ_BUDGET;
    bool more = true;
    while (more && budget && reads(c)) {
        ssize_t n = receive(c, budget, &more);
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN)
            break;
        if (n <= 0) {
            conn_end(c, n ? strerror((int)-n) : "it closed the connection");
            break;
        }
        budget -= (size_t)n < budget ? (size_t)n : budget;
    }
}

void conn_retry(struct conn *c)
{
    struct fault f = {0};
    if (!c->waiting)
        return;
    bool last = uv_now(&c->hub->loop) >= c->wait_until;
    after_input(c, intake_retry(&c->intake, last, uv_hrtime(), &f), &f);
    settle(c);
}

/* --- events --- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct conn *c = poll->data;
    if (status) { /* EPOLLERR: the peer closed with our bytes unread; libuv stopped the handle */
        conn_end(c, "it closed the connection");
        return;
    }
    if (events & UV_WRITABLE)
        flush(c);
    if (reads(c))
        read_some(c);
    else if (events & UV_DISCONNECT)
        conn_end(c, "it closed the connection");
    settle(c);
}

static void on_peer_ended(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    conn_end(poll->data, "its process ended");
}

void conn_tick(struct conn *c)
{
    uint64_t now = uv_now(&c->hub->loop);
    struct fault f = {0};
    note_output(c);
    if (c->leaving) {
        if (now >= c->leave_due)
            conn_end(c, "it did not take its GOAWAY");
    } else if (now - c->moved_ms >= options(c)->output_stall_ms) {
        if (c->outbox.queued > options(c)->output_high_water)
            conn_end(c, "it reads too slowly: it took nothing for output_stall_timeout");
    } else if (!reads(c)) {
        c->frame_due = c->frame_due ? now + options(c)->handshake_ms : 0; /* our pause, not its */
    } else if (c->frame_due && now >= c->frame_due) {
        fault_set(&f, FP8D_EDEADLINE_EXCEEDED, "%s did not come within %u ms",
                  c->intake.frames || !intake_idle(&c->intake) ? "the rest of a frame" : "a Hello",
                  options(c)->handshake_ms);
        conn_leave(c, &f);
    }
}

/* --- begin --- */

void conn_refuse(struct hub *hub, int fd, uint64_t number, const struct fault *why)
{
    struct outbox box = {0};
    struct reply *r = hub->handler->goaway(hub->handler->self, number, why);
    if (r) {
        outbox_push(&box, r);
        (void)outbox_flush(&box, fd, WRITE_BUDGET);
        outbox_fini(&box);
    }
    close(fd);
    log_line(LOG_WARN, NULL, "client refused: %s", why->text);
}

static void watch_peer(struct conn *c)
{
    c->pidfd = peer_watch(c->fd, c->pid);
    if (c->pidfd == -ESRCH) {
        conn_end(c, "its process has ended");
        return;
    }
    if (c->pidfd < 0)
        return;
    if (uv_poll_init(&c->hub->loop, &c->watch, c->pidfd)) {
        close(c->pidfd);
        c->pidfd = -1;
        return;
    }
    c->handles++;
    c->watch.data = c;
    (void)uv_poll_start(&c->watch, UV_READABLE, on_peer_ended);
}

/* The connection has a number: tell the handler, let the loop know the socket. */
static int start(struct conn *c, const struct net_peer *peer, struct fault *f)
{
    const struct net_handler *h = c->hub->handler;
    int rc = h->opened(h->self, peer, f);
    if (rc)
        return rc;
    rc = uv_poll_init(&c->hub->loop, &c->poll, c->fd);
    if (rc) {
        h->closed(h->self, c->number);
        return fault_set(f, rc, "polling the socket failed: %s", uv_strerror(rc));
    }
    c->handles = 1;
    c->poll.data = c;
    peer_widen(c->fd);
    intake_init(&c->intake, h, &c->hub->options.caps, c->number);
    c->moved_ms = uv_now(&c->hub->loop);
    c->frame_due = c->moved_ms + options(c)->handshake_ms;
    log_line(LOG_INFO,
             LOG_PAIRS(LOG_NUM("conn", c->number), LOG_NUM("pid", peer->pid),
                       LOG_NUM("uid", peer->uid), LOG_NUM("gid", peer->gid)),
             "client connected");
    watch_peer(c);
    settle(c);
    return 0;
}

void conn_open(struct hub *hub, int fd)
{
    struct fault f = {0};
    struct net_peer peer = {0};
    struct conn *c = NULL;
    int rc = peer_identify(fd, &peer);
    if (rc)
        fault_set(&f, rc, "asking who connected failed: %s", strerror(-rc));
    else if (!(c = mem_zalloc(sizeof *c)))
        rc = fault_set(&f, FP8D_ERESOURCE_EXHAUSTED, "no memory for another connection");
    else if (!(peer.conn = roster_add(&hub->roster, c)))
        rc = fault_set(&f, FP8D_ERESOURCE_EXHAUSTED,
                       "all %u connections (connections_max) are taken", hub->roster.cap);
    if (!rc) {
        c->hub = hub;
        c->number = peer.conn;
        c->pid = peer.pid;
        c->fd = fd;
        c->pidfd = -1;
        rc = start(c, &peer, &f);
    }
    if (!rc)
        return;
    roster_remove(&hub->roster, peer.conn);
    mem_free(c);
    conn_refuse(hub, fd, peer.conn, &f);
}
