/* codec.h - protobuf on both ways, safely: the bytes are checked against the schema before
 * protobuf-c sees them, and it allocates from a capped arena only.
 *
 * What protobuf-c 1.4.1 accepts and this refuses: strings that are not UTF-8 or hold controls or
 * NULs, unknown enum values, a singular sub-message given twice, wire types that do not fit,
 * repeated fields over a cap, heaps of unknown fields. Pure; any thread.
 */
#ifndef FP8D_DAEMON_RPC_CODEC_H
#define FP8D_DAEMON_RPC_CODEC_H

#include "base/fault.h"
#include "base/mem.h"

#include <protobuf-c/protobuf-c.h>

#define CODEC_REPEATED_MAX 4096  /* elements of one repeated field */
#define CODEC_UNKNOWN_MAX 64     /* unknown fields of one message */
#define CODEC_ARENA_FACTOR 24    /* arena bytes a meta byte may cost, plus CODEC_ARENA_BASE */
#define CODEC_ARENA_BASE 65536

/* FP8D_EINVALID_ARGUMENT with the path of the field, what was found and what is needed. */
int codec_check(const ProtobufCMessageDescriptor *d, const void *bytes, size_t len,
                struct fault *f);

/* Check, then unpack into the arena. The message lives as long as the arena. */
int codec_unpack(const ProtobufCMessageDescriptor *d, const void *bytes, size_t len,
                 struct arena *a, ProtobufCMessage **out, struct fault *f);

#endif
