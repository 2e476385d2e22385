#include "daemon/rpc/rpc.h"

#include "daemon/rpc/caller.h"
#include "daemon/rpc/codec.h"
#include "daemon/rpc/request.h"
#include "daemon/rpc/session.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

int rpc_new(const struct rpc_options *o, struct rpc **out, struct fault *f)
{
    struct rpc *rpc = mem_zalloc(sizeof *rpc);
    if (!rpc)
        return fault_set(f, -ENOMEM, "out of memory for the request table");
    rpc->o = *o;
    *out = rpc;
    return 0;
}

void rpc_free(struct rpc *rpc)
{
    if (!rpc)
        return;
    idmap_fini(&rpc->callers);
    mem_free(rpc);
}

/* --- receiving, on the loop thread --- */

/* What is wrong with a frame so that the connection must end. */
static int check_frame(const struct caller *c, const struct frame_header *h, struct fault *f)
{
    if (h->flags)
        return fault_set(f, FP8D_EPROTOCOL, "flags of a request are 0x%x, needed 0", h->flags);
    if (!h->id)
        return fault_set(f, FP8D_EPROTOCOL, "the request id is 0, which is for server events");
    if (caller_has(c, h->id))
        return fault_set(f, FP8D_EPROTOCOL, "request id %llu is in flight already",
                         (unsigned long long)h->id);
    if (!c->greeted && h->type != REQUEST_HELLO)
        return fault_set(f, FP8D_EPROTOCOL, "the first frame has type %u, needed Hello (%u)",
                         h->type, REQUEST_HELLO);
    return 0;
}

/* What is wrong with a request that the connection survives. */
static int check_row(const struct caller *c, const struct request_row *row,
                     const struct frame_header *h, struct fault *f)
{
    if (!row)
        return fault_set(f, FP8D_EUNIMPLEMENTED, "request type %u is not known here", h->type);
    if (!(c->classes & row->class))
        return fault_set(f, FP8D_EPERMISSION_DENIED, "%s is not granted to this connection (uid %lu)",
                         row->name, (unsigned long)c->peer.uid);
    if (h->payload_len && !row->payload)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s takes no payload, found %llu bytes",
                         row->name, (unsigned long long)h->payload_len);
    if (h->fds && !row->fds)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s takes no descriptors, found %u", row->name,
                         h->fds);
    return 0;
}

/* A refusal that cannot even be built ends the connection. */
static enum net_verdict refuse(struct rpc *rpc, uint64_t conn, const struct frame_header *h,
                               const struct fault *f)
{
    struct reply *r = reply_error(conn, h->id, h->type, FRAME_FLAG_REPLY, f);
    if (!r)
        return NET_FATAL;
    rpc->o.exec->reply(rpc->o.exec->self, r);
    return NET_DISCARD;
}

static struct request *request_make(struct rpc *rpc, struct caller *c, const struct request_row *row,
                                    const struct frame_header *h, uint64_t received_ns)
{
    struct request *rq = mem_zalloc(sizeof *rq);
    if (!rq)
        return NULL;
    rq->rpc = rpc;
    rq->session = c->session;
    rq->row = row;
    rq->header = *h;
    rq->conn = c->conn;
    rq->received_ns = received_ns;
    arena_init(&rq->arena, CODEC_ARENA_BASE + (size_t)h->meta_len * CODEC_ARENA_FACTOR);
    struct fault f = {0};
    fault_set(&f, FP8D_ERESOURCE_EXHAUSTED,
              "out of memory for the reply; whether the request was executed is not known");
    rq->spare = reply_error(c->conn, h->id, h->type, FRAME_FLAG_REPLY, &f);
    if (!rq->spare) {
        request_free(rq);
        return NULL;
    }
    return rq;
}

static bool is_ordered(const struct request *rq)
{
    const Fp8d__V1__RequestHead *head = ((struct request_message *)rq->message)->head;
    bool asks = head && (head->ordered || head->n_needs); /* what it needs is in line before it */
    return rq->row->order == ORDER_ORDERED ||
           (rq->row->order == ORDER_NOW && rq->row->type != REQUEST_CANCEL && asks);
}

static int check_head(const struct request *rq, struct fault *f)
{
    const Fp8d__V1__RequestHead *head = ((struct request_message *)rq->message)->head;
    if (head && head->n_needs > 16)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "head.needs has %zu ids, at most 16",
                         head->n_needs);
    return 0;
}

static enum net_verdict begin(void *self, uint64_t conn, const struct frame_header *h,
                              const unsigned char *meta, uint64_t received_ns, void **request,
                              struct fault *f)
{
    struct rpc *rpc = self;
    struct caller *c = idmap_get(&rpc->callers, conn);
    f->stage = STAGE_RECEIVE;
    if (check_frame(c, h, f))
        return NET_FATAL;
    const struct request_row *row = request_row(h->type);
    caller_add(c, h->id);
    int rc = check_row(c, row, h, f);
    struct request *rq = rc ? NULL : request_make(rpc, c, row, h, received_ns);
    if (!rc && !rq)
        rc = fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "out of memory for a request");
    if (!rc) {
        f->stage = STAGE_DECODE;
        rc = codec_unpack(row->descriptor, meta, h->meta_len, &rq->arena, &rq->message, f);
    }
    if (!rc)
        rc = check_head(rq, f);
    if (!rc)
        rc = caller_admit(c, h->id, is_ordered(rq), f);
    if (rc) {
        if (rq)
            request_free(rq);
        return refuse(rpc, conn, h, f);
    }
    *request = rq;
    return NET_TAKE;
}

