/* request.h - one request on its way: made on the loop thread, run on the engine thread.
 *
 * Owner: net until complete, then the session's line, then whoever runs it; request_answer and
 * request_fail end it. Its memory is a capped arena, dropped with it.
 */
#ifndef FP8D_DAEMON_RPC_REQUEST_H
#define FP8D_DAEMON_RPC_REQUEST_H

#include "base/mem.h"
#include "daemon/exec.h"
#include "daemon/rpc/table.h"
#include "kernels/buffer.h"
#include "proto/frame.h"

struct rpc;
struct session;
struct load;
struct save;

struct request {
    struct exec_task task;
    struct rpc *rpc;
    struct session *session;
    const struct request_row *row;
    struct frame_header header;
    uint64_t conn;
    uint64_t received_ns; /* when its header came */
    uint64_t started_ns;  /* when it left the line */
    struct arena arena;
    ProtobufCMessage *message;
    struct buffer *payload; /* header.payload_len bytes, or NULL */
    int fds[FRAME_FDS_MAX];
    unsigned fd_count;
    struct request *next; /* in the session's line */
    uint64_t turn;        /* its place in the session's line */
    bool ahead;           /* began ahead, see session.h */
    bool waits;           /* not again: it begins when the one before it has ended */
    struct load *load;    /* while a load runs */
    struct save *save;    /* while a save runs */
    struct reply *spare;  /* "out of memory", made beforehand: a request always gets an answer */
    struct reply *ready;  /* request_prepare's, or NULL */
    uint64_t incarnation, weight_version; /* for the reply's head */
};

/* Every request message begins so, and every reply message. */
struct request_message {
    ProtobufCMessage base;
    Fp8d__V1__RequestHead *head;
};
struct reply_message {
    ProtobufCMessage base;
    Fp8d__V1__ReplyHead *head;
};

/* Frees it, its payload and descriptors. */
void request_free(struct request *rq);

/* Send the final reply and end the request. `message` is a reply message whose head is filled here.
 * `payload` (may be NULL) is sent from `host` on; a reference is taken until it is sent. If the
 * reply cannot be built for want of memory, the spare one is sent in its place. Engine thread; the
 * loop thread for LOOP requests. */
void request_answer(struct request *rq, ProtobufCMessage *message, struct buffer *payload,
                    uint64_t payload_len);
void request_fail(struct request *rq, const struct fault *f);

/* The least that can be answered after a change that cannot be undone, made before it: what
 * request_answer sends instead where memory is short. */
int request_prepare(struct request *rq, ProtobufCMessage *message, struct fault *f);

/* A frame with flag MORE; the request goes on. False when memory is short: nothing was sent, which
 * a part of a list must not take lightly. */
bool request_progress(struct request *rq, ProtobufCMessage *message);

/* Remember what the reply's head says about a model. */
void request_stamp(struct request *rq, uint64_t incarnation, uint64_t weight_version);

/* --- frames without a request --- */

/* A reply frame with this message; NULL when memory is short. */
struct reply *reply_new(uint64_t conn, uint64_t id, uint16_t type, uint16_t flags,
                        const ProtobufCMessage *message, struct buffer *payload,
                        uint64_t payload_len);

/* An error reply. */
struct reply *reply_error(uint64_t conn, uint64_t id, uint16_t type, uint16_t flags,
                          const struct fault *f);

#endif
