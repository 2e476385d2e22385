#include "tests/unit/desk.h"

#include "base/checked.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/rig.h"

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* --- the inline twin --- */

static void post(void *self, struct exec_task *task)
{
    struct desk *d = self;
    pthread_mutex_lock(d->lock);
    task->next = NULL;
    *d->tasks_last = task;
    d->tasks_last = &task->next;
    pthread_mutex_unlock(d->lock);
}

static void reply(void *self, struct reply *r)
{
    struct desk *d = self;
    struct desk_frame *f = calloc(1, sizeof *f);
    assert(f);
    f->conn = r->conn;
    f->id = r->id;
    f->type = r->type;
    f->flags = r->flags;
    f->meta_len = r->meta_len;
    f->meta = malloc(r->meta_len + 1);
    f->payload_len = r->payload_len;
    f->payload = aligned_alloc(64, (r->payload_len + 64) & ~(uint64_t)63);
    assert(f->meta && f->payload);
    memcpy(f->meta, r->meta, r->meta_len);
    if (r->payload_len)
        memcpy(f->payload, r->payload, r->payload_len);
    r->done(r);
    *d->frames_last = f;
    d->frames_last = &f->next;
    if (f->id && !(f->flags & FRAME_FLAG_MORE))
        d->handler.replied(d->handler.self, f->conn, f->id);
}

static bool cancelled(void *self, uint64_t conn)
{
    struct desk *d = self;
    return d->gone && d->gone == conn;
}

static uint64_t now(void *self)
{
    return ((struct desk *)self)->now_ns;
}

bool desk_step(struct desk *d)
{
    pthread_mutex_lock(d->lock);
    struct exec_task *t = d->tasks;
    if (t) {
        d->tasks = t->next;
        if (!d->tasks)
            d->tasks_last = &d->tasks;
    }
    pthread_mutex_unlock(d->lock);
    if (t)
        t->run(t);
    if (t && d->settles)
        desk_settle(d);
    return t != NULL;
}

struct settled {
    struct queue_note note; /* first */
    sem_t fired;
};

static void settled(struct queue_note *note, int status)
{
    (void)status;
    sem_post(&((struct settled *)note)->fired);
}

void desk_settle(struct desk *d)
{
    struct settled s = {.note = {.done = settled}};
    sem_init(&s.fired, 0, 0);
    queue_notify(d->engine->queue, &s.note);
    while (sem_wait(&s.fired)) {
    }
    sem_destroy(&s.fired);
}

int64_t desk_blocks(void)
{
    return rig_cuda() ? 0 : mem_live_blocks();
}

void desk_pump(struct desk *d)
{
    while (desk_step(d)) {
    }
}

static void move_tasks(struct desk *d, struct exec_task **from, struct exec_task ***from_last,
                       struct exec_task ***to_last)
{
    pthread_mutex_lock(d->lock);
    if (*from) {
        **to_last = *from;
        *to_last = *from_last;
        *from = NULL;
        *from_last = from;
    }
    pthread_mutex_unlock(d->lock);
}

void desk_set_aside(struct desk *d)
{
    move_tasks(d, &d->tasks, &d->tasks_last, &d->aside_last);
}

void desk_resume(struct desk *d)
{
    move_tasks(d, &d->aside, &d->aside_last, &d->tasks_last);
    if (!d->held)
        desk_pump(d);
}

void desk_hold(struct desk *d)
{
    d->held = true;
}

void desk_release(struct desk *d)
{
    d->held = false;
    desk_pump(d);
}

/* --- life --- */

