/* intake.h - bytes and descriptors of one connection in, frames out: the read state machine.
 *
 * Pure: no socket, no loop, no clock. Whoever receives gives it descriptors first (intake_fds),
 * then the bytes that came with them, payload bytes either directly into intake_room's memory (then
 * intake_landed) or through intake_feed. It calls begin, payload, complete and abandon of the
 * handler. Loop thread.
 *
 * Descriptors travel with the first byte of their frame's header. A FIFO holds them until that
 * header is complete and takes its count: a read may return the end of one frame together with the
 * descriptors of the next. Too few, or some left over when no header is under way, is a framing
 * error (fp8d-protocol(7), descriptors).
 */
#ifndef FP8D_DAEMON_NET_INTAKE_H
#define FP8D_DAEMON_NET_INTAKE_H

#include "daemon/net/net.h"

#include <stdbool.h>

/* One frame's, and as many of the next one that came with the end of its header. */
#define INTAKE_FIFO_MAX (2 * FRAME_FDS_MAX)

enum intake_state {
    INTAKE_HEADER,  /* `have` of 32 bytes are in */
    INTAKE_META,    /* `have` of meta_len bytes are in */
    INTAKE_WAIT,    /* the handler has no memory: nothing is consumed until intake_retry */
    INTAKE_PAYLOAD, /* `left` bytes are due, to `at` */
    INTAKE_DISCARD, /* `left` bytes are due, to nowhere */
};

/* Embedded in its owner (a connection, a test). */
struct intake {
    const struct net_handler *handler;
    const struct frame_caps *caps;
    uint64_t conn;
    enum intake_state state;
    bool stop; /* set by the owner: consume nothing more, the connection ends */
    uint32_t have;
    uint64_t left;
    uint64_t progress; /* grows with every frame begun and every MiB of payload received */
    uint64_t landed;   /* payload bytes received, ever */
    uint64_t frames;   /* frames received to their end, ever */
    struct frame_header header;
    uint64_t received_ns; /* when the header came */
    unsigned char raw[FRAME_HEADER_BYTES];
    unsigned char *meta;  /* only while it comes in pieces; owned */
    void *request;        /* the handler's, between begin and complete */
    unsigned char *at;    /* where the next payload byte goes */
    unsigned char *stash; /* bytes received behind a frame that waits; owned */
    size_t stash_len;
    unsigned fifo_len, frame_fds_len;
    int fifo[INTAKE_FIFO_MAX];    /* descriptors no header has taken yet; owned */
    int frame_fds[FRAME_FDS_MAX]; /* of the frame under way; owned */
};

void intake_init(struct intake *in, const struct net_handler *handler,
                 const struct frame_caps *caps, uint64_t conn);

/* Abandons the request under way and closes every descriptor held. */
void intake_fini(struct intake *in);

/* Take over n received descriptors. FP8D_EPROTOCOL when there are more than frames can have. All
 * are owned by the intake, error or not. */
int intake_fds(struct intake *in, const int *fds, unsigned n, struct fault *f);

/* Memory for the payload bytes that are due next: sets *len, 0 when none are. */
void *intake_room(const struct intake *in, size_t *len);

/* n bytes, at most what intake_room said, are there. `more`: bytes that came with them follow through
 * intake_feed, and descriptors that came may belong to those. */
int intake_landed(struct intake *in, size_t n, bool more, struct fault *f);

/* Consume len bytes (those behind a frame that waits are copied). now_ns stamps the headers. A
 * negative status ends the connection. */
int intake_feed(struct intake *in, const void *bytes, size_t len, uint64_t now_ns, struct fault *f);

/* Ask the handler again about the frame that waits; go on with the bytes behind it. */
int intake_retry(struct intake *in, bool last, uint64_t now_ns, struct fault *f);

/* True between two frames: nothing of the next one has come. */
static inline bool intake_idle(const struct intake *in)
{
    return in->state == INTAKE_HEADER && in->have == 0;
}

#endif
