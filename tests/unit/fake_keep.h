/* fake_keep.h - a fake server that keeps the last request and refuses it, for tests of what goes
 * out.
 */
#ifndef FP8D_TESTS_UNIT_FAKE_KEEP_H
#define FP8D_TESTS_UNIT_FAKE_KEEP_H

#include "tests/unit/fake_server.h"

#include <sys/stat.h>

struct seen {
    uint16_t type;
    uint32_t meta_len;
    unsigned char meta[4096];
    uint64_t payload_len;
    unsigned char payload[4096];
    struct stat file; /* of the first descriptor */
    unsigned files;
};

static struct seen seen; /* written before the reply, read after it */

static inline bool serve_keep(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    seen = (struct seen){
        .type = h->type, .meta_len = h->meta_len, .payload_len = h->payload_len, .files = s->nfds};
    if (h->meta_len > sizeof seen.meta || h->payload_len > sizeof seen.payload)
        return false;
    memcpy(seen.meta, s->meta, h->meta_len);
    for (unsigned i = 0; i < s->nfds; i++) {
        if (i == 0 && fstat(s->fds[0], &seen.file))
            return false;
        close(s->fds[i]);
    }
    return fake_read(s, fd, seen.payload, h->payload_len) && fake_fail(fd, h, 12, "kept") &&
           n < 100;
}

static const struct fp8d_call some_call = {.deadline_ms = 250,
                                           .trace_id = 99,
                                           .needs = (const uint64_t[]){7, 8},
                                           .needs_count = 2,
                                           .ordered = true};

static inline void check_head(const Fp8d__V1__RequestHead *h)
{
    ck_assert_ptr_nonnull(h);
    ck_assert_uint_eq(h->deadline_ms, 250);
    ck_assert_uint_eq(h->trace_id, 99);
    ck_assert_uint_eq(h->n_needs, 2);
    ck_assert_uint_eq(h->needs[1], 8);
    ck_assert(h->ordered);
}

#define SEEN(snake) fp8d__v1__##snake##_request__unpack(NULL, seen.meta_len, seen.meta)
#define FREE(snake, m) fp8d__v1__##snake##_request__free_unpacked(m, NULL)
#define KEPT(call) ck_assert_int_eq(call, FP8D_EUNIMPLEMENTED)

#endif
