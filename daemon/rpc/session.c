#include "daemon/rpc/session.h"

#include "daemon/engine/load.h"
#include "daemon/engine/save.h"
#include "daemon/rpc/rpc.h"

#include <stddef.h>

struct session *session_new(struct rpc *rpc, const struct net_peer *peer)
{
    struct session *s = mem_zalloc(sizeof *s);
    if (!s)
        return NULL;
    s->outcomes = mem_array(OUTCOMES_KEPT, sizeof *s->outcomes);
    if (!s->outcomes) {
        mem_free(s);
        return NULL;
    }
    s->rpc = rpc;
    s->conn = peer->conn;
    s->last = &s->first;
    lease_init(&s->lease, rpc->o.engine, peer->conn, peer->pid, peer->uid);
    return s;
}

void session_open(struct session *s)
{
    s->rpc->session_count++;
}

void session_discard(struct session *s)
{
    lease_fini(&s->lease);
    mem_free(s->outcomes);
    mem_free(s);
}

static void session_free(struct session *s)
{
    s->rpc->session_count--;
    session_discard(s);
}

/* --- the ring of sessions with something in line --- */

static void ring_add(struct session *s)
{
    struct rpc *rpc = s->rpc;
    if (s->next)
        return;
    if (!rpc->ring) {
        s->next = s->prev = s;
        rpc->ring = s;
        return;
    }
    s->next = rpc->ring;
    s->prev = rpc->ring->prev;
    s->prev->next = s;
    s->next->prev = s;
}

static void ring_remove(struct session *s)
{
    struct rpc *rpc = s->rpc;
    if (!s->next)
        return;
    if (s->next == s) {
        rpc->ring = NULL;
    } else {
        s->prev->next = s->next;
        s->next->prev = s->prev;
        if (rpc->ring == s)
            rpc->ring = s->next;
    }
    s->next = s->prev = NULL;
}

/* --- the line --- */

static struct request *line_take(struct session *s)
{
    struct request *rq = s->first;
    s->first = rq->next;
    if (!s->first) {
        s->last = &s->first;
        ring_remove(s);
    }
    rq->next = NULL;
    s->rpc->queued--;
    return rq;
}

static void line_put_back(struct session *s, struct request *rq)
{
    rq->next = s->first;
    if (!s->first)
        s->last = &rq->next;
    s->first = rq;
    s->rpc->queued++;
    ring_add(s);
}

void session_enqueue(struct session *s, struct request *rq)
{
    rq->next = NULL;
    *s->last = rq;
    s->last = &rq->next;
    s->rpc->queued++;
    ring_add(s);
    sched_run(s->rpc);
}

struct request *session_unqueue(struct session *s, uint64_t id)
{
    struct request **at = &s->first;
    while (*at && (*at)->header.id != id)
        at = &(*at)->next;
    struct request *rq = *at;
    if (!rq)
        return NULL;
    *at = rq->next;
    if (!*at)
        s->last = at;
    if (!s->first)
        ring_remove(s);
    s->rpc->queued--;
    return rq;
}

void session_close(struct session *s)
{
    s->closed = true;
    while (s->first)
        request_free(line_take(s));
    if (s->running && s->running->load)
        load_cancel(s->running->load);
    if (s->running && s->running->save)
        save_cancel(s->running->save);
    if (!s->running)
        session_free(s);
    /* A scope that ended with the lease may have held others back. */
}

static void remember(struct session *s, uint64_t id, bool ok)
{
    s->outcomes[s->outcome_at] = (struct outcome){id, ok};
    s->outcome_at = (s->outcome_at + 1) % OUTCOMES_KEPT;
}

static bool succeeded(const struct session *s, uint64_t id)
{
    for (unsigned i = 0; i < OUTCOMES_KEPT; i++) {
        const struct outcome *o = &s->outcomes[(s->outcome_at - 1 - i) % OUTCOMES_KEPT];
        if (o->id == id)
            return o->ok;
    }
    return false;
}

/* --- running --- */

