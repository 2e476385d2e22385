#include "daemon/rpc/request.h"

#include "base/io.h"
#include "base/text.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

struct frame_out {
    struct reply reply;
    struct buffer *payload;
    unsigned char meta[];
};

static void frame_done(struct reply *r)
{
    struct frame_out *o = (struct frame_out *)r;
    buffer_unref(o->payload);
    mem_free(o);
}

struct reply *reply_new(uint64_t conn, uint64_t id, uint16_t type, uint16_t flags,
                        const ProtobufCMessage *message, struct buffer *payload,
                        uint64_t payload_len)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    struct frame_out *o = mem_alloc(sizeof *o + len);
    if (!o)
        return NULL;
    protobuf_c_message_pack(message, o->meta);
    o->payload = payload ? buffer_ref(payload) : NULL;
    o->reply = (struct reply){
        .conn = conn,
        .id = id,
        .type = type,
        .flags = flags,
        .meta_len = (uint32_t)len,
        .meta = o->meta,
        .payload_len = payload ? payload_len : 0,
        .payload = payload ? payload->host : NULL,
        .done = frame_done,
    };
    return &o->reply;
}

/* A sentence may have been cut inside a character: only whole ones go on the wire. */
static void whole_characters(char *text)
{
    for (size_t i = 0, len = strlen(text); i < len;) {
        unsigned n = utf8_length((unsigned char *)text + i, len - i);
        if (!n)
            text[i] = '?';
        i += n ? n : 1;
    }
}

static void fault_head(Fp8d__V1__ReplyHead *head, char *text, const struct fault *f)
{
    memcpy(text, f->text, FAULT_TEXT_MAX);
    whole_characters(text);
    head->code = (uint32_t)status_to_rpc(f->code);
    head->message = text;
    head->stage = (Fp8d__V1__Stage)f->stage;
    head->retry_after_ms = f->retry_after_ms;
}

struct reply *reply_error(uint64_t conn, uint64_t id, uint16_t type, uint16_t flags,
                          const struct fault *f)
{
    char text[FAULT_TEXT_MAX];
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    Fp8d__V1__ErrorReply m = FP8D__V1__ERROR_REPLY__INIT;
    m.head = &head;
    fault_head(&head, text, f);
    return reply_new(conn, id, type, flags, &m.base, NULL, 0);
}

void request_stamp(struct request *rq, uint64_t incarnation, uint64_t weight_version)
{
    rq->incarnation = incarnation;
    rq->weight_version = weight_version;
}

static void fill_times(const struct request *rq, Fp8d__V1__ReplyHead *head)
{
    const struct exec *x = rq->rpc->o.exec;
    uint64_t now = x->now(x->self);
    uint64_t started = rq->started_ns ? rq->started_ns : now;
    head->queue_us = (started - rq->received_ns) / 1000;
    head->run_us = (now - started) / 1000;
    head->incarnation = rq->incarnation;
    head->weight_version = rq->weight_version;
}

void request_free(struct request *rq)
{
    const struct io *io = rq->rpc->o.engine->o.io;
    for (unsigned i = 0; i < rq->fd_count; i++)
        if (rq->fds[i] >= 0)
            (void)io->close(io->self, rq->fds[i]);
    if (rq->spare)
        rq->spare->done(rq->spare);
    if (rq->ready)
        rq->ready->done(rq->ready);
    buffer_unref(rq->payload);
    arena_fini(&rq->arena);
    mem_free(rq);
}

/* Give the reply to the executor; the request is over. */
static void finish(struct request *rq, struct reply *r, bool ok)
{
    const struct exec *x = rq->rpc->o.exec;
    if (!r && ok && rq->ready) {
        r = rq->ready;
        rq->ready = NULL;
    }
    if (!r) {
        r = rq->spare;
        rq->spare = NULL;
        ok = false;
    }
    x->reply(x->self, r);
    struct session *s = rq->session;
    if (rq->row->order != ORDER_LOOP && s)
        session_finished(s, rq, ok);
    request_free(rq);
}

void request_fail(struct request *rq, const struct fault *f)
{
    bool again = rq->rpc->o.engine->ahead || f->again; /* refused now, or not done */
    if (rq->ahead && again && session_take_back(rq->session, rq))
        return;
    char text[FAULT_TEXT_MAX];
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    Fp8d__V1__ErrorReply m = FP8D__V1__ERROR_REPLY__INIT;
    m.head = &head;
    fault_head(&head, text, f);
    fill_times(rq, &head);
    finish(rq,
           reply_new(rq->conn, rq->header.id, rq->row->type, FRAME_FLAG_REPLY, &m.base, NULL, 0),
           false);
}

void request_answer(struct request *rq, ProtobufCMessage *message, struct buffer *payload,
                    uint64_t payload_len)
{
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    ((struct reply_message *)message)->head = &head;
    fill_times(rq, &head);
    struct reply *r = reply_new(rq->conn, rq->header.id, rq->row->type, FRAME_FLAG_REPLY, message,
                                payload, payload_len);
    finish(rq, r, true);
}

int request_prepare(struct request *rq, ProtobufCMessage *message, struct fault *f)
{
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    ((struct reply_message *)message)->head = &head;
    rq->ready =
        reply_new(rq->conn, rq->header.id, rq->row->type, FRAME_FLAG_REPLY, message, NULL, 0);
    return rq->ready ? 0 : fault_set(f, -ENOMEM, "out of memory for the reply");
}

bool request_progress(struct request *rq, ProtobufCMessage *message)
{
    const struct exec *x = rq->rpc->o.exec;
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    ((struct reply_message *)message)->head = &head;
    struct reply *r = reply_new(rq->conn, rq->header.id, rq->row->type,
                                FRAME_FLAG_REPLY | FRAME_FLAG_MORE, message, NULL, 0);
    if (r)
        x->reply(x->self, r);
    return r != NULL;
}
