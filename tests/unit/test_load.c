/* test_load.c - a load is a transaction: whatever fails, whenever, and whoever leaves, the model
 * that is served stays as it was; what succeeds replaces it whole. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture: io that misbehaves on order, over real descriptors --- */

static struct {
    struct io io;
    _Atomic int fail_in;   /* countdown to a pread that returns fail_with; -1: never */
    _Atomic int fail_with; /* a negative errno, 0: end of file, 1: one byte only */
    _Atomic int touch_in;  /* countdown to a pread before which the file changes */
    _Atomic int calls;
    _Atomic int stall_in; /* countdown to a pread that waits for `go` */
    _Atomic bool stalled, go;
    _Atomic int open_now; /* descriptors opened and not closed */
} W;

static bool tick(_Atomic int *countdown)
{
    return atomic_load(countdown) >= 0 && atomic_fetch_sub(countdown, 1) == 0;
}

static int64_t wild_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    atomic_fetch_add(&W.calls, 1);
    if (tick(&W.touch_in))
        ck_assert_int_eq(futimens(fd, (struct timespec[]){{5, 0}, {5, 0}}), 0);
    if (tick(&W.stall_in)) {
        atomic_store(&W.stalled, true);
        while (!atomic_load(&W.go))
            usleep(100);
    }
    if (tick(&W.fail_in)) {
        if (W.fail_with <= 0)
            return W.fail_with;
        len = 1;
    }
    return io_posix.pread(self, fd, buf, len, off);
}

static int wild_close(void *self, int fd)
{
    atomic_fetch_sub(&W.open_now, 1);
    return io_posix.close(self, fd);
}

static struct served S;
static struct picture P;
static char text[1024];

static void open_wild(void)
{
    memset(&W, 0, sizeof W);
    W.io = io_posix;
    W.io.pread = wild_pread;
    W.io.close = wild_close;
    W.fail_in = W.touch_in = W.stall_in = -1;
    struct engine_options o = {.io = &W.io};
    served_open(&S, &o, 0);
    W.open_now = 0;
    picture_take(&S, &P);
}

static void close_wild(void)
{
    picture_fini(&P);
    served_close(&S);
}

/* --- helpers --- */

static uint64_t begin(uint64_t conn, uint64_t load_id, const char *model)
{
    Fp8d__V1__LoadBeginRequest m = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    m.load_id = load_id;
    m.model = str(model);
    return desk_send(S.d, conn, REQUEST_LOAD_BEGIN, &m.base, NULL, 0, NULL, 0);
}

static uint64_t attach(uint64_t conn, uint64_t load_id, int fd)
{
    Fp8d__V1__LoadAttachRequest m = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    char *name = str("some file");
    m.load_id = load_id;
    m.n_names = 1;
    m.names = &name;
    atomic_fetch_add(&W.open_now, 1);
    return desk_send(S.d, conn, REQUEST_LOAD_ATTACH, &m.base, NULL, 0, &fd, 1);
}

static uint64_t commit(uint64_t conn, uint64_t load_id, bool progress)
{
    Fp8d__V1__LoadCommitRequest m = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    m.load_id = load_id;
    m.progress = progress;
    return desk_send(S.d, conn, REQUEST_LOAD_COMMIT, &m.base, NULL, 0, NULL, 0);
}

static int wait_code(uint64_t conn, uint64_t id)
{
    struct desk_frame *f = desk_take(S.d, conn, id);
    ck_assert(f != NULL);
    Fp8d__V1__ErrorReply *r = desk_head(f);
    int code = (int)r->head->code;
    (void)snprintf(text, sizeof text, "%s", r->head->message);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
    return code;
}

/* Start a load of "m" whose pread number `n` stalls; returns the id of its commit once it does. */
static uint64_t stalled_load(uint64_t conn, int n)
{
    ck_assert_int_eq(wait_code(conn, begin(conn, 50, "m")), OK);
    ck_assert_int_eq(wait_code(conn, attach(conn, 50, served_file(3))), OK);
    W.stall_in = n;
    uint64_t id = commit(conn, 50, true);
    while (!atomic_load(&W.stalled))
        usleep(100);
    return id;
}

/* --- what fails while it reads --- */

START_TEST(load_read_fails_at_every_call)
{
    /* Every pread fails once, with errors of three kinds: the sentence names the file, the code
     * fits, the model stays, no descriptor is left open. */
    static const struct {
        int with, code;
    } rows[] = {{-EIO, INTERNAL}, {-EACCES, PERMISSION_DENIED}, {0, DATA_LOSS}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned failed = 0;
        for (int at = 0;; at++) {
            W.fail_with = rows[i].with;
            W.fail_in = at;
            W.open_now = 1;
            int code = (int)served_load_fd(&S, ATTACKER, "m2", served_file(2), text);
            ck_assert_int_eq(W.open_now, 0);
            if (!code)
                break;
            ck_assert_int_eq(code, rows[i].code);
            ck_assert_msg(strstr(text, "the-file"), "%s", text);
            picture_same(&S, &P);
            failed++;
        }
        ck_assert_uint_ge(failed, 4); /* length, header, two tensors */
        W.fail_in = -1;
        Fp8d__V1__DropModelRequest d = FP8D__V1__DROP_MODEL_REQUEST__INIT;
        d.model = str("m2");
        ck_assert_uint_eq(
            desk_call(S.d, ATTACKER, REQUEST_DROP_MODEL, &d.base, NULL, 0, NULL, text), OK);
        picture_same(&S, &P);
    }
}
END_TEST

