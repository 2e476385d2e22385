/* What a frame from the server means. */
#include "client/conn.h"

#include "base/mem.h"
#include "proto/fp8d.pb-c.h"

#include <errno.h>
#include <string.h>

static void take_goaway(struct fp8d *c, const unsigned char *meta, size_t len)
{
    struct arena a;
    result_arena(&a, len);
    const Fp8d__V1__GoAway *m = result_unpack(&a, &fp8d__v1__go_away__descriptor, meta, len);
    const Fp8d__V1__ReplyHead *h = m ? m->head : NULL;
    int code = h ? status_from_rpc(h->code) : 0;
    fault_set(&c->goaway, code ? code : FP8D_ECLOSED, "the server closed the connection: %s",
              h && *h->message ? h->message : "it gave no reason");
    c->goaway.stage = h ? (enum fault_stage)h->stage : STAGE_UNSPECIFIED;
    c->goaway.retry_after_ms = h ? h->retry_after_ms : 0;
    arena_fini(&a);
}

/* A reply that cannot be used here fails its request alone. */
static void fail_one(struct pending *p, const struct fault *f)
{
    p->rc = f->code;
    p->why = mem_strdup(f->text);
    fp8d_result_free(p->result);
    p->result = NULL;
    mem_free(p->parts);
    p->parts = NULL;
    p->parts_len = 0;
}

static void tell_progress(struct fp8d *c, struct pending *p, const unsigned char *meta)
{
    struct arena a;
    struct fp8d_progress progress;
    result_arena(&a, c->reader.header.meta_len);
    if (result_progress(p->type, meta, c->reader.header.meta_len, &a, &progress) && p->progress &&
        !p->forgotten)
        p->progress(p->arg, &progress);
    arena_fini(&a);
}

/* The beginning of a long description: joined end to end, its frames parse as one message. */
static int join(struct pending *p, const unsigned char *meta, size_t len, struct fault *f)
{
    if (!len)
        return 0;
    if (len > CONN_META_MAX - p->parts_len)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "the reply is described by more than %zu bytes; ask for less at once",
                         CONN_META_MAX);
    unsigned char *grown = mem_realloc(p->parts, p->parts_len + len);
    if (!grown)
        return fault_set(f, -ENOMEM, "no memory for a reply of %zu bytes", p->parts_len + len);
    memcpy(grown + p->parts_len, meta, len);
    p->parts = grown;
    p->parts_len += len;
    return 0;
}

static void take_more(struct fp8d *c, struct pending *p, const unsigned char *meta)
{
    struct fault f = {0};
    if (p->type == REQUEST_LOAD_COMMIT || p->type == REQUEST_SAVE_COMMIT)
        tell_progress(c, p, meta);
    else if (!p->rc && join(p, meta, c->reader.header.meta_len, &f))
        fail_one(p, &f);
}

static void take_final(struct fp8d *c, struct pending *p, const unsigned char *meta)
{
    struct fault f = {0};
    size_t len = c->reader.header.meta_len;
    int rc = p->parts ? join(p, meta, len, &f) : 0;
    if (p->parts) {
        meta = p->parts;
        len = p->parts_len;
    }
    if (!rc)
        rc = result_parse(p->type, meta, len, c->reader.header.payload_len, &p->result, &f);
    if (!rc && !p->forgotten)
        rc = result_place(p->result, &p->buffer, &f);
    if (rc)
        fail_one(p, &f);
}

static int check_frame(const struct fp8d *c, const struct pending *p, struct fault *f)
{
    const struct frame_header *h = &c->reader.header;
    if (!(h->flags & FRAME_FLAG_REPLY))
        return fault_set(f, FP8D_EPROTOCOL, "the server sent a request (type %u)", h->type);
    if (!p)
        return fault_set(f, FP8D_EPROTOCOL,
                         "the server replied to request %llu, which is not under way",
                         (unsigned long long)h->id);
    if (p->type != h->type)
        return fault_set(f, FP8D_EPROTOCOL, "the reply to request %llu has type %u, needed %u",
                         (unsigned long long)h->id, h->type, p->type);
    if ((h->flags & FRAME_FLAG_MORE) && h->payload_len)
        return fault_set(f, FP8D_EPROTOCOL, "a frame with MORE has a payload of %llu bytes",
                         (unsigned long long)h->payload_len);
    return 0;
}

int inbound_begin(struct fp8d *c, const unsigned char *meta, void **dest, struct fault *f)
{
    const struct frame_header *h = &c->reader.header;
    c->incoming = NULL;
    if (h->id == 0) {
        if (h->type == EVENT_GOAWAY)
            take_goaway(c, meta, h->meta_len);
        return 0;
    }
    struct pending *p = pending_find(&c->pending, h->id);
    if (p && p->replied)
        p = NULL;
    int rc = check_frame(c, p, f);
    if (rc)
        return rc;
    if (h->flags & FRAME_FLAG_MORE) {
        take_more(c, p, meta);
        return 0;
    }
    if (!p->rc)
        take_final(c, p, meta);
    *dest = p->result ? p->result->payload : NULL;
    c->incoming = p;
    return 0;
}

void inbound_end(struct fp8d *c)
{
    if (c->incoming)
        pending_replied(&c->pending, c->incoming);
    c->incoming = NULL;
}