static void open_engine(struct desk *d, const struct engine_options *o, unsigned threads)
{
    struct fault f = {0};
    struct cpu_options cpu = {.threads = threads ? threads : 1, .inline_queues = !threads};
    struct engine_options e = o ? *o : (struct engine_options){0};
    int rc = rig_cuda() ? rig_open_cuda(&d->backend, &f) : cpu_open(&cpu, &d->backend, &f);
    if (rc)
        (void)fprintf(stderr, "no backend: %s\n", f.text);
    assert(!rc);
    ledger_init(&d->ledger, (uint64_t)4 << 30);
    e.backend = e.backend ? e.backend : d->backend;
    e.ledger = e.ledger ? e.ledger : &d->ledger;
    e.exec = &d->exec;
    e.io = e.io ? e.io : &io_posix;
    e.resident_max = e.resident_max ? e.resident_max : (uint64_t)1 << 30;
    e.contexts_max = e.contexts_max ? e.contexts_max : 64;
    e.tensors_max = e.tensors_max ? e.tensors_max : 64;
    rc = engine_new(&e, &d->engine, &f);
    assert(!rc);
    (void)rc;
}

struct desk *desk_new(const struct engine_options *o, unsigned threads)
{
    struct desk *d = calloc(1, sizeof *d);
    struct fault f = {0};
    assert(d);
    d->lock = malloc(sizeof(pthread_mutex_t));
    pthread_mutex_init(d->lock, NULL);
    d->tasks_last = &d->tasks;
    d->frames_last = &d->frames;
    d->aside_last = &d->aside;
    d->now_ns = 1000000000;
    d->exec = (struct exec){d, post, reply, cancelled, now, NULL};
    open_engine(d, o, threads);
    d->settles = rig_cuda() && !threads;
    struct rpc_options r = {
        .engine = d->engine,
        .exec = &d->exec,
        .caps = {FRAME_META_DEFAULT, FRAME_PAYLOAD_DEFAULT, FRAME_FDS_MAX},
        .in_flight_max = 64,
        .connections_max = 1024,
        .instance_id = 7,
        .version = "test",
        .backend_reason = "the test asked for it",
    };
    int rc = rpc_new(&r, &d->rpc, &f);
    assert(!rc);
    (void)rc;
    d->handler = rpc_handler(d->rpc);
    return d;
}

void desk_free(struct desk *d)
{
    desk_pump(d);
    d->settles = false; /* its queue goes */
    engine_free(d->engine);
    desk_pump(d);
    rpc_free(d->rpc);
    while (d->frames) {
        struct desk_frame *next = d->frames->next;
        desk_frame_free(d->frames);
        d->frames = next;
    }
    assert(ledger_used(&d->ledger) == 0);
    rig_close_backend(d->backend);
    pthread_mutex_destroy(d->lock);
    free(d->lock);
    free(d);
}

void desk_open_raw(struct desk *d, uint64_t conn)
{
    struct fault f = {0};
    struct net_peer peer = {conn, 100 + (pid_t)conn, 1000, 1000};
    int rc = d->handler.opened(d->handler.self, &peer, &f);
    assert(!rc);
    (void)rc;
    if (!d->held)
        desk_pump(d);
}

void desk_open(struct desk *d, uint64_t conn)
{
    Fp8d__V1__HelloRequest m = FP8D__V1__HELLO_REQUEST__INIT;
    desk_open_raw(d, conn);
    unsigned code = desk_call(d, conn, REQUEST_HELLO, &m.base, NULL, 0, NULL, NULL);
    assert(code == 0);
    (void)code;
}

void desk_close(struct desk *d, uint64_t conn)
{
    d->handler.closed(d->handler.self, conn);
    if (!d->held)
        desk_pump(d);
}

/* --- frames in --- */

uint64_t desk_send_raw(struct desk *d, uint64_t conn, const struct frame_header *h,
                       const void *meta, const void *payload, int *fds, enum net_verdict *verdict,
                       struct fault *f)
{
    void *request = NULL;
    void *to = NULL;
    enum net_verdict v =
        d->handler.begin(d->handler.self, conn, h, meta, d->now_ns, &request, f);
    if (v == NET_TAKE && h->payload_len) {
        v = d->handler.payload(d->handler.self, request, true, &to, f);
        if (v == NET_TAKE)
            memcpy(to, payload, h->payload_len);
    }
    if (v == NET_TAKE)
        d->handler.complete(d->handler.self, request, fds, h->fds);
    else
        for (unsigned i = 0; i < h->fds; i++)
            close(fds[i]);
    d->verdict = v;
    if (verdict)
        *verdict = v;
    if (!d->held)
        desk_pump(d);
    return h->id;
}