START_TEST(load_reads_through_short_and_interrupted_calls)
{
    /* One byte at a time or EINTR is no error, at any call. */
    for (int at = 0; at < 5; at++) {
        W.fail_with = at % 2 ? 1 : -EINTR;
        W.fail_in = at;
        ck_assert_uint_eq(served_load_fd(&S, ATTACKER, "m2", served_file(2), text), OK);
    }
}
END_TEST

START_TEST(load_of_a_file_that_changes_is_refused)
{
    /* The file is touched before each of its reads: ABORTED, "changed while it was read". */
    for (int at = 0; at < 4; at++) {
        W.touch_in = at;
        ck_assert_uint_eq(served_load_fd(&S, ATTACKER, "m", served_file(2), text), ABORTED);
        ck_assert_msg(strstr(text, "changed while it was read") && strstr(text, "the-file"), "%s",
                      text);
        picture_same(&S, &P);
    }
}
END_TEST

/* --- cancel, and clients that leave --- */

START_TEST(load_cancel_stops_at_the_next_block)
{
    /* Cancel during any read: STOPPING, then CANCELLED, nothing changed, and the load is gone. */
    for (int at = 0; at < 4; at++) {
        Fp8d__V1__CancelRequest c = FP8D__V1__CANCEL_REQUEST__INIT;
        struct desk_frame *f = NULL;
        W.stalled = W.go = false;
        c.id = stalled_load(ATTACKER, at);
        ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_CANCEL, &c.base, NULL, 0, &f, text), OK);
        Fp8d__V1__CancelReply *r = fp8d__v1__cancel_reply__unpack(NULL, f->meta_len, f->meta);
        ck_assert_int_eq(r->outcome, FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_STOPPING);
        fp8d__v1__cancel_reply__free_unpacked(r, NULL);
        desk_frame_free(f);
        atomic_store(&W.go, true);
        ck_assert_int_eq(wait_code(ATTACKER, c.id), CANCELLED);
        picture_same(&S, &P);
        ck_assert_int_eq(wait_code(ATTACKER, commit(ATTACKER, 50, false)), NOT_FOUND);
        ck_assert_int_eq(W.open_now, 0);
    }
}
END_TEST

START_TEST(load_of_a_client_that_leaves_is_dropped)
{
    /* The client goes while its load reads, with another one begun and requests in line: nothing
     * changes, nothing is left. */
    for (int at = 0; at < 4; at++) {
        W.stalled = W.go = false;
        desk_open(S.d, 10 + (uint64_t)at);
        (void)stalled_load(10 + (uint64_t)at, at);
        (void)begin(10 + (uint64_t)at, 51, "other");
        (void)served_forward(&S, 10 + (uint64_t)at, NULL, 0);
        desk_close(S.d, 10 + (uint64_t)at);
        atomic_store(&W.go, true);
        for (unsigned i = 0; i < 20000 && S.d->rpc->session_count != 2; i++) {
            desk_pump(S.d);
            usleep(100);
        }
        ck_assert_uint_eq(S.d->rpc->session_count, 2);
        picture_same(&S, &P);
        ck_assert_int_eq(W.open_now, 0);
    }
}
END_TEST

START_TEST(load_begun_and_left_is_dropped)
{
    /* Loads that were begun and attached, never committed, end with their connection and give the
     * descriptor back. */
    desk_open(S.d, 3);
    for (uint64_t i = 1; i < 6; i++) {
        ck_assert_int_eq(wait_code(3, begin(3, i, "m")), OK);
        ck_assert_int_eq(wait_code(3, attach(3, i, served_file(1))), OK);
    }
    ck_assert_int_eq(W.open_now, 5);
    desk_close(S.d, 3);
    ck_assert_int_eq(W.open_now, 0);
    picture_same(&S, &P);
}
END_TEST

START_TEST(load_count_of_a_connection_is_capped)
{
    /* Loads hold descriptors and memory that nobody else accounts for: their number has a cap. */
    uint64_t i = 1;
    int code = OK;
    while (i < 200 && !code)
        code = wait_code(ATTACKER, begin(ATTACKER, i++, "m"));
    ck_assert_int_eq(code, RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(text, "loads") && strstr(text, "the cap is"), "%s", text);
    ck_assert_int_eq(wait_code(BYSTANDER, begin(BYSTANDER, 1, "m")), OK);
}
END_TEST

/* --- what succeeds --- */

