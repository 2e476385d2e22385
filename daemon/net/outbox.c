#include "daemon/net/outbox.h"

#include "proto/frame.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BATCH 16 /* frames by one sendmsg */

static uint64_t bytes_of(const struct reply *r)
{
    return FRAME_HEADER_BYTES + r->meta_len + r->payload_len;
}

void outbox_push(struct outbox *o, struct reply *r)
{
    if (o->last_sent) {
        r->done(r);
        return;
    }
    r->next = NULL;
    if (o->tail)
        o->tail->next = r;
    else
        o->head = r;
    o->tail = r;
    o->queued += bytes_of(r);
}

/* What one sendmsg gets. */
struct batch {
    struct iovec iov[3 * BATCH];
    unsigned char raw[BATCH][FRAME_HEADER_BYTES];
    size_t iovs;
    size_t bytes;
};

/* Add what is behind *skip bytes already sent, up to `budget` in all. */
static void add(struct batch *b, const void *p, uint64_t len, uint64_t *skip, size_t budget)
{
    uint64_t gone = *skip < len ? *skip : len;
    uint64_t n = len - gone;
    *skip -= gone;
    if (n > budget - b->bytes)
        n = budget - b->bytes;
    if (!n)
        return;
    b->iov[b->iovs++] = (struct iovec){(char *)(uintptr_t)p + gone, (size_t)n};
    b->bytes += (size_t)n;
}

static void fill(struct batch *b, const struct outbox *o, size_t budget)
{
    uint64_t skip = o->sent;
    unsigned i = 0;
    b->iovs = b->bytes = 0;
    for (const struct reply *r = o->head; r && i < BATCH && b->bytes < budget; r = r->next, i++) {
        struct frame_header h = {.type = r->type,
                                 .flags = r->flags,
                                 .meta_len = r->meta_len,
                                 .id = r->id,
                                 .payload_len = r->payload_len};
        frame_encode(&h, b->raw[i]);
        add(b, b->raw[i], FRAME_HEADER_BYTES, &skip, budget);
        add(b, r->meta, r->meta_len, &skip, budget);
        add(b, r->payload, r->payload_len, &skip, budget);
        if (r->close_after)
            break;
    }
}

static struct reply *pop(struct outbox *o)
{
    struct reply *r = o->head;
    o->queued -= bytes_of(r) - o->sent;
    o->sent = 0;
    o->head = r->next;
    if (!o->head)
        o->tail = NULL;
    return r;
}

/* n more bytes are with the kernel. */
static void advance(struct outbox *o, size_t n)
{
    o->sent += n;
    o->queued -= n;
    o->total += n;
    while (o->head && o->sent >= bytes_of(o->head)) {
        uint64_t rest = o->sent - bytes_of(o->head);
        o->sent -= rest;
        struct reply *r = pop(o);
        o->sent = rest;
        bool last = r->close_after;
        r->done(r);
        if (last) {
            outbox_fini(o);
            o->last_sent = true;
        }
    }
}

int outbox_flush(struct outbox *o, int fd, size_t budget)
{
    struct batch b;
    while (o->head && budget) {
        fill(&b, o, budget);
        struct msghdr msg = {.msg_iov = b.iov, .msg_iovlen = b.iovs};
        ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        advance(o, (size_t)n);
        budget -= (size_t)n;
        if ((size_t)n < b.bytes)
            return 0;
    }
    return 0;
}

void outbox_fini(struct outbox *o)
{
    while (o->head) {
        struct reply *r = pop(o);
        r->done(r);
    }
    o->sent = 0;
}
