#include "daemon/rpc/caller.h"

#include "base/mem.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"
#include "proto/requests.h"

#include <stddef.h>

struct caller *caller_new(struct rpc *rpc, const struct net_peer *peer, struct session *s)
{
    struct caller *c = mem_zalloc(sizeof *c);
    if (!c)
        return NULL;
    c->rpc = rpc;
    c->conn = peer->conn;
    c->peer = *peer;
    c->session = s;
    c->classes = CLASS_INSPECT | CLASS_RUN | CLASS_TRAIN | CLASS_ADMIN;
    /* One beyond the caps: the request that is being refused. */
    c->room = rpc->o.in_flight_max + CALLER_NOW_EXTRA + 1;
    c->entries = mem_array(c->room, sizeof *c->entries);
    if (!c->entries) {
        mem_free(c);
        return NULL;
    }
    return c;
}

void caller_free(struct caller *c)
{
    if (!c)
        return;
    mem_free(c->entries);
    mem_free(c);
}

static void close_on_engine(struct exec_task *task)
{
    struct caller *c = (struct caller *)(void *)((char *)task - offsetof(struct caller, close));
    session_close(c->session);
    caller_free(c);
}

void caller_end(struct caller *c)
{
    c->close.run = close_on_engine;
    c->rpc->o.exec->post(c->rpc->o.exec->self, &c->close);
}

static struct caller_entry *find(const struct caller *c, uint64_t id)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->entries[i].id == id)
            return &c->entries[i];
    return NULL;
}

bool caller_has(const struct caller *c, uint64_t id)
{
    return find(c, id) != NULL;
}

void caller_add(struct caller *c, uint64_t id)
{
    if (c->count < c->room)
        c->entries[c->count++] = (struct caller_entry){.id = id};
}

int caller_admit(struct caller *c, uint64_t id, bool ordered, struct fault *f)
{
    uint32_t cap = ordered ? c->rpc->o.in_flight_max : CALLER_NOW_EXTRA;
    uint32_t *count = ordered ? &c->ordered : &c->now;
    struct caller_entry *e = find(c, id);
    if (*count >= cap || !e) {
        int rc = fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                           "%u %s of this connection are in flight, the cap is %u", *count,
                           ordered ? "requests" : "questions", cap);
        f->stage = STAGE_QUEUE;
        f->retry_after_ms = 10;
        return rc;
    }
    ++*count;
    e->admitted = true;
    e->ordered = ordered;
    return 0;
}

void caller_remove(struct caller *c, uint64_t id)
{
    struct caller_entry *e = find(c, id);
    if (!e)
        return;
    if (e->admitted && e->ordered)
        c->ordered--;
    else if (e->admitted)
        c->now--;
    *e = c->entries[--c->count];
}
