/* wire.h - bytes of protobuf messages made by hand, and unpacked as the daemon does it. */
#ifndef FP8D_TESTS_UNIT_WIRE_H
#define FP8D_TESTS_UNIT_WIRE_H

#include "daemon/rpc/codec.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static unsigned char wire[1 << 20]; /* the message so far */
static size_t wire_len;
static struct fault wire_fault;

static inline void wire_start(void)
{
    wire_len = 0;
    wire_fault = (struct fault){0};
}

static inline void wire_raw(const void *bytes, size_t n)
{
    ck_assert_uint_le(wire_len + n, sizeof wire);
    memcpy(wire + wire_len, bytes, n);
    wire_len += n;
}

static inline void wire_varint(uint64_t v)
{
    do {
        unsigned char b = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        wire_raw(&b, 1);
    } while (v >>= 7);
}

static inline void wire_tag(uint64_t field, unsigned type)
{
    wire_varint(field << 3 | type);
}

static inline void wire_number(uint64_t field, uint64_t v)
{
    wire_tag(field, 0);
    wire_varint(v);
}

static inline void wire_bytes(uint64_t field, const void *p, size_t n)
{
    wire_tag(field, 2);
    wire_varint(n);
    wire_raw(p, n);
}

/* As the daemon does for a request; the arena's cap holds. */
static inline int wire_unpack(const ProtobufCMessageDescriptor *d)
{
    struct arena a;
    ProtobufCMessage *m = NULL;
    arena_init(&a, CODEC_ARENA_BASE + wire_len * CODEC_ARENA_FACTOR);
    /* a copy of the exact size, so that a sanitizer sees a read past the end */
    unsigned char *exact = malloc(wire_len + 1);
    memcpy(exact, wire, wire_len);
    int rc = codec_unpack(d, exact, wire_len, &a, &m, &wire_fault);
    ck_assert((rc == 0) == (m != NULL));
    ck_assert_uint_le(a.used, a.cap);
    arena_fini(&a);
    free(exact);
    return rc;
}

#endif
