#include "daemon/rpc/codec.h"

#include "base/cursor.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>

#define PATH_MAX_BYTES 128
#define FIELDS_MAX 64

enum wire {
    WIRE_VARINT = 0,
    WIRE_64 = 1,
    WIRE_LEN = 2,
    WIRE_32 = 5,
};

struct walk {
    struct fault *f;
    char path[PATH_MAX_BYTES]; /* of the message being walked, "" or "input." */
};

static int walk_message(struct walk *w, const ProtobufCMessageDescriptor *d, const void *bytes,
                        size_t len);

#define NUMBER_BYTES 10 /* of a varint */
#define PREFIX_BYTES 5  /* of a tag or a length: protobuf-c reads no more */

static uint64_t take_varint(struct cursor *c, unsigned max_bytes)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 7 * max_bytes; shift += 7) {
        const unsigned char *p = cursor_take(c, 1);
        if (!p)
            return 0;
        v |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

static enum wire wire_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_32;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_LEN;
    default:
        return WIRE_VARINT;
    }
}

static int bad_field(struct walk *w, const ProtobufCFieldDescriptor *fd, const char *what)
{
    return fault_set(w->f, FP8D_EINVALID_ARGUMENT, "%s%s %s", w->path, fd->name, what);
}

static int check_enum(struct walk *w, const ProtobufCFieldDescriptor *fd, uint64_t v)
{
    const ProtobufCEnumDescriptor *e = fd->descriptor;
    if (v <= INT32_MAX && protobuf_c_enum_descriptor_get_value(e, (int)v))
        return 0;
    return fault_set(w->f, FP8D_EINVALID_ARGUMENT, "%s%s is %llu, needed a value of enum %s",
                     w->path, fd->name, (unsigned long long)v, e->short_name);
}

/* A number that would not survive: protobuf-c would cut it down to another one. */
static int check_number(struct walk *w, const ProtobufCFieldDescriptor *fd, uint64_t v)
{
    if (fd->type == PROTOBUF_C_TYPE_ENUM)
        return check_enum(w, fd, v);
    if (fd->type != PROTOBUF_C_TYPE_UINT32 || v <= UINT32_MAX)
        return 0;
    return fault_set(w->f, FP8D_EINVALID_ARGUMENT, "%s%s is %llu, needed at most %u", w->path,
                     fd->name, (unsigned long long)v, UINT32_MAX);
}

static int check_string(struct walk *w, const ProtobufCFieldDescriptor *fd, const char *s,
                        size_t len)
{
    char shown[96];
    if (utf8_printable(s, len))
        return 0;
    return fault_set(w->f, FP8D_EINVALID_ARGUMENT,
                     "%s%s is \"%s\", needed UTF-8 without control characters", w->path, fd->name,
                     text_escape(shown, sizeof shown, s, len));
}

static int check_nested(struct walk *w, const ProtobufCFieldDescriptor *fd, const void *p,
                        size_t len)
{
    size_t at = strlen(w->path);
    (void)snprintf(w->path + at, sizeof w->path - at, "%s.", fd->name);
    int rc = walk_message(w, fd->descriptor, p, len);
    w->path[at] = 0;
    return rc;
}

/* A packed run of numbers: how many, and whether its enums are known. */
static int check_packed(struct walk *w, const ProtobufCFieldDescriptor *fd, const void *p,
                        size_t len, size_t *count)
{
    struct cursor c = cursor_over(p, len);
    enum wire wire = wire_of(fd->type);
    while (c.left && !c.bad) {
        uint64_t v = wire == WIRE_VARINT ? take_varint(&c, NUMBER_BYTES)
                                         : cursor_le(&c, wire == WIRE_64 ? 8 : 4);
        if (wire == WIRE_VARINT && !c.bad && check_number(w, fd, v))
            return w->f->code;
        if (++*count > CODEC_REPEATED_MAX)
            break;
    }
    return c.bad ? bad_field(w, fd, "is cut short") : 0;
}