uint64_t desk_send(struct desk *d, uint64_t conn, uint16_t type, const ProtobufCMessage *m,
                   const void *payload, uint64_t payload_len, int *fds, unsigned nfds)
{
    struct fault f = {0};
    size_t len = protobuf_c_message_get_packed_size(m);
    unsigned char *meta = malloc(len + 1);
    assert(meta);
    protobuf_c_message_pack(m, meta);
    struct frame_header h = {
        .type = type,
        .id = ++d->next_id,
        .meta_len = (uint32_t)len,
        .payload_len = payload_len,
        .fds = (uint16_t)nfds,
    };
    uint64_t id = desk_send_raw(d, conn, &h, meta, payload, fds, NULL, &f);
    free(meta);
    return id;
}

/* --- frames out --- */

void desk_frame_free(struct desk_frame *f)
{
    if (!f)
        return;
    free(f->meta);
    free(f->payload);
    free(f);
}

static struct desk_frame *unlink_frame(struct desk *d, struct desk_frame **at)
{
    struct desk_frame *f = *at;
    *at = f->next;
    if (!*at)
        d->frames_last = at;
    f->next = NULL;
    return f;
}

/* Metas of frames with flag MORE are joined in front of the final one's, but for loads, whose MORE
 * frames are progress. */
static struct desk_frame *join(struct desk_frame *head, struct desk_frame *tail)
{
    if (head && tail->type != REQUEST_LOAD_COMMIT) {
        unsigned char *meta = malloc((size_t)head->meta_len + tail->meta_len + 1);
        assert(meta);
        memcpy(meta, head->meta, head->meta_len);
        memcpy(meta + head->meta_len, tail->meta, tail->meta_len);
        free(tail->meta);
        tail->meta = meta;
        tail->meta_len += head->meta_len;
    }
    desk_frame_free(head);
    return tail;
}

struct desk_frame *desk_peek(struct desk *d, uint64_t conn, uint64_t id)
{
    struct desk_frame *final = d->frames;
    while (final && !(final->conn == conn && final->id == id && !(final->flags & FRAME_FLAG_MORE)))
        final = final->next;
    if (!final)
        return NULL;
    struct desk_frame *whole = NULL;
    for (struct desk_frame **at = &d->frames; *at;) {
        if ((*at)->conn == conn && (*at)->id == id)
            whole = join(whole, unlink_frame(d, at));
        else
            at = &(*at)->next;
    }
    return whole;
}

struct desk_frame *desk_take(struct desk *d, uint64_t conn, uint64_t id)
{
    struct timespec nap = {0, 200000};
    for (unsigned i = 0; i < 100000; i++) {
        desk_pump(d);
        struct desk_frame *f = desk_peek(d, conn, id);
        if (f)
            return f;
        nanosleep(&nap, NULL);
    }
    return NULL;
}

Fp8d__V1__ErrorReply *desk_head(const struct desk_frame *f)
{
    Fp8d__V1__ErrorReply *r = fp8d__v1__error_reply__unpack(NULL, f->meta_len, f->meta);
    assert(r && r->head);
    return r;
}

unsigned desk_call(struct desk *d, uint64_t conn, uint16_t type, const ProtobufCMessage *m,
                   const void *payload, uint64_t payload_len, struct desk_frame **frame, char *text)
{
    uint64_t id = desk_send(d, conn, type, m, payload, payload_len, NULL, 0);
    struct desk_frame *f = desk_take(d, conn, id);
    assert(f);
    Fp8d__V1__ErrorReply *r = desk_head(f);
    unsigned code = r->head->code;
    if (text)
        (void)snprintf(text, 1024, "%s", r->head->message);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    if (frame && !code)
        *frame = f;
    else
        desk_frame_free(f);
    return code;
}
