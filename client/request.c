/* One request: packed, sent, waited for. */
#include "client/conn.h"

#include "base/checked.h"
#include "base/mem.h"
#include "client/transport.h"
#include "proto/fp8d.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NEEDS_MAX 16

int call_error(const struct fault *f, struct fp8d_error *err)
{
    if (err) {
        err->code = f->code;
        err->stage = (enum fp8d_stage)f->stage;
        err->retry_after_ms = f->retry_after_ms;
        (void)snprintf(err->text, sizeof err->text, "%s", f->text);
    }
    return f->code;
}

int call_check(const struct fp8d *c, struct fault *f)
{
    if (c->pid == getpid())
        return 0;
    return fault_set(f, FP8D_EFORKED,
                     "the connection belongs to process %ld, this is its child %ld", (long)c->pid,
                     (long)getpid());
}

uint64_t call_deadline(uint32_t ms)
{
    return ms ? transport_now() + (uint64_t)ms * 1000000 : 0;
}

static int fill_head(Fp8d__V1__RequestHead *h, const struct fp8d_call *call, struct fault *f)
{
    if (!call)
        return 0;
    if (call->needs_count > NEEDS_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "needs names %zu requests, at most %d are possible", call->needs_count,
                         NEEDS_MAX);
    h->deadline_ms = call->deadline_ms;
    h->trace_id = call->trace_id;
    h->n_needs = call->needs_count;
    h->needs = (uint64_t *)call->needs;
    h->ordered = call->ordered;
    return 0;
}

/* The message into c->packed, within the server's caps. */
static int pack(struct fp8d *c, const struct request *r, uint32_t *len, struct fault *f)
{
    size_t need = protobuf_c_message_get_packed_size(r->msg);
    if (need > c->server.meta_bytes)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the request is described by %zu bytes, the server takes at most %u", need,
                         c->server.meta_bytes);
    if (need > c->packed_room) {
        unsigned char *grown = mem_realloc(c->packed, need);
        if (!grown)
            return fault_set(f, -ENOMEM, "no memory for a request of %zu bytes", need);
        c->packed = grown;
        c->packed_room = need;
    }
    *len = (uint32_t)protobuf_c_message_pack(r->msg, c->packed);
    return 0;
}

/* UINT64_MAX where the sum is more. */
static uint64_t payload_bytes(const struct request *r)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < CONN_PIECES; i++)
        if (!ck_add(sum, r->payload[i].iov_len, &sum))
            return UINT64_MAX;
    return sum;
}

static int check_caps(const struct fp8d *c, const struct request *r, uint64_t payload,
                      struct fault *f)
{
    if (payload > c->server.payload_bytes)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the request has %llu tensor bytes, the server takes at most %llu",
                         (unsigned long long)payload, (unsigned long long)c->server.payload_bytes);
    if (r->nfds > c->server.descriptors || r->nfds > FRAME_FDS_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "the request has %u files, the server takes %u",
                         r->nfds, c->server.descriptors);
    return 0;
}

static int send_frame(struct fp8d *c, const struct request *r, const struct pending *p,
                      uint64_t deadline, struct fault *f)
{
    uint64_t payload = payload_bytes(r);
    struct frame_header h = {
        .type = r->type, .id = p->id, .fds = (uint16_t)r->nfds, .payload_len = payload};
    unsigned char head[FRAME_HEADER_BYTES];
    int rc = check_caps(c, r, payload, f);
    if (!rc)
        rc = pack(c, r, &h.meta_len, f);
    if (rc)
        return rc;
    frame_encode(&h, head);
    struct iovec iov[2 + CONN_PIECES] = {{head, sizeof head}, {c->packed, h.meta_len}};
    memcpy(iov + 2, r->payload, sizeof r->payload);
    return pump_send(c, iov, 2 + CONN_PIECES, r->fds, r->nfds, deadline, f);
}