/* False for computing requests whose decisions no other of their kind can spoil: they read scales
 * and versions, and leave at most a copy of a weight behind that any of them would have made. */
static bool changes(const struct request *rq)
{
    if (rq->row->type == REQUEST_CHECK_NUMERICS || rq->row->type == REQUEST_RECOMPUTE)
        return false;
    if (rq->row->type != REQUEST_FORWARD)
        return true;
    const Fp8d__V1__ForwardRequest *m = (const Fp8d__V1__ForwardRequest *)(const void *)rq->message;
    return m->mode == FP8D__V1__MODE__MODE_TRAIN || m->mode == FP8D__V1__MODE__MODE_CALIBRATE;
}

static void run_begins(struct session *s, struct request *rq)
{
    struct rpc *rpc = s->rpc;
    s->running = rq;
    rpc->running++;
    if (!rq->row->computes)
        return;
    rpc->computing++;
    rpc->changing = changes(rq);
}

static void run_ends(struct session *s)
{
    struct rpc *rpc = s->rpc;
    const struct request *rq = s->running;
    s->running = NULL;
    rpc->running--;
    if (!rq->row->computes)
        return;
    rpc->computing--;
    rpc->changing = false; /* if it was so, this was the only one */
}

void session_finished(struct session *s, struct request *rq, bool ok)
{
    struct rpc *rpc = s->rpc;
    remember(s, rq->header.id, ok);
    if (s->running != rq)
        return;
    run_ends(s);
    rpc->requests_done++;
    if (s->ahead) {
        run_begins(s, s->ahead);
        s->ahead = NULL;
    }
    if (s->closed && !s->running)
        session_free(s);
    sched_run(rpc);
}

static void sched_again(struct exec_task *task)
{
    struct rpc *rpc = (struct rpc *)(void *)((char *)task - offsetof(struct rpc, again_task));
    rpc->again = false;
    sched_run(rpc);
}

/* Refused, it waits for the one that still runs. Failed, it begins again once what it held is let
 * go, which is after this. */
bool session_take_back(struct session *s, struct request *rq)
{
    struct rpc *rpc = s->rpc;
    bool refused = s->ahead == rq;
    rq->ahead = false;
    rq->waits = true;
    if (!refused && s->closed)
        return false;
    if (refused)
        s->ahead = NULL;
    else
        run_ends(s);
    line_put_back(s, rq);
    if (refused || rpc->again)
        return true;
    rpc->again = true;
    rpc->again_task.run = sched_again;
    rpc->o.exec->post(rpc->o.exec->self, &rpc->again_task);
    return true;
}

/* --- scheduling --- */

/* The request that another is to begin ahead of the end of: should it fail, the other begins again,
 * and is asked again what it needs. */
static bool runs(const struct session *s, uint64_t id)
{
    return s->running && s->running->header.id == id;
}

/* Why a request that reached the head of its line must not run; 0 if it may. */
static int refuse(struct session *s, struct request *rq, struct fault *f)
{
    const Fp8d__V1__RequestHead *head = ((struct request_message *)rq->message)->head;
    const struct exec *x = s->rpc->o.exec;
    uint64_t waited_ms = (x->now(x->self) - rq->received_ns) / 1000000;
    if (s->rpc->draining)
        return fault_set(f, FP8D_EUNAVAILABLE,
                         "the server is stopping; the request was not executed");
    if (head && head->deadline_ms && waited_ms >= head->deadline_ms)
        return fault_set(f, FP8D_EDEADLINE_EXCEEDED,
                         "head.deadline_ms is %u, the request waited %llu ms and was not executed",
                         head->deadline_ms, (unsigned long long)waited_ms);
    for (size_t i = 0; head && i < head->n_needs; i++)
        if (!succeeded(s, head->needs[i]) && !runs(s, head->needs[i]))
            return fault_set(f, FP8D_EABORTED,
                             "head.needs: request %llu failed or is unknown on this connection",
                             (unsigned long long)head->needs[i]);
    return 0;
}

