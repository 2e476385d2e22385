/* codec_fuzz.c - any bytes as the frames of two clients, through rpc, engine and CPU backend: no
 * crash, no leak, one final reply to each request, and none of them says INTERNAL.
 *
 * An input is a row of frames: type, flags (1: the other client, 2: id 5, 4: descriptors, 8: hold
 * what is posted, 16: let it go, 32: the client leaves), meta length, payload length / 8, then the
 * meta. Clients 1 and 2 have greeted and share model "m" with layer "a" [16, 16]. */
#include "base/mem.h"
#include "base/text.h"
#include "tests/unit/desk.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

#define FRAMES_MAX 32
#define INTERNAL 13
#define SAME_ID 5

struct player {
    struct desk *d;
    bool gone[2];
    uint64_t next_id;
    unsigned sent[2]; /* that must be answered */
    uint64_t ids[2][FRAMES_MAX];
};

static struct desk *table(void)
{
    static const float weight[256] = {1.0f, -2.0f, 0.5f};
    const struct desk_layer layer = {"a", 16, 16, weight, NULL};
    struct engine_options o = {.resident_max = 1 << 16, .contexts_max = 3, .tensors_max = 3};
    struct desk *d = desk_new(&o, 0);
    desk_open(d, 1);
    desk_open(d, 2);
    REQUIRE(desk_load(d, 1, "m", &layer, 1, NULL, NULL) == 0);
    return d;
}

static void leave(struct player *p, unsigned who)
{
    if (p->gone[who])
        return;
    desk_close(p->d, who + 1);
    p->gone[who] = true;
}

static bool in_flight(const struct player *p, unsigned who, uint64_t id)
{
    for (unsigned i = 0; i < p->sent[who]; i++)
        if (p->ids[who][i] == id)
            return true;
    return false;
}

static void play(struct player *p, const uint8_t head[4], const uint8_t *meta)
{
    static const unsigned char payload[8 * 256] = {0x40, 0x3f, 0, 0, 0x80, 0x7f};
    unsigned who = head[1] & 1;
    struct frame_header h = {
        .type = head[0],
        .id = head[1] & 2 ? SAME_ID : p->next_id++,
        .meta_len = head[2],
        .payload_len = head[3] * 8u,
        .fds = head[1] & 4 ? 1 : 0,
    };
    struct fault f = {0};
    if (head[1] & 8)
        desk_hold(p->d);
    if (!p->gone[who]) {
        /* a copy of the exact size, so that a sanitizer sees a read past the end */
        uint8_t *exact = malloc(h.meta_len ? h.meta_len : 1);
        int fd = h.fds ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
        REQUIRE(exact);
        memcpy(exact, meta, h.meta_len);
        desk_send_raw(p->d, who + 1, &h, exact, payload, &fd, NULL, &f);
        free(exact);
        if (p->d->verdict == NET_FATAL)
            leave(p, who);
        else if (!in_flight(p, who, h.id))
            p->ids[who][p->sent[who]++] = h.id;
    }
    if (head[1] & 16)
        desk_release(p->d);
    if (head[1] & 32)
        leave(p, who);
}

/* Replies are whole, readable and never blame the daemon. */
static void check_reply(const struct desk_frame *f)
{
    Fp8d__V1__ErrorReply *r = desk_head(f);
    REQUIRE(r->head->code < 17 && r->head->code != INTERNAL);
    REQUIRE(!r->head->code == !r->head->message[0]);
    REQUIRE(utf8_printable(r->head->message, strlen(r->head->message)));
    fp8d__v1__error_reply__free_unpacked(r, NULL);
}

/* Final frames of an id that came so far. */
static unsigned replies(const struct player *p, unsigned who, uint64_t id)
{
    unsigned n = 0;
    for (const struct desk_frame *f = p->d->frames; f; f = f->next)
        n += f->conn == who + 1 && f->id == id && !(f->flags & FRAME_FLAG_MORE);
    return n;
}

static bool answered(const struct player *p)
{
    for (unsigned who = 0; who < 2; who++)
        for (unsigned i = 0; i < p->sent[who] && !p->gone[who]; i++)
            if (!replies(p, who, p->ids[who][i]))
                return false;
    return true;
}

static void check_replies(struct player *p)
{
    struct timespec nap = {0, 100000};
    for (unsigned i = 0; i < 50000 && !answered(p); i++) {
        desk_pump(p->d);
        nanosleep(&nap, NULL);
    }
    REQUIRE(answered(p));
    for (unsigned who = 0; who < 2; who++)
        for (unsigned i = 0; i < p->sent[who]; i++)
            REQUIRE(p->ids[who][i] == SAME_ID || replies(p, who, p->ids[who][i]) <= 1);
    for (const struct desk_frame *f = p->d->frames; f; f = f->next)
        if (!(f->flags & FRAME_FLAG_MORE))
            check_reply(f);
}

static void wait_for_the_end(struct desk *d)
{
    struct timespec nap = {0, 100000};
    for (unsigned i = 0; i < 50000 && d->rpc->session_count; i++) {
        desk_pump(d);
        if (d->rpc->session_count)
            nanosleep(&nap, NULL);
    }
    REQUIRE(!d->rpc->session_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t blocks = mem_live_blocks();
    struct player p = {.d = table(), .next_id = 1000};
    for (unsigned n = 0; n < FRAMES_MAX && size >= 4 && size - 4 >= data[2]; n++) {
        size_t used = 4u + data[2];
        play(&p, data, data + 4);
        data += used;
        size -= used;
    }
    desk_release(p.d);
    check_replies(&p);
    leave(&p, 0);
    leave(&p, 1);
    wait_for_the_end(p.d);
    desk_free(p.d);
    REQUIRE(mem_live_blocks() == blocks);
    return 0;
}
