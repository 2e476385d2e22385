/* conn.h - what a handle is made of, and the stages a frame goes through.
 *
 *   out: call_*.c fills a message -> call_submit (request.c) packs it -> pump_send (pump.c)
 *   in:  pump_until_* (pump.c) -> reader_feed (reader.c), bytes to frames -> inbound_* (inbound.c),
 *        frames to results of pending requests -> fp8d_wait (request.c)
 *
 * A connection that failed keeps the reason in `dead`; requests without a final frame then end with
 * it. One thread at a time.
 */
#ifndef FP8D_CLIENT_CONN_H
#define FP8D_CLIENT_CONN_H

#include "base/fault.h"
#include "client/fp8d.h"
#include "client/pending.h"
#include "client/result.h"
#include "proto/frame.h"
#include "proto/requests.h"

#include <protobuf-c/protobuf-c.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Most bytes of one reply's description, over all its frames. */
#define CONN_META_MAX ((size_t)64 << 20)
#define CONN_PIECES 4 /* tensors in one request */

/* From bytes to frames: what is read now goes to `at` (NULL: thrown away), `left` bytes of it. */
struct reader {
    enum { READER_HEADER, READER_META, READER_PAYLOAD } state;
    unsigned char *at;
    uint64_t left;
    struct frame_header header;
    unsigned char head[FRAME_HEADER_BYTES];
    unsigned char *meta;
    size_t meta_room;
};

struct fp8d {
    int fd; /* -1 once dead */
    pid_t pid;
    uint32_t call_timeout_ms;
    uint64_t spin_ns;
    struct fp8d_result *hello; /* of it: server */
    struct fp8d_server server;
    struct frame_caps caps; /* of frames we receive */
    struct pending_table pending;
    struct reader reader;
    struct pending *incoming; /* whose payload is read now; NULL: thrown away */
    struct fault goaway;      /* code 0: none seen */
    struct fault dead;        /* code 0: alive */
    unsigned char *packed;    /* of the request being sent */
    size_t packed_room;
    unsigned char buffer[16 << 10]; /* small frames, or heads of large ones */
};

/* reader.c */
void reader_init(struct reader *r);
void reader_fini(struct reader *r);
/* Consume received bytes; a fault ends the connection. */
int reader_feed(struct fp8d *c, const unsigned char *p, size_t len, struct fault *f);
/* `n` bytes were received straight to reader.at. */
int reader_took(struct fp8d *c, uint64_t n, struct fault *f);

/* inbound.c: header and meta are in: sets *dest where the payload goes, NULL to throw it away; and
 * all of the payload is in. */
int inbound_begin(struct fp8d *c, const unsigned char *meta, void **dest, struct fault *f);
void inbound_end(struct fp8d *c);

/* pump.c. Deadline in transport_now time, 0: none. A fault other than -ETIMEDOUT is also the
 * reason in `dead`; in pump_send a timeout in the middle of a frame is, too. */
int pump_send(struct fp8d *c, struct iovec *iov, unsigned count, const int *fds, unsigned nfds,
              uint64_t deadline, struct fault *f);
int pump_until_replied(struct fp8d *c, const struct pending *p, uint64_t deadline, struct fault *f);
int pump_until_room(struct fp8d *c, uint64_t deadline, struct fault *f);

/* request.c: everything about one request. `msg` begins with base and head, as all requests do. */
struct request {
    uint16_t type;
    ProtobufCMessage *msg;
    struct iovec payload[CONN_PIECES];
    const int *fds;
    unsigned nfds;
    struct fp8d_buffer buffer;
    fp8d_progress_cb progress;
    void *arg;
};

int call_submit(struct fp8d *c, const struct request *r, const struct fp8d_call *call, uint64_t *id,
                struct fp8d_error *err);
/* Wait for what a submit call of status rc sent; a timeout forgets it. */
int call_finish(struct fp8d *c, int rc, uint64_t id, struct fp8d_result **out,
                struct fp8d_error *err);
/* Put a fault into what the caller sees; returns its code. */
int call_error(const struct fault *f, struct fp8d_error *err);
/* Is this the process that made the handle? FP8D_EFORKED. */
int call_check(const struct fp8d *c, struct fault *f);
uint64_t call_deadline(uint32_t ms); /* 0 for 0 */

#endif
