/* outbox.h - the replies of one connection that are not sent yet, counted in bytes.
 *
 * Frames leave in the order given, straight from the reply's memory, several by one sendmsg. Each
 * reply's `done` is called once: when its last byte is with the kernel, or when it is dropped. Loop
 * thread.
 */
#ifndef FP8D_DAEMON_NET_OUTBOX_H
#define FP8D_DAEMON_NET_OUTBOX_H

#include "daemon/exec.h"

#include <stddef.h>

struct outbox {
    struct reply *head, *tail;
    uint64_t sent;   /* bytes of head that are gone */
    uint64_t queued; /* bytes not sent, headers included */
    uint64_t total;  /* bytes sent, ever */
    bool last_sent;  /* a reply with close_after has gone; the rest was dropped */
};

/* The outbox owns the reply from here on. */
void outbox_push(struct outbox *o, struct reply *r);

/* Send until nothing is left, the socket is full, or `budget` bytes went. 0, or a negative errno of
 * sendmsg other than EAGAIN. */
int outbox_flush(struct outbox *o, int fd, size_t budget);

/* Drop everything. */
void outbox_fini(struct outbox *o);

/* True if there is one frame or none: it may be larger than any limit. */
static inline bool outbox_single(const struct outbox *o)
{
    return o->head == o->tail;
}

#endif
