/* frame.h - the 32-byte header in front of every frame: a pure codec over bytes.
 *
 * Little-endian: 0 "FP8D"; 4 u16 framing version (1); 6 u16 type; 8 u64 request id; 16 u32 meta
 * length; 20 u16 flags; 22 u16 descriptor count; 24 u64 payload length.
 * Reference: fp8d-protocol(7).
 */
#ifndef FP8D_PROTO_FRAME_H
#define FP8D_PROTO_FRAME_H

#include "base/fault.h"

#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER_BYTES 32
#define FRAME_VERSION 1
#define FRAME_FLAG_REPLY 1u /* answer to the request of this id */
#define FRAME_FLAG_MORE 2u  /* another frame with this id follows */
#define FRAME_FLAGS_KNOWN (FRAME_FLAG_REPLY | FRAME_FLAG_MORE)

#define FRAME_META_HARD (1u << 20)    /* cap of the meta that no configuration can raise */
#define FRAME_META_DEFAULT (64u << 10)
#define FRAME_PAYLOAD_DEFAULT ((uint64_t)1 << 30)
#define FRAME_FDS_MAX 64u

struct frame_header {
    uint16_t type;
    uint16_t flags;
    uint16_t fds;
    uint32_t meta_len;
    uint64_t id;
    uint64_t payload_len;
};

struct frame_caps {
    uint32_t meta;
    uint64_t payload;
    uint16_t fds;
};

void frame_encode(const struct frame_header *h, unsigned char out[FRAME_HEADER_BYTES]);

/* FP8D_EPROTOCOL with a sentence for wrong magic, version, unknown flags, or lengths and counts over
 * the caps; *out is untouched then. Every such error ends the connection. */
int frame_decode(const unsigned char in[FRAME_HEADER_BYTES], const struct frame_caps *caps,
                 struct frame_header *out, struct fault *f);

#endif