START_TEST(load_reports_and_shows_progress)
{
    /* Progress frames come before the reply when asked for; the report counts layers, parameters
     * and bytes and lists the names. */
    unsigned more = 0;
    W.stalled = W.go = false;
    uint64_t id = stalled_load(ATTACKER, 3);
    S.d->now_ns += 1000000000;
    atomic_store(&W.go, true);
    struct desk_frame *f = NULL;
    for (unsigned i = 0; i < 20000 && !f; i++) {
        desk_pump(S.d);
        for (struct desk_frame *p = S.d->frames; p; p = p->next)
            if (p->id == id && (p->flags & FRAME_FLAG_MORE))
                more++;
        f = desk_peek(S.d, ATTACKER, id);
        usleep(100);
    }
    ck_assert(f != NULL);
    Fp8d__V1__LoadCommitReply *r = fp8d__v1__load_commit_reply__unpack(NULL, f->meta_len, f->meta);
    ck_assert_uint_ge(more, 1);
    ck_assert_uint_eq(r->head->code, OK);
    ck_assert_uint_eq(r->report->layers, 3);
    ck_assert_uint_eq(r->report->parameters, 3 * 256);
    ck_assert_uint_ge(r->report->bytes_read, 3 * 1024);
    ck_assert_uint_eq(r->report->n_loaded, 3);
    ck_assert_str_eq(r->report->loaded[2], "l2");
    ck_assert_uint_eq(r->report->ignored_count, 0);
    ck_assert_uint_gt(r->head->incarnation, 0);
    ck_assert_uint_eq(r->head->weight_version, 2);
    fp8d__v1__load_commit_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
}
END_TEST

START_TEST(load_expect_is_checked_again_at_commit)
{
    /* The model changed between begin and commit: FAILED_PRECONDITION, and the newer one stays. */
    Fp8d__V1__LoadBeginRequest m = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    m.load_id = 60;
    m.model = str("m");
    m.expect = &x;
    x.weight_version = 1;
    uint64_t id = desk_send(S.d, ATTACKER, REQUEST_LOAD_BEGIN, &m.base, NULL, 0, NULL, 0);
    ck_assert_int_eq(wait_code(ATTACKER, id), OK);
    ck_assert_int_eq(wait_code(ATTACKER, attach(ATTACKER, 60, served_file(1))), OK);
    const struct desk_layer again = {"a", SERVED_OUT, SERVED_IN, S.wa, S.bias};
    ck_assert_uint_eq(desk_load(S.d, BYSTANDER, "m", &again, 1, NULL, text), OK);
    ck_assert_int_eq(wait_code(BYSTANDER, served_forward(&S, BYSTANDER, NULL, 9)),
                     OK); /* a scale */
    struct picture p;
    picture_take(&S, &p);
    ck_assert_int_eq(wait_code(ATTACKER, commit(ATTACKER, 60, false)), FAILED_PRECONDITION);
    ck_assert_msg(strstr(text, "expect.weight_version is 1") && strstr(text, "has 2"), "%s", text);
    picture_same(&S, &p);
    picture_fini(&p);
}
END_TEST

START_TEST(load_that_replaces_keeps_contexts_and_ends_scopes)
{
    /* A swap under an open scope and a context: the scope ends without an update, the context stays
     * until it is dropped, and the old version's memory goes with it. */
    Fp8d__V1__BeginScopeRequest b = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    Fp8d__V1__EndScopeRequest e = FP8D__V1__END_SCOPE_REQUEST__INIT;
    Fp8d__V1__DropContextRequest c = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    b.scope_id = e.scope_id = 4;
    b.model = str("m");
    c.context_id = 9;
    ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_BEGIN_SCOPE, &b.base, NULL, 0, NULL, text),
                      OK);
    ck_assert_int_eq(wait_code(ATTACKER, served_forward(&S, ATTACKER, NULL, 9)), OK);
    ck_assert_uint_eq(served_load_fd(&S, BYSTANDER, "m", served_file(1), text), OK);
    uint64_t with_context = ledger_used(&S.d->ledger);
    ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_END_SCOPE, &e.base, NULL, 0, NULL, text),
                      FAILED_PRECONDITION);
    ck_assert_msg(strstr(text, "replaced or unloaded"), "%s", text);
    ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_DROP_CONTEXT, &c.base, NULL, 0, NULL, text),
                      OK);
    ck_assert_uint_lt(ledger_used(&S.d->ledger), with_context);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("load");
    TCase *t = tcase_create("transaction");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_wild, close_wild);
    tcase_add_test(t, load_read_fails_at_every_call);
    tcase_add_test(t, load_reads_through_short_and_interrupted_calls);
    tcase_add_test(t, load_of_a_file_that_changes_is_refused);
    tcase_add_test(t, load_cancel_stops_at_the_next_block);
    tcase_add_test(t, load_of_a_client_that_leaves_is_dropped);
    tcase_add_test(t, load_begun_and_left_is_dropped);
    tcase_add_test(t, load_count_of_a_connection_is_capped);
    tcase_add_test(t, load_reports_and_shows_progress);
    tcase_add_test(t, load_expect_is_checked_again_at_commit);
    tcase_add_test(t, load_that_replaces_keeps_contexts_and_ends_scopes);
    suite_add_tcase(s, t);
    return run_suite(s);
}
