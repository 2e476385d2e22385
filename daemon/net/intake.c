#include "daemon/net/intake.h"

#include "base/cursor.h"
#include "base/mem.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

static void close_all(int *fds, unsigned *n)
{
    while (*n)
        close(fds[--*n]);
}

void intake_init(struct intake *in, const struct net_handler *handler,
                 const struct frame_caps *caps, uint64_t conn)
{
    *in = (struct intake){.handler = handler, .caps = caps, .conn = conn};
}

void intake_fini(struct intake *in)
{
    if (in->request)
        in->handler->abandon(in->handler->self, in->request);
    in->request = NULL;
    mem_free(in->meta);
    mem_free(in->stash);
    in->meta = in->stash = NULL;
    close_all(in->frame_fds, &in->frame_fds_len);
    close_all(in->fifo, &in->fifo_len);
}

/* --- descriptors --- */

int intake_fds(struct intake *in, const int *fds, unsigned n, struct fault *f)
{
    unsigned room = INTAKE_FIFO_MAX - in->fifo_len;
    unsigned fit = n < room ? n : room;
    memcpy(in->fifo + in->fifo_len, fds, fit * sizeof *fds);
    in->fifo_len += fit;
    for (unsigned i = fit; i < n; i++)
        close(fds[i]);
    if (fit < n)
        return fault_set(f, FP8D_EPROTOCOL, "%u descriptors came that no header has asked for",
                         INTAKE_FIFO_MAX + n - fit);
    return 0;
}

static int take_fds(struct intake *in, struct fault *f)
{
    unsigned n = in->header.fds;
    if (n > in->fifo_len)
        return fault_set(f, FP8D_EPROTOCOL, "the header says %u descriptors, %u came with it", n,
                         in->fifo_len);
    memcpy(in->frame_fds, in->fifo, n * sizeof *in->fifo);
    in->frame_fds_len = n;
    in->fifo_len -= n;
    memmove(in->fifo, in->fifo + n, in->fifo_len * sizeof *in->fifo);
    return 0;
}

/* What is in the FIFO when all received bytes are consumed came with one of them, so that it
 * belongs to a header that has begun, or to none. */
static int check_left_over(const struct intake *in, struct fault *f)
{
    bool under_way = in->state == INTAKE_HEADER && in->have > 0;
    if (!in->fifo_len || under_way || in->stash)
        return 0;
    return fault_set(f, FP8D_EPROTOCOL, "%u descriptors are left over behind a frame of type %u",
                     in->fifo_len, in->header.type);
}

/* --- steps of a frame --- */

static void frame_done(struct intake *in)
{
    in->state = INTAKE_HEADER;
    in->have = 0;
    in->frames++;
}

static void complete(struct intake *in)
{
    void *request = in->request;
    unsigned n = in->frame_fds_len;
    in->request = NULL;
    in->frame_fds_len = 0;
    frame_done(in);
    in->handler->complete(in->handler->self, request, in->frame_fds, n);
}

static void discard(struct intake *in)
{
    in->request = NULL;
    close_all(in->frame_fds, &in->frame_fds_len);
    in->left = in->header.payload_len;
    in->state = INTAKE_DISCARD;
    if (!in->left)
        frame_done(in);
}

static int fatal(struct intake *in, struct fault *f)
{
    in->request = NULL;
    in->stop = true;
    return f->code < 0 ? f->code : fault_set(f, FP8D_EPROTOCOL, "the request was refused");
}

static int ask_payload(struct intake *in, bool last, struct fault *f)
{
    void *to = NULL;
    switch (in->handler->payload(in->handler->self, in->request, last, &to, f)) {
    case NET_TAKE:
        in->at = to;
        in->left = in->header.payload_len;
        in->state = INTAKE_PAYLOAD;
        if (!in->left)
            complete(in);
        return 0;
    case NET_WAIT:
        assert(!last);
        in->state = INTAKE_WAIT;
        return 0;
    case NET_DISCARD:
        discard(in);
        return 0;
    case NET_FATAL:
    default:
        return fatal(in, f);
    }
}

static int begin(struct intake *in, const unsigned char *meta, struct fault *f)
{
    switch (in->handler->begin(in->handler->self, in->conn, &in->header, meta, in->received_ns,
                               &in->request, f)) {
    case NET_TAKE:
        if (in->header.payload_len)
            return ask_payload(in, false, f);
        complete(in);
        return 0;
    case NET_WAIT:
        in->state = INTAKE_WAIT;
        return 0;
    case NET_DISCARD:
        discard(in);
        return 0;
    case NET_FATAL:
    default:
        return fatal(in, f);
    }
}

