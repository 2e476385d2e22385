#include "proto/frame.h"

#include "base/cursor.h"
#include "base/text.h"

#include <string.h>

static void put_le(unsigned char *p, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

void frame_encode(const struct frame_header *h, unsigned char out[FRAME_HEADER_BYTES])
{
    memcpy(out, "FP8D", 4);
    put_le(out + 4, FRAME_VERSION, 2);
    put_le(out + 6, h->type, 2);
    put_le(out + 8, h->id, 8);
    put_le(out + 16, h->meta_len, 4);
    put_le(out + 20, h->flags, 2);
    put_le(out + 22, h->fds, 2);
    put_le(out + 24, h->payload_len, 8);
}

static int check(const struct frame_header *h, const struct frame_caps *caps, struct fault *f)
{
    uint64_t meta_cap = caps->meta;
#ifdef FP8D_MUTANT_FRAME_CAP
    meta_cap++; /* killed by frame_meta_cap in tests/unit/test_frame.c */
#endif
    if (h->flags & ~FRAME_FLAGS_KNOWN)
        return fault_set(f, FP8D_EPROTOCOL, "flags are 0x%x, known are 0x%x", h->flags,
                         FRAME_FLAGS_KNOWN);
    if (h->meta_len > meta_cap)
        return fault_set(f, FP8D_EPROTOCOL, "meta length is %u, the cap is %u", h->meta_len,
                         caps->meta);
    if (h->payload_len > caps->payload)
        return fault_set(f, FP8D_EPROTOCOL, "payload length is %llu, the cap is %llu",
                         (unsigned long long)h->payload_len, (unsigned long long)caps->payload);
    if (h->fds > caps->fds)
        return fault_set(f, FP8D_EPROTOCOL, "descriptor count is %u, the cap is %u", h->fds,
                         caps->fds);
    return 0;
}

int frame_decode(const unsigned char in[FRAME_HEADER_BYTES], const struct frame_caps *caps,
                 struct frame_header *out, struct fault *f)
{
    char shown[32];
    struct cursor c = cursor_over(in, FRAME_HEADER_BYTES);
    const char *magic = cursor_take(&c, 4);
    if (memcmp(magic, "FP8D", 4) != 0)
        return fault_set(f, FP8D_EPROTOCOL, "magic is \"%s\", needed \"FP8D\"",
                         text_escape(shown, sizeof shown, magic, 4));
    unsigned version = cursor_u16(&c);
    if (version != FRAME_VERSION)
        return fault_set(f, FP8D_EPROTOCOL, "framing version is %u, this side speaks %u", version,
                         FRAME_VERSION);
    struct frame_header h;
    h.type = cursor_u16(&c);
    h.id = cursor_u64(&c);
    h.meta_len = cursor_u32(&c);
    h.flags = cursor_u16(&c);
    h.fds = cursor_u16(&c);
    h.payload_len = cursor_u64(&c);
    int rc = check(&h, caps, f);
    if (!rc)
        *out = h;
    return rc;
}
