/* Who begins, and when: session.h says by which rules. */
#include "daemon/rpc/line.h"
#include "daemon/rpc/rpc.h"

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
        if (!line_succeeded(s, head->needs[i]) && !runs(s, head->needs[i]))
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
    rpc->o.engine->adopted = NULL;
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
    if (s->running || s->ahead || s->closed)
        return false;
    const struct rpc *rpc = s->rpc;
    if (!takes_turns(s->first) || rpc->draining)
        return true;
    if (!rpc->computing)
        return !rpc->ahead; /* behind one that is back in line: it comes back, too */
    if (s->first->row->pins)
        return !rpc->changing;
    return !rpc->changing && !request_changes(s->first) && rpc->computing < rpc->o.overlap;
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
    ahead_begins(s, rq);
    e->ahead = true;
    e->adopted = NULL;
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
    if (rpc->draining && rpc->drained && !rpc->running && !rpc->ahead && !rpc->queued) {
        rpc_drained_cb drained = rpc->drained;
        rpc->drained = NULL;
        drained(rpc->drained_arg);
    }
}