static int check_value(struct walk *w, const ProtobufCFieldDescriptor *fd, struct cursor *c,
                       enum wire wire, size_t *count)
{
    bool repeated = fd->label == PROTOBUF_C_LABEL_REPEATED;
    enum wire want = wire_of(fd->type);
    bool packed = repeated && want != WIRE_LEN && wire == WIRE_LEN;
    if (wire != want && !packed)
        return bad_field(w, fd, "has a wire type that does not fit its type");
    if (wire == WIRE_VARINT) {
        uint64_t v = take_varint(c, NUMBER_BYTES);
        ++*count;
        return c->bad ? 0 : check_number(w, fd, v);
    }
    if (wire != WIRE_LEN) {
        cursor_take(c, wire == WIRE_64 ? 8 : 4);
        ++*count;
        return 0;
    }
    size_t len = take_varint(c, PREFIX_BYTES);
    const void *p = cursor_take(c, len);
    if (!p)
        return bad_field(w, fd, "is longer than the message");
    if (packed)
        return check_packed(w, fd, p, len, count);
    ++*count;
    if (fd->type == PROTOBUF_C_TYPE_STRING)
        return check_string(w, fd, p, len);
    return fd->type == PROTOBUF_C_TYPE_MESSAGE ? check_nested(w, fd, p, len) : 0;
}

static int check_count(struct walk *w, const ProtobufCFieldDescriptor *fd, size_t count)
{
    if (fd->label == PROTOBUF_C_LABEL_REPEATED && count > CODEC_REPEATED_MAX)
        return fault_set(w->f, FP8D_EINVALID_ARGUMENT, "%s%s has more than %d elements", w->path,
                         fd->name, CODEC_REPEATED_MAX);
    if (fd->label != PROTOBUF_C_LABEL_REPEATED && fd->type == PROTOBUF_C_TYPE_MESSAGE && count > 1)
        return bad_field(w, fd, "is given twice");
    return 0;
}

static void skip_unknown(struct cursor *c, enum wire wire)
{
    switch (wire) {
    case WIRE_VARINT:
        take_varint(c, NUMBER_BYTES);
        break;
    case WIRE_64:
        cursor_take(c, 8);
        break;
    case WIRE_32:
        cursor_take(c, 4);
        break;
    case WIRE_LEN:
        cursor_take(c, take_varint(c, PREFIX_BYTES));
        break;
    default:
        c->bad = true;
    }
}

static int walk_message(struct walk *w, const ProtobufCMessageDescriptor *d, const void *bytes,
                        size_t len)
{
    struct cursor c = cursor_over(bytes, len);
    size_t counts[FIELDS_MAX] = {0};
    unsigned unknown = 0;
    while (c.left && !c.bad) {
        uint64_t tag = take_varint(&c, PREFIX_BYTES);
        enum wire wire = (enum wire)(tag & 7);
        if (!(tag >> 3)) {
            c.bad = true;
            break;
        }
        const ProtobufCFieldDescriptor *fd =
            tag >> 3 <= 0x1fffffff ? protobuf_c_message_descriptor_get_field(d, (unsigned)(tag >> 3))
                                   : NULL;
        if (!fd) {
            skip_unknown(&c, wire);
            if (++unknown > CODEC_UNKNOWN_MAX)
                return fault_set(w->f, FP8D_EINVALID_ARGUMENT,
                                 "message %s has more than %d unknown fields", d->short_name,
                                 CODEC_UNKNOWN_MAX);
            continue;
        }
        size_t *count = &counts[(size_t)(fd - d->fields) % FIELDS_MAX];
        int rc = check_value(w, fd, &c, wire, count);
        if (!rc)
            rc = check_count(w, fd, *count);
        if (rc)
            return rc;
    }
    if (c.bad)
        return fault_set(w->f, FP8D_EINVALID_ARGUMENT, "message %s is cut short or malformed",
                         d->short_name);
    return 0;
}

int codec_check(const ProtobufCMessageDescriptor *d, const void *bytes, size_t len, struct fault *f)
{
    struct walk w = {.f = f};
    return walk_message(&w, d, bytes, len);
}

static void *arena_get(void *data, size_t size)
{
    return arena_alloc(data, size);
}

static void arena_put(void *data, void *p)
{
    (void)data;
    (void)p;
}

int codec_unpack(const ProtobufCMessageDescriptor *d, const void *bytes, size_t len,
                 struct arena *a, ProtobufCMessage **out, struct fault *f)
{
    int rc = codec_check(d, bytes, len, f);
    if (rc)
        return rc;
    ProtobufCAllocator alloc = {arena_get, arena_put, a};
    ProtobufCMessage *m = protobuf_c_message_unpack(d, &alloc, len, bytes);
    if (!m)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "message %s of %zu bytes does not fit the memory for one request",
                         d->short_name, len);
    *out = m;
    return 0;
}
