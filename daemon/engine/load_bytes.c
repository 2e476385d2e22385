#include "daemon/engine/load_bytes.h"

#include "base/text.h"
#include "daemon/engine/queuewait.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define PROGRESS_NS 100000000u

/* At most ten a second, and none while one waits for the engine thread. */
static void report_progress(struct load *ld)
{
    const struct exec *x = ld->engine->o.exec;
    uint64_t now = x->now(x->self);
    if (!ld->on_progress || now - ld->progress_ns < PROGRESS_NS ||
        atomic_exchange(&ld->progress_posted, true))
        return;
    ld->progress_ns = now;
    x->post(x->self, &ld->progress_task);
}

int load_bytes_check(struct load *ld, struct fault *f)
{
    const struct exec *x = ld->engine->o.exec;
    if (!atomic_load(&ld->cancel) && !x->cancelled(x->self, ld->lease->conn))
        return 0;
    return fault_set(f, FP8D_ECANCELLED, "the load was cancelled after %llu of %llu bytes",
                     (unsigned long long)atomic_load(&ld->bytes_done),
                     (unsigned long long)atomic_load(&ld->bytes_total));
}

static int at_tensor(const struct safetensors_tensor *t, struct fault *f)
{
    char name[256];
    return fault_wrap(f, "tensor \"%s\"", text_escape(name, sizeof name, t->name, strlen(t->name)));
}

int load_bytes_block(struct load *ld, const struct safetensors_tensor *t, uint64_t at, size_t n,
                     void *out, struct fault *f)
{
    int rc = load_bytes_check(ld, f);
    if (rc)
        return rc;
    rc = io_read_full(ld->engine->o.io, ld->fd, out, n, t->offset + at, f);
    if (rc)
        return at_tensor(t, f);
    atomic_fetch_add(&ld->bytes_done, n);
    report_progress(ld);
    return 0;
}

int load_bytes_small(struct load *ld, const struct safetensors_tensor *t, void *out, size_t room,
                     struct fault *f)
{
    assert(t->bytes <= room); /* the claim has checked its form */
    return load_bytes_block(ld, t, 0, (size_t)t->bytes, out, f);
}

/* A block that the host cannot put in its place itself. */
static int send(struct load *ld, struct buffer *to, uint64_t at, size_t n, struct queue *q,
                struct fault *f)
{
    int rc = backend_copy(q, to, at, ld->staging, 0, n, f);
    return rc ? rc : queue_wait(q, f);
}

/* --- several threads --- */

struct reader {
    struct span_read *all;
    pthread_t thread;
    struct fault fault;
};

/* One tensor, whose spans are taken in order by whoever is free. */
struct span_read {
    struct load *ld;
    const struct safetensors_tensor *t;
    unsigned char *to;
    load_seen_cb seen;
    void *arg;
    _Atomic uint64_t next; /* byte */
    _Atomic bool stop;
    struct reader readers[LOAD_READERS]; /* 0 is the loader thread itself */
};

static int read_span(struct reader *r, uint64_t at)
{
    struct span_read *s = r->all;
    uint64_t left = s->t->bytes - at;
    size_t n = left < LOAD_SPAN ? (size_t)left : LOAD_SPAN;
    int rc = load_bytes_check(s->ld, &r->fault);
    if (rc)
        return rc;
    rc = io_read_full(s->ld->engine->o.io, s->ld->fd, s->to + at, n, s->t->offset + at, &r->fault);
    if (rc)
        return at_tensor(s->t, &r->fault);
    if (s->seen)
        s->seen(s->arg, s->to + at, n);
    atomic_fetch_add(&s->ld->bytes_done, n);
    return 0;
}

static void *read_spans(void *arg)
{
    struct reader *r = arg;
    struct span_read *s = r->all;
    uint64_t at;
    while (!atomic_load(&s->stop) && (at = atomic_fetch_add(&s->next, LOAD_SPAN)) < s->t->bytes) {
        if (read_span(r, at))
            atomic_store(&s->stop, true);
        else if (r == &s->readers[0])
            report_progress(s->ld);
    }
    return NULL;
}

static unsigned reader_count(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return cpus < 1 ? 1 : cpus < LOAD_READERS ? (unsigned)cpus : LOAD_READERS;
}

/* Fewer threads than wanted are fine. */
static int read_parallel(struct span_read *s, struct fault *f)
{
    unsigned n = 1;
    s->readers[0].all = s;
    for (; n < reader_count(); n++) {
        s->readers[n].all = s;
        if (pthread_create(&s->readers[n].thread, NULL, read_spans, &s->readers[n]))
            break;
    }
    (void)read_spans(&s->readers[0]);
    for (unsigned i = 1; i < n; i++)
        pthread_join(s->readers[i].thread, NULL);
    for (unsigned i = 0; i < n; i++)
        if (s->readers[i].fault.code) {
            *f = s->readers[i].fault;
            return f->code;
        }
    return 0;
}

/* --- whole tensors --- */

static int read_blocks(struct load *ld, const struct safetensors_tensor *t, struct buffer *to,
                       struct queue *q, load_seen_cb seen, void *arg, struct fault *f)
{
    int rc = 0;
    for (uint64_t at = 0; !rc && at < t->bytes;) {
        size_t n = t->bytes - at < LOAD_BLOCK ? (size_t)(t->bytes - at) : LOAD_BLOCK;
        unsigned char *block = to->host ? (unsigned char *)to->host + at : ld->staging->host;
        rc = load_bytes_block(ld, t, at, n, block, f);
        if (!rc && seen)
            seen(arg, block, n);
        if (!rc && !to->host)
            rc = send(ld, to, at, n, q, f);
        at += n;
    }
    return rc;
}

int load_bytes_all(struct load *ld, const struct safetensors_tensor *t, struct buffer *to,
                   struct queue *q, load_seen_cb seen, void *arg, struct fault *f)
{
    int rc;
    if (to->host && t->bytes >= LOAD_PARALLEL) {
        struct span_read s = {.ld = ld, .t = t, .to = to->host, .seen = seen, .arg = arg};
        rc = read_parallel(&s, f);
    } else {
        rc = read_blocks(ld, t, to, q, seen, arg, f);
    }
    if (!rc)
        load_bytes_done(ld);
    return rc;
}

void load_bytes_done(struct load *ld)
{
    atomic_fetch_add(&ld->tensors_done, 1);
}