/* --- bytes --- */

/* Move up to `want - have` bytes to `to + have`. True when all `want` are there. */
static bool gather(struct intake *in, unsigned char *to, uint32_t want, struct cursor *c)
{
    size_t n = want - in->have < c->left ? want - in->have : c->left;
    memcpy(to + in->have, cursor_take(c, n), n);
    in->have += (uint32_t)n;
    return in->have == want;
}

static int feed_header(struct intake *in, struct cursor *c, uint64_t now_ns, struct fault *f)
{
    if (in->have == 0)
        in->progress++;
    if (!gather(in, in->raw, FRAME_HEADER_BYTES, c))
        return 0;
    int rc = frame_decode(in->raw, in->caps, &in->header, f);
    if (!rc)
        rc = take_fds(in, f);
    if (rc)
        return rc;
    in->received_ns = now_ns;
    in->have = 0;
    in->state = INTAKE_META;
    return in->header.meta_len ? 0 : begin(in, (const unsigned char *)"", f);
}

static int feed_meta(struct intake *in, struct cursor *c, struct fault *f)
{
    uint32_t len = in->header.meta_len;
    if (!in->meta && c->left >= len)
        return begin(in, cursor_take(c, len), f);
    if (!in->meta)
        in->meta = mem_alloc(len);
    if (!in->meta)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for %u bytes of meta", len);
    if (!gather(in, in->meta, len, c))
        return 0;
    int rc = begin(in, in->meta, f);
    mem_free(in->meta);
    in->meta = NULL;
    return rc;
}

/* n payload bytes are received, wherever they went. */
static void payload_moved(struct intake *in, size_t n)
{
    in->left -= n;
    in->progress += ((in->landed + n) >> 20) - (in->landed >> 20);
    in->landed += n;
    if (in->left)
        return;
    if (in->state == INTAKE_PAYLOAD)
        complete(in);
    else
        frame_done(in);
}

static int feed_payload(struct intake *in, struct cursor *c)
{
    size_t n = in->left < c->left ? (size_t)in->left : c->left;
    const void *bytes = cursor_take(c, n);
    if (in->state == INTAKE_PAYLOAD) {
        memcpy(in->at, bytes, n);
        in->at += n;
    }
    payload_moved(in, n);
    return 0;
}

static int feed_step(struct intake *in, struct cursor *c, uint64_t now_ns, struct fault *f)
{
    switch (in->state) {
    case INTAKE_HEADER:
        return feed_header(in, c, now_ns, f);
    case INTAKE_META:
        return feed_meta(in, c, f);
    case INTAKE_PAYLOAD:
    case INTAKE_DISCARD:
        return feed_payload(in, c);
    case INTAKE_WAIT:
    default:
        assert(!"a frame that waits consumes nothing");
        return 0;
    }
}

static int keep_rest(struct intake *in, const struct cursor *c, struct fault *f)
{
    in->stash = mem_alloc(c->left);
    if (!in->stash)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to keep %zu received bytes",
                         c->left);
    memcpy(in->stash, c->at, c->left);
    in->stash_len = c->left;
    return 0;
}

int intake_feed(struct intake *in, const void *bytes, size_t len, uint64_t now_ns, struct fault *f)
{
    struct cursor c = cursor_over(bytes, len);
    int rc = 0;
    assert(!in->stash);
    while (!rc && !in->stop && c.left && in->state != INTAKE_WAIT)
        rc = feed_step(in, &c, now_ns, f);
    if (!rc && !in->stop && c.left)
        rc = keep_rest(in, &c, f);
    if (!rc && !in->stop)
        rc = check_left_over(in, f);
    if (rc)
        in->stop = true;
    return rc;
}

void *intake_room(const struct intake *in, size_t *len)
{
    *len = in->state == INTAKE_PAYLOAD ? (size_t)in->left : 0;
    return in->at;
}

int intake_landed(struct intake *in, size_t n, bool more, struct fault *f)
{
    assert(in->state == INTAKE_PAYLOAD && n <= in->left);
    in->at += n;
    payload_moved(in, n);
    return in->stop || more ? 0 : check_left_over(in, f);
}

int intake_retry(struct intake *in, bool last, uint64_t now_ns, struct fault *f)
{
    assert(in->state == INTAKE_WAIT);
    int rc = ask_payload(in, last, f);
    if (rc || in->stop || in->state == INTAKE_WAIT || !in->stash)
        return rc;
    unsigned char *stash = in->stash;
    size_t len = in->stash_len;
    in->stash = NULL;
    in->stash_len = 0;
    rc = intake_feed(in, stash, len, now_ns, f);
    mem_free(stash);
    return rc;
}
