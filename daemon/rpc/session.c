#include "daemon/rpc/line.h"

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

struct request *line_take(struct session *s)
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

/* To where it was: before those that came after it. */
static void line_put_back(struct session *s, struct request *rq)
{
    struct request **at = &s->first;
    while (*at && (*at)->turn < rq->turn)
        at = &(*at)->next;
    rq->next = *at;
    if (!*at)
        s->last = &rq->next;
    *at = rq;
    s->rpc->queued++;
    ring_add(s);
}

void session_enqueue(struct session *s, struct request *rq)
{
    rq->next = NULL;
    rq->turn = s->turns++;
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
    if (!s->running && !s->ahead)
        session_free(s);
    /* A scope that ended with the lease may have held others back. */
}

static void remember(struct session *s, uint64_t id, bool ok)
{
    s->outcomes[s->outcome_at] = (struct outcome){id, ok};
    s->outcome_at = (s->outcome_at + 1) % OUTCOMES_KEPT;
}

bool line_succeeded(const struct session *s, uint64_t id)
{
    for (unsigned i = 0; i < OUTCOMES_KEPT; i++) {
        const struct outcome *o = &s->outcomes[(s->outcome_at - 1 - i) % OUTCOMES_KEPT];
        if (o->id == id)
            return o->ok;
    }
    return false;
}

/* --- running --- */

bool request_changes(const struct request *rq)
{
    if (rq->row->type == REQUEST_CHECK_NUMERICS || rq->row->type == REQUEST_RECOMPUTE)
        return false;
    if (rq->row->type != REQUEST_FORWARD)
        return true;
    const Fp8d__V1__ForwardRequest *m = (const Fp8d__V1__ForwardRequest *)(const void *)rq->message;
    return m->mode == FP8D__V1__MODE__MODE_TRAIN || m->mode == FP8D__V1__MODE__MODE_CALIBRATE;
}

void run_begins(struct session *s, struct request *rq)
{
    struct rpc *rpc = s->rpc;
    s->running = rq;
    rpc->running++;
    if (!rq->row->computes)
        return;
    rpc->computing++;
    rpc->changing = request_changes(rq);
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

void ahead_begins(struct session *s, struct request *rq)
{
    s->ahead = rq;
    s->rpc->ahead++;
}

static void ahead_ends(struct session *s)
{
    s->ahead = NULL;
    s->rpc->ahead--;
}

void session_finished(struct session *s, struct request *rq, bool ok)
{
    struct rpc *rpc = s->rpc;
    remember(s, rq->header.id, ok);
    if (s->running != rq && s->ahead != rq)
        return;
    rpc->requests_done++;
    if (s->ahead == rq) { /* the one before it is back in line */
        ahead_ends(s);
    } else {
        run_ends(s);
        if (s->ahead) {
            run_begins(s, s->ahead);
            ahead_ends(s);
        }
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

/* Refused, it waits for the one that still runs. Else it begins again once what it held is let go,
 * which is after this. */
bool session_take_back(struct session *s, struct request *rq)
{
    struct rpc *rpc = s->rpc;
    bool refused = rpc->o.engine->ahead;
    if (s->closed)
        return false;
    rq->ahead = false;
    rq->waits = true;
    request_stamp(rq, 0, 0);
    if (s->ahead == rq)
        ahead_ends(s);
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