static void start(struct session *s)
{
    struct rpc *rpc = s->rpc;
    struct request *rq = line_take(s);
    struct fault f = {.stage = STAGE_QUEUE};
    rq->started_ns = rpc->o.exec->now(rpc->o.exec->self);
    if (refuse(s, rq, &f)) {
        request_fail(rq, &f);
        return;
    }
    run_begins(s, rq);
    rq->row->run(rq);
}

/* A step writes weights in place: a save that began beside one would hold some of either version.
 */
static bool takes_turns(const struct request *rq)
{
    return rq->row->computes || rq->row->pins;
}

static bool can_start(const struct session *s)
{
    if (s->running || s->closed)
        return false;
    const struct rpc *rpc = s->rpc;
    if (!takes_turns(s->first) || !rpc->computing || rpc->draining)
        return true;
    if (s->first->row->pins)
        return !rpc->changing;
    return !rpc->changing && !changes(s->first) && rpc->computing < rpc->o.overlap;
}

/* One round: the first session in turn that can start something does. Where a request that takes
 * turns has to wait, none behind it starts, and the next round begins with it: else requests that
 * run beside each other could keep one that changes state waiting for ever. */
static bool start_one(struct rpc *rpc)
{
    struct session *s = rpc->ring;
    bool held = false;
    if (!s)
        return false;
    do {
        bool turns = takes_turns(s->first) && !rpc->draining;
        if (can_start(s) && !(held && turns)) {
            if (!held)
                rpc->ring = s->next; /* the next round begins behind it */
            start(s);
            return true;
        }
        if (!held && turns && !s->running && !s->closed) {
            held = true;
            rpc->ring = s;
        }
        s = s->next;
    } while (s != rpc->ring);
    return false;
}

/* The steps of a training loop, whose own time has not come, but only that of what lies before. */
static bool may_begin_ahead(struct session *s, struct request *rq)
{
    const struct request_message *m = (const struct request_message *)rq->message;
    const Fp8d__V1__ForwardRequest *forward = (const Fp8d__V1__ForwardRequest *)(const void *)m;
    bool trains = rq->row->type == REQUEST_BACKWARD || rq->row->type == REQUEST_STEP ||
                  (rq->row->type == REQUEST_FORWARD && forward->mode == FP8D__V1__MODE__MODE_TRAIN);
    struct fault none = {0};
    return trains && !rq->waits && !refuse(s, rq, &none);
}

/* The session whose change computes, if it has something in line and no other is due before that.
 */
static struct session *ahead_of_whom(const struct rpc *rpc)
{
    struct session *found = NULL, *s = rpc->ring;
    if (!s || !rpc->changing || rpc->draining || !rpc->o.engine->flight)
        return NULL;
    do {
        bool computes = s->running && s->running->row->computes;
        if (!s->running && !s->closed)
            return NULL;
        if (computes && !s->closed && !s->ahead)
            found = s;
        s = s->next;
    } while (s != rpc->ring);
    return found;
}

static void begin_ahead(struct rpc *rpc)
{
    struct session *s = ahead_of_whom(rpc);
    struct engine *e = rpc->o.engine;
    if (!s || !may_begin_ahead(s, s->first))
        return;
    struct request *rq = line_take(s);
    rq->started_ns = rpc->o.exec->now(rpc->o.exec->self);
    rq->ahead = true;
    s->ahead = rq;
    e->ahead = true;
    rq->row->run(rq);
    e->ahead = false;
    rpc->begun_ahead += s->ahead == rq;
}

/* Handlers that finish at once come back here: the outermost call does the rounds. */
void sched_run(struct rpc *rpc)
{
    if (rpc->scheduling)
        return;
    rpc->scheduling = true;
    while (start_one(rpc)) {
    }
    begin_ahead(rpc);
    rpc->scheduling = false;
    if (rpc->draining && rpc->drained && !rpc->running && !rpc->queued) {
        rpc_drained_cb drained = rpc->drained;
        rpc->drained = NULL;
        drained(rpc->drained_arg);
    }
}
