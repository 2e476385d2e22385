#include "client/result.h"

#include "client/convert.h"

#include <errno.h>
#include <string.h>

/* Memory per byte of meta. Honest replies need at most 28 (a list of one-letter names), made-up
 * ones could need over 200. */
#define ARENA_PER_BYTE 40
#define ARENA_BASE ((size_t)64 << 10)
#define ARENA_MAX ((size_t)1 << 30)

typedef int (*convert_cb)(struct fp8d_result *r, const void *m, struct fault *f);

/* Calls through void *: one line per request, so that the table below has one type. */
#define X(Name, NAME, type, class, order, snake)                                                   \
    static int call_##snake(struct fp8d_result *r, const void *m, struct fault *f)                 \
    {                                                                                              \
        return convert_##snake(r, m, f);                                                           \
    }
REQUEST_LIST(X)
#undef X

struct reply_kind {
    uint16_t type;
    const char *name;
    const ProtobufCMessageDescriptor *descriptor;
    convert_cb convert;
};

static const struct reply_kind kinds[] = {
#define X(Name, NAME, type, class, order, snake)                                                   \
    {(type), #NAME, &fp8d__v1__##snake##_reply__descriptor, call_##snake},
    REQUEST_LIST(X)
#undef X
};

static const struct reply_kind *kind_find(uint16_t type)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].type == type)
            return &kinds[i];
    return NULL;
}

const char *result_type_name(uint16_t type)
{
    const struct reply_kind *k = kind_find(type);
    return k ? k->name : "?";
}

static void *unpack_alloc(void *arena, size_t size)
{
    return arena_alloc(arena, size);
}

static void unpack_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

void result_arena(struct arena *a, size_t len)
{
    size_t cap = len < (ARENA_MAX - ARENA_BASE) / ARENA_PER_BYTE ? ARENA_BASE + len * ARENA_PER_BYTE
                                                                 : ARENA_MAX;
    arena_init(a, cap);
}

void *result_unpack(struct arena *a, const ProtobufCMessageDescriptor *type,
                    const unsigned char *meta, size_t len)
{
    ProtobufCAllocator allocator = {unpack_alloc, unpack_free, a};
    return protobuf_c_message_unpack(type, &allocator, len, meta);
}

static void take_head(struct fp8d_result *r, const Fp8d__V1__ReplyHead *h)
{
    r->message = "";
    if (!h)
        return;
    r->reply = (struct fp8d_reply){h->incarnation, h->weight_version, h->queue_us, h->run_us};
    r->code = status_from_rpc(h->code);
    r->stage = (uint32_t)h->stage;
    r->retry_after_ms = h->retry_after_ms;
    r->message = h->message;
}

static int parse_into(struct fp8d_result *r, const struct reply_kind *k, const unsigned char *meta,
                      size_t len, struct fault *f)
{
    Fp8d__V1__ErrorReply *m = result_unpack(&r->arena, k->descriptor, meta, len);
    if (!m)
        return fault_set(f, FP8D_EPROTOCOL, "the reply to %s does not parse", k->name);
    take_head(r, m->head); /* field 1 of every reply */
    if (r->code)
        return 0;
    int rc = k->convert(r, m, f);
    if (rc)
        return fault_wrap(f, "reply to %s", k->name);
    if (r->payload_len && !r->tensor)
        return fault_set(f, FP8D_EPROTOCOL,
                         "the reply to %s has %llu bytes of payload, needed none", k->name,
                         (unsigned long long)r->payload_len);
    return 0;
}

int result_parse(uint16_t type, const unsigned char *meta, size_t len, uint64_t payload_len,
                 struct fp8d_result **out, struct fault *f)
{
    const struct reply_kind *k = kind_find(type);
    struct fp8d_result *r = mem_zalloc(sizeof *r);
    if (!r || !k) {
        mem_free(r);
        return fault_set(f, k ? -ENOMEM : FP8D_EINTERNAL, k ? "no memory for a reply" : "no type");
    }
    r->type = type;
    r->payload_len = payload_len;
    result_arena(&r->arena, len);
    int rc = parse_into(r, k, meta, len, f);
    if (rc) {
        fp8d_result_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

int result_place(struct fp8d_result *r, const struct fp8d_buffer *buffer, struct fault *f)
{
    if (!r->payload_len || r->code)
        return 0;
    if (buffer->data && buffer->size < r->payload_len)
        return fault_set(f, FP8D_EOUT_OF_RANGE, "the output has %llu bytes, the buffer for it %llu",
                         (unsigned long long)r->payload_len, (unsigned long long)buffer->size);
    r->payload_owned = !buffer->data;
    r->payload = buffer->data ? buffer->data : mem_pages(r->payload_len);
    if (!r->payload)
        return fault_set(f, -ENOMEM, "no memory for an output of %llu bytes",
                         (unsigned long long)r->payload_len);
    r->tensor->data = r->payload;
    return 0;
}

int result_fault(const struct fp8d_result *r, struct fault *f)
{
    if (!r->code)
        return 0;
    fault_set(f, r->code, "%s", *r->message ? r->message : status_text(r->code));
    f->stage = (enum fault_stage)r->stage;
    f->retry_after_ms = r->retry_after_ms;
    return r->code;
}

static const Fp8d__V1__LoadProgress *progress_of(uint16_t type, const unsigned char *meta,
                                                 size_t len, struct arena *arena)
{
    if (type == REQUEST_SAVE_COMMIT) {
        const Fp8d__V1__SaveCommitReply *m =
            result_unpack(arena, &fp8d__v1__save_commit_reply__descriptor, meta, len);
        return m ? m->progress : NULL;
    }
    const Fp8d__V1__LoadCommitReply *m =
        result_unpack(arena, &fp8d__v1__load_commit_reply__descriptor, meta, len);
    return m ? m->progress : NULL;
}

bool result_progress(uint16_t type, const unsigned char *meta, size_t len, struct arena *arena,
                     struct fp8d_progress *out)
{
    const Fp8d__V1__LoadProgress *p = progress_of(type, meta, len, arena);
    if (!p)
        return false;
    *out = (struct fp8d_progress){
        .bytes_done = p->bytes_done,
        .bytes_total = p->bytes_total,
        .tensors_done = p->tensors_done,
        .tensors_total = p->tensors_total,
        .stage = p->stage,
    };
    return true;
}

void fp8d_result_free(struct fp8d_result *r)
{
    if (!r)
        return;
    if (r->payload_owned)
        mem_pages_free(r->payload, r->payload_len);
    arena_fini(&r->arena);
    mem_free(r);
}
