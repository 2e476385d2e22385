/* frame_fuzz.c - any bytes, cut anywhere, through the read state machine (daemon/net/intake.h).
 *
 * Byte 0 seeds the cuts, byte 1 says how many descriptors come with every fourth piece (0: none),
 * the rest is the stream. Required: no crash; no memory, request or descriptor left; payload bytes
 * are those of the stream; and without descriptors, the same frames and the same error however the
 * stream is cut. The verdict on a frame follows from its type. */
#include "base/mem.h"
#include "daemon/net/intake.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

static const struct frame_caps caps = {.meta = 300, .payload = 2000, .fds = 8};

struct request {
    struct frame_header h;
    unsigned waits;
    unsigned char payload[2000];
};

/* What a run comes to. */
struct outcome {
    uint64_t hash; /* of every frame, in order */
    uint64_t frames;
    int live; /* requests */
    int rc;
};

static void mix(struct outcome *o, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        o->hash = (o->hash ^ ((const unsigned char *)p)[i]) * 1099511628211u;
}

/* --- handler --- */

static enum net_verdict begin(void *self, uint64_t conn, const struct frame_header *h,
                              const unsigned char *meta, uint64_t received_ns, void **request,
                              struct fault *f)
{
    struct outcome *o = self;
    (void)conn, (void)received_ns;
    REQUIRE(h->meta_len <= caps.meta && h->payload_len <= caps.payload && h->fds <= caps.fds);
    uint64_t fields[] = {h->type, h->flags, h->fds, h->meta_len, h->id, h->payload_len};
    mix(o, fields, sizeof fields);
    mix(o, meta, h->meta_len);
    o->frames++;
    if ((h->type & 7) == 5)
        return NET_DISCARD;
    if ((h->type & 7) == 6)
        return fault_set(f, FP8D_EPROTOCOL, "as the type says"), NET_FATAL;
    struct request *q = mem_zalloc(sizeof *q);
    REQUIRE(q);
    q->h = *h;
    q->waits = (h->type & 7) == 3 ? 2 : (h->type & 7) == 4;
    o->live++;
    *request = q;
    return (h->type & 7) == 4 ? NET_WAIT : NET_TAKE;
}

static void drop(struct outcome *o, struct request *q)
{
    mem_free(q);
    o->live--;
}

static enum net_verdict payload(void *self, void *request, bool last, void **to, struct fault *f)
{
    struct request *q = request;
    (void)f;
    if (q->waits && !last) {
        q->waits--;
        return NET_WAIT;
    }
    if ((q->h.type & 15) == 11) {
        drop(self, q);
        return NET_DISCARD;
    }
    *to = q->payload;
    return NET_TAKE;
}

static void complete(void *self, void *request, int *fds, unsigned nfds)
{
    struct request *q = request;
    REQUIRE(nfds == q->h.fds);
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
    mix(self, q->payload, q->h.payload_len);
    drop(self, q);
}

static void abandon(void *self, void *request)
{
    drop(self, request);
}

/* --- stream --- */

/* Take some descriptors in, as recvmsg would bring them. */
static int bring_fds(struct intake *in, unsigned n, struct fault *f)
{
    int fds[16];
    for (unsigned i = 0; i < n; i++)
        fds[i] = dup(STDERR_FILENO);
    return intake_fds(in, fds, n, f);
}

/* One piece: directly into the payload's memory as far as it goes, the rest by feed. */
static int piece(struct intake *in, const uint8_t *p, size_t n, struct fault *f)
{
    size_t room;
    void *to = intake_room(in, &room);
    size_t head = n < room ? n : room;
    int rc = 0;
    if (head) {
        memcpy(to, p, head);
        rc = intake_landed(in, head, n > head, f);
    }
    if (!rc && n > head)
        rc = intake_feed(in, p + head, n - head, 1, f);
    for (unsigned i = 0; !rc && !in->stop && in->state == INTAKE_WAIT; i++)
        rc = intake_retry(in, i > 5, 1, f);
    return rc;
}

static struct outcome run(const uint8_t *p, size_t n, uint32_t seed, unsigned fds, size_t longest)
{
    struct outcome o = {.hash = 14695981039346656037u};
    struct net_handler h = {
        .self = &o, .begin = begin, .payload = payload, .complete = complete, .abandon = abandon};
    struct intake in;
    struct fault f = {0};
    intake_init(&in, &h, &caps, 1);
    while (n && !o.rc) {
        seed = seed * 1664525u + 1013904223u;
        size_t len = 1 + (seed >> 8) % longest;
        len = len < n ? len : n;
        if (fds && seed >> 30 == 0)
            o.rc = bring_fds(&in, fds, &f);
        if (!o.rc)
            o.rc = piece(&in, p, len, &f);
        REQUIRE(!o.rc || f.text[0]);
        p += len;
        n -= len;
    }
    intake_fini(&in);
    REQUIRE(o.live == 0);
    return o;
}

/* The lowest descriptor that is free: higher than before if one was left open. */
static int lowest_fd(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    int64_t blocks = mem_live_blocks();
    int fd = lowest_fd();
    struct outcome cut = run(data + 2, size - 2, data[0], data[1] % 9, 40);
    struct outcome whole = run(data + 2, size - 2, data[0], 0, SIZE_MAX);
    if (data[1] % 9 == 0)
        REQUIRE(cut.hash == whole.hash && cut.frames == whole.frames && cut.rc == whole.rc);
    REQUIRE(mem_live_blocks() == blocks && lowest_fd() == fd);
    return 0;
}
