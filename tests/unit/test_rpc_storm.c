/* test_rpc_storm.c - clients that do anything at any time and leave without a word, with a compute
 * queue and a loader that run on threads of their own: run it under ThreadSanitizer too. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- fixture --- */

static struct served S;
static char text[1024];
static int file;

static void open_served(void)
{
    file = served_file(2);
    served_open(&S, NULL, 2);
}

static void close_served(void)
{
    served_close(&S);
    close(file);
}

/* --- helpers: one request of chance --- */

static uint64_t seed = 1;

static uint32_t chance(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void send_put(uint64_t conn, uint64_t id)
{
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    uint64_t dims[] = {3, 32};
    float factor = 2.0f;
    m.tensor_id = id;
    m.tensor = &ref;
    ref.dtype = FP8D__V1__DTYPE__DTYPE_F8_E5M2;
    ref.n_dims = 2;
    ref.dims = dims;
    ref.n_scale_inv = 1;
    ref.scale_inv = &factor;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = 96;
    desk_send(S.d, conn, REQUEST_PUT_TENSOR, &m.base, S.x, 96, NULL, 0);
}

static void send_load(uint64_t conn)
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadAttachRequest a = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char *name = str("f");
    int fd = dup(file);
    b.load_id = a.load_id = c.load_id = 1 + chance(3);
    b.model = str("guest");
    a.names = &name;
    a.n_names = 1;
    c.progress = true;
    desk_send(S.d, conn, REQUEST_LOAD_BEGIN, &b.base, NULL, 0, NULL, 0);
    desk_send(S.d, conn, REQUEST_LOAD_ATTACH, &a.base, NULL, 0, &fd, 1);
    desk_send(S.d, conn, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, 0);
}

static void send_any(uint64_t conn)
{
    Fp8d__V1__GetTensorRequest g = FP8D__V1__GET_TENSOR_REQUEST__INIT;
    Fp8d__V1__FreeTensorRequest f = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    Fp8d__V1__CancelRequest c = FP8D__V1__CANCEL_REQUEST__INIT;
    Fp8d__V1__QueryScalingRequest q = FP8D__V1__QUERY_SCALING_REQUEST__INIT;
    g.tensor_id = f.tensor_id = 1 + chance(3);
    c.id = S.d->next_id - chance(4);
    q.model = str("m");
    q.history = true;
    switch (chance(8)) {
    case 0:
        send_put(conn, g.tensor_id);
        break;
    case 1:
        desk_send(S.d, conn, REQUEST_GET_TENSOR, &g.base, NULL, 0, NULL, 0);
        break;
    case 2:
        desk_send(S.d, conn, REQUEST_FREE_TENSOR, &f.base, NULL, 0, NULL, 0);
        break;
    case 3:
        desk_send(S.d, conn, REQUEST_CANCEL, &c.base, NULL, 0, NULL, 0);
        break;
    case 4:
        desk_send(S.d, conn, REQUEST_QUERY_SCALING, &q.base, NULL, 0, NULL, 0);
        break;
    case 5:
        send_load(conn);
        break;
    default:
        (void)served_forward(&S, conn, NULL, 0);
    }
}

/* What came for guests that did not wait for it. */
static void forget_frames(void)
{
    while (S.d->frames) {
        struct desk_frame *next = S.d->frames->next;
        desk_frame_free(S.d->frames);
        S.d->frames = next;
    }
    S.d->frames_last = &S.d->frames;
}

/* Until all guests' sessions are gone. */
static void settle(void)
{
    for (unsigned i = 0; i < 50000 && S.d->rpc->session_count != 2; i++) {
        desk_pump(S.d);
        usleep(100);
    }
    ck_assert_uint_eq(S.d->rpc->session_count, 2);
}

START_TEST(storm_of_guests_leaves_the_model_alone)
{
    /* 300 guests send up to 12 requests each that change nothing of model "m" and leave in the
     * middle: its state, its output and the ledger are as before. */
    struct picture p;
    Fp8d__V1__DropModelRequest d = FP8D__V1__DROP_MODEL_REQUEST__INIT;
    picture_take(&S, &p);
    for (uint64_t guest = 10; guest < 310; guest++) {
        desk_open(S.d, guest);
        for (unsigned i = chance(12); i; i--)
            send_any(guest);
        if (chance(3) == 0)
            usleep(chance(500));
        desk_close(S.d, guest);
    }
    settle();
    forget_frames();
    d.model = str("guest");
    unsigned code = desk_call(S.d, BYSTANDER, REQUEST_DROP_MODEL, &d.base, NULL, 0, NULL, text);
    ck_assert(code == OK || code == NOT_FOUND);
    picture_same(&S, &p);
    picture_fini(&p);
}
END_TEST

START_TEST(storm_answers_every_request_once)
{
    /* Guests that stay: each request gets exactly one final reply, whatever the order. */
    for (uint64_t guest = 10; guest < 60; guest++) {
        desk_open(S.d, guest);
        uint64_t first = S.d->next_id + 1;
        for (unsigned i = 1 + chance(12); i; i--)
            send_any(guest);
        uint64_t last = S.d->next_id;
        for (uint64_t id = first; id <= last; id++) {
            struct desk_frame *f = desk_take(S.d, guest, id);
            ck_assert_msg(f != NULL, "request %llu is not answered", (unsigned long long)id);
            desk_frame_free(f);
        }
        desk_pump(S.d);
        ck_assert_ptr_null(S.d->frames);
        desk_close(S.d, guest);
    }
    settle();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_storm");
    TCase *t = tcase_create("storm");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, storm_of_guests_leaves_the_model_alone);
    tcase_add_test(t, storm_answers_every_request_once);
    suite_add_tcase(s, t);
    return run_suite(s);
}
