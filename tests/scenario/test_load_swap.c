/* Swap under traffic: four clients forward without pause while their model is loaded over 50 times.
 * Every reply is the old version's or the new one's, stamped so; none fails; memory returns to one
 * copy. A load is followed by the next once a client has seen its version: the FP8 copy of a weight
 * is made by the first forward, so that a version which none saw would be smaller. */
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

#define CLIENTS 4
#define LOADS 50
#define OUT 64
#define IN 48
#define TOKENS 9

/* --- fixture: two files, and what each gives --- */

struct traffic {
    struct desk *desk;
    struct ask loader, client[CLIENTS];
    struct blob file[2];
    float *x;
    float want[2][TOKENS * OUT];
    unsigned replies[2];
    uint64_t last[CLIENTS]; /* incarnation that a client saw last */
    uint64_t first;         /* of the model that was there first */
};

static struct ask_forward request(const struct traffic *t)
{
    return (struct ask_forward){.model = "m", .layer = "l", .x = ask_f32(t->x, TOKENS, IN)};
}

static void traffic_open(struct traffic *t, unsigned threads, bool primary)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    memset(t, 0, sizeof *t);
    t->desk = desk_new(NULL, threads);
    t->loader = ask_open(t->desk, 1);
    t->x = draw_normal(3, TOKENS * IN, 1.0);
    o.primary_fp8 = primary;
    for (unsigned i = 0; i < 2; i++) {
        struct stash s = {0};
        void *w = stash_draw(10 + i, DTYPE_BF16, OUT * IN, 0.3);
        stash_put(&s, "l.weight", DTYPE_BF16, 2, OUT, IN, w);
        t->file[i] = stash_blob(&s);
        stash_free(&s);
        free(w);
        ck_assert_uint_eq(stash_load(&t->loader, "m", &t->file[i], &o, NULL), 0);
        struct ask_forward f = request(t);
        ck_assert_uint_eq(ask_forward(&t->loader, &f), 0);
        memcpy(t->want[i], f.y, sizeof t->want[i]);
        t->first = f.reply->head->incarnation;
        ask_forward_free(&f);
    }
    ck_assert(memcmp(t->want[0], t->want[1], sizeof t->want[0]) != 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        t->client[i] = ask_open(t->desk, 2 + i);
}

static void traffic_close(struct traffic *t)
{
    for (unsigned i = 0; i < CLIENTS; i++)
        ask_close(&t->client[i]);
    ask_close(&t->loader);
    desk_free(t->desk);
    for (unsigned i = 0; i < 2; i++)
        blob_free(&t->file[i]);
    free(t->x);
}

/* --- helpers --- */

static uint64_t send_forward(struct traffic *t, unsigned i)
{
    struct ask_forward f = request(t);
    t->client[i].later = true;
    (void)ask_forward(&t->client[i], &f);
    return t->client[i].sent;
}

static uint64_t send_load(struct traffic *t, const struct blob *b, bool primary)
{
    Fp8d__V1__LoadBeginRequest m = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__LoadAttachRequest a = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char *name = (char *)(uintptr_t) "f";
    int fd = blob_fd(b);
    m.load_id = a.load_id = c.load_id = 9;
    m.model = (char *)(uintptr_t) "m";
    m.options = &o;
    o.primary_fp8 = primary;
    a.n_names = 1;
    a.names = &name;
    (void)desk_send(t->desk, 1, REQUEST_LOAD_BEGIN, &m.base, NULL, 0, NULL, 0);
    (void)desk_send(t->desk, 1, REQUEST_LOAD_ATTACH, &a.base, NULL, 0, &fd, 1);
    return desk_send(t->desk, 1, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, 0);
}

static bool is_seen(const struct traffic *t, uint64_t incarnation)
{
    for (unsigned i = 0; i < CLIENTS; i++)
        if (t->last[i] >= incarnation)
            return true;
    return false;
}

/* A reply that has come is that of the incarnation it is stamped with; each client's go up. */
static void check_reply(struct traffic *t, unsigned i, const struct desk_frame *frame)
{
    Fp8d__V1__ForwardReply *r = fp8d__v1__forward_reply__unpack(NULL, frame->meta_len, frame->meta);
    ck_assert_ptr_nonnull(r);
    ck_assert_msg(r->head->code == 0, "%s", r->head->message);
    ck_assert_uint_ge(r->head->incarnation, t->last[i]);
    t->last[i] = r->head->incarnation;
    /* loads alternate, beginning with file 0; each takes one incarnation and one version */
    unsigned which = (r->head->incarnation - t->first) % 2 ? 0 : 1;
    ck_assert_uint_eq(r->head->weight_version, 2 + r->head->incarnation - t->first);
    ck_assert_uint_eq(frame->payload_len, sizeof t->want[which]);
    ck_assert_msg(!memcmp(frame->payload, t->want[which], sizeof t->want[which]),
                  "an output is not that of the version it is stamped with");
    t->replies[which]++;
    fp8d__v1__forward_reply__free_unpacked(r, NULL);
}

/* --- cases --- */

START_TEST(swap_under_traffic)
{
    struct traffic t;
    unsigned threads = (unsigned)_i % 2 ? 2 : 0;
    bool primary = _i / 2;
    traffic_open(&t, threads, primary);
    uint64_t one = ledger_used(&t.desk->ledger), sent[CLIENTS], load = 0;
    for (unsigned i = 0; i < CLIENTS; i++)
        sent[i] = send_forward(&t, i);
    for (unsigned loads = 0; loads < LOADS || !is_seen(&t, t.first + loads);) {
        if (!load && loads < LOADS && is_seen(&t, t.first + loads))
            load = send_load(&t, &t.file[loads % 2], primary);
        desk_pump(t.desk);
        for (unsigned i = 0; i < CLIENTS; i++) {
            struct desk_frame *f = desk_peek(t.desk, 2 + i, sent[i]);
            if (f) {
                check_reply(&t, i, f);
                sent[i] = send_forward(&t, i);
            }
            desk_frame_free(f);
        }
        struct desk_frame *f = desk_peek(t.desk, 1, load);
        if (f) {
            Fp8d__V1__ErrorReply *head = desk_head(f);
            ck_assert_msg(head->head->code == 0, "%s", head->head->message);
            fp8d__v1__error_reply__free_unpacked(head, NULL);
            desk_frame_free(f);
            load = 0;
            loads++;
        }
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct desk_frame *f = desk_take(t.desk, 2 + i, sent[i]);
        check_reply(&t, i, f);
        desk_frame_free(f);
    }
    ck_assert(t.replies[0] >= LOADS / 2 && t.replies[1] >= LOADS / 2);
    ck_assert_uint_eq(ledger_used(&t.desk->ledger), one);
    traffic_close(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("load_swap");
    TCase *c = tcase_create("load_swap");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, swap_under_traffic, 0, 4);
    suite_add_tcase(s, c);
    return run_suite(s);
}