/* Take it out of the table; if its payload is being received, the rest is thrown away. */
static void drop(struct fp8d *c, struct pending *p)
{
    if (c->incoming == p) {
        c->incoming = NULL;
        c->reader.at = NULL;
    }
    pending_drop(&c->pending, p);
}

static int submit(struct fp8d *c, const struct request *r, uint64_t *id, struct fault *f)
{
    struct pending *p;
    uint64_t deadline = call_deadline(c->call_timeout_ms);
    if (c->dead.code || c->goaway.code) {
        *f = c->dead.code ? c->dead : c->goaway;
        return f->code;
    }
    int rc = pump_until_room(c, deadline, f);
    if (!rc)
        rc = pending_add(&c->pending, r->type, &p, f);
    if (rc)
        return rc;
    p->buffer = r->buffer;
    p->progress = r->progress;
    p->arg = r->arg;
    uint64_t mine = p->id;
    rc = send_frame(c, r, p, deadline, f);
    if (rc)
        drop(c, p);
    else
        *id = mine;
    return rc;
}

int call_submit(struct fp8d *c, const struct request *r, const struct fp8d_call *call, uint64_t *id,
                struct fp8d_error *err)
{
    struct fault f = {0};
    Fp8d__V1__RequestHead head = FP8D__V1__REQUEST_HEAD__INIT;
    ((Fp8d__V1__PingRequest *)r->msg)->head = &head; /* field 1 of every request */
    int rc = call_check(c, &f);
    if (!rc)
        rc = fill_head(&head, call, &f);
    if (!rc)
        rc = submit(c, r, id, &f);
    return rc ? call_error(&f, err) : 0;
}

/* Its outcome: the result, or the fault of a reply that failed. */
static int take(struct fp8d *c, struct pending *p, struct fp8d_result **out, struct fault *f)
{
    int rc = p->rc;
    if (rc)
        fault_set(f, rc, "%s", p->why ? p->why : status_text(rc));
    else
        rc = result_fault(p->result, f);
    if (!rc && out) {
        *out = p->result;
        p->result = NULL;
    }
    drop(c, p);
    return rc;
}

static int wait_for(struct fp8d *c, uint64_t id, struct fp8d_result **out, struct fault *f)
{
    int rc = call_check(c, f);
    if (rc)
        return rc;
    struct pending *p = pending_find(&c->pending, id);
    if (!p || p->forgotten)
        return fault_set(f, FP8D_ENOT_FOUND, "no request %llu is pending", (unsigned long long)id);
    rc = pump_until_replied(c, p, call_deadline(c->call_timeout_ms), f);
    if (!rc)
        return take(c, p, out, f);
    if (c->dead.code)
        drop(c, p);
    return rc;
}

int fp8d_wait(struct fp8d *c, uint64_t id, struct fp8d_result **out, struct fp8d_error *err)
{
    struct fault f = {0};
    return wait_for(c, id, out, &f) ? call_error(&f, err) : 0;
}

static void forget(struct fp8d *c, struct pending *p)
{
    if (p->replied || c->dead.code) {
        drop(c, p);
        return;
    }
    p->forgotten = true;
    if (c->incoming == p)
        c->reader.at = NULL;
}

int fp8d_forget(struct fp8d *c, uint64_t id, struct fp8d_error *err)
{
    struct fault f = {0};
    if (call_check(c, &f))
        return call_error(&f, err);
    struct pending *p = pending_find(&c->pending, id);
    if (!p || p->forgotten) {
        fault_set(&f, FP8D_ENOT_FOUND, "no request %llu is pending", (unsigned long long)id);
        return call_error(&f, err);
    }
    forget(c, p);
    return 0;
}

int call_finish(struct fp8d *c, int rc, uint64_t id, struct fp8d_result **out,
                struct fp8d_error *err)
{
    if (rc)
        return rc;
    rc = fp8d_wait(c, id, out, err);
    if (rc == -ETIMEDOUT)
        (void)fp8d_forget(c, id, NULL);
    return rc;
}