static enum net_verdict payload(void *self, void *request, bool last, void **to, struct fault *f)
{
    struct rpc *rpc = self;
    struct request *rq = request;
    uint64_t len = rq->header.payload_len;
    if (!len)
        return NET_TAKE;
    f->stage = STAGE_RECEIVE;
    if (!rq->payload) {
        int rc = engine_host_buffer(rpc->o.engine, len, "the payload", &rq->payload, f);
        bool hopeless = len > rpc->o.engine->o.ledger->cap;
        if (rc && !last && !hopeless)
            return NET_WAIT;
        if (rc) {
            enum net_verdict v = refuse(rpc, rq->conn, &rq->header, f);
            request_free(rq);
            return v;
        }
    }
    *to = rq->payload->host;
    return NET_TAKE;
}

static void run_now(struct exec_task *task)
{
    struct request *rq = (struct request *)task;
    if (is_ordered(rq)) {
        session_enqueue(rq->session, rq);
        return;
    }
    rq->started_ns = rq->rpc->o.exec->now(rq->rpc->o.exec->self);
    rq->row->run(rq);
}

static void complete(void *self, void *request, int *fds, unsigned nfds)
{
    struct rpc *rpc = self;
    struct request *rq = request;
    if (nfds)
        memcpy(rq->fds, fds, nfds * sizeof *fds);
    rq->fd_count = nfds;
    if (rq->row->order == ORDER_LOOP) {
        rq->row->run(rq);
        return;
    }
    rq->task.run = run_now;
    rpc->o.exec->post(rpc->o.exec->self, &rq->task);
}

static void abandon(void *self, void *request)
{
    (void)self;
    request_free(request);
}

static void replied(void *self, uint64_t conn, uint64_t id)
{
    struct rpc *rpc = self;
    struct caller *c = idmap_get(&rpc->callers, conn);
    if (c)
        caller_remove(c, id);
}

/* --- connections --- */

static void open_on_engine(struct exec_task *task)
{
    session_open((struct session *)(void *)((char *)task - offsetof(struct session, task)));
}

static int opened(void *self, const struct net_peer *peer, struct fault *f)
{
    struct rpc *rpc = self;
    struct session *s = session_new(rpc, peer);
    struct caller *c = s ? caller_new(rpc, peer, s) : NULL;
    if (!c || idmap_put(&rpc->callers, peer->conn, c)) {
        caller_free(c);
        if (s)
            session_discard(s);
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "out of memory for a connection");
    }
    s->task.run = open_on_engine;
    rpc->o.exec->post(rpc->o.exec->self, &s->task);
    return 0;
}

static void closed(void *self, uint64_t conn)
{
    struct rpc *rpc = self;
    caller_end(idmap_remove(&rpc->callers, conn));
}

static struct reply *goaway(void *self, uint64_t conn, const struct fault *f)
{
    (void)self;
    struct reply *r = reply_error(conn, 0, EVENT_GOAWAY, 0, f);
    if (r)
        r->close_after = true;
    return r;
}

struct net_handler rpc_handler(struct rpc *rpc)
{
    return (struct net_handler){
        .self = rpc,
        .opened = opened,
        .begin = begin,
        .payload = payload,
        .complete = complete,
        .abandon = abandon,
        .replied = replied,
        .closed = closed,
        .goaway = goaway,
    };
}

/* --- stop and watch --- */

static void drain_on_engine(struct exec_task *task)
{
    struct rpc *rpc = (struct rpc *)(void *)((char *)task - offsetof(struct rpc, drain_task));
    rpc->draining = true;
    sched_run(rpc);
}

void rpc_drain(struct rpc *rpc, rpc_drained_cb drained, void *arg)
{
    rpc->drained = drained;
    rpc->drained_arg = arg;
    rpc->drain_task.run = drain_on_engine;
    rpc->o.exec->post(rpc->o.exec->self, &rpc->drain_task);
}

bool rpc_alive(struct rpc *rpc, uint64_t now_ns, uint64_t stall_ns)
{
    struct queue *q = rpc->o.engine->queue;
    uint64_t progress = atomic_load(&q->progress);
    uint64_t seen = atomic_load(&rpc->watched_ns);
    if (!atomic_load(&q->pending) || progress != rpc->watched_progress || !seen) {
        rpc->watched_progress = progress;
        seen = now_ns;
        atomic_store(&rpc->watched_ns, seen);
    }
    return now_ns - seen < stall_ns;
}

uint64_t rpc_progress_age_ms(struct rpc *rpc)
{
    uint64_t seen = atomic_load(&rpc->watched_ns);
    uint64_t now = rpc->o.exec->now(rpc->o.exec->self);
    bool busy = atomic_load(&rpc->o.engine->queue->pending) != 0;
    return busy && seen && now > seen ? (now - seen) / 1000000 : 0;
}
