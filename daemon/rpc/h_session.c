/* Hello, Ping, Cancel, Status. */
#include "daemon/engine/load.h"
#include "daemon/engine/save.h"
#include "daemon/rpc/caller.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"

#include <string.h>
#include <unistd.h>

static char *const capabilities[] = {
    "load", "save", "create", "recipe", "edit", "tensors", "forward", "scopes", "calibrate", "contexts", "backward",
    "recompute", "optimizer", "training_state", /* in saves */ "check", "scaling",
};

static void fill_caps(const struct rpc *rpc, Fp8d__V1__Caps *caps)
{
    const struct engine_options *e = &rpc->o.engine->o;
    caps->meta_bytes = rpc->o.caps.meta;
    caps->payload_bytes = rpc->o.caps.payload;
    caps->descriptors = rpc->o.caps.fds;
    caps->in_flight = rpc->o.in_flight_max;
    caps->resident_bytes = e->resident_max;
    caps->contexts = e->contexts_max;
    caps->tensors = e->tensors_max;
    caps->connections = rpc->o.connections_max;
}

/* A client that needs another major, or more than this server has, is told both versions. */
static int check_schema(const Fp8d__V1__HelloRequest *m, const struct rpc *rpc, struct fault *f)
{
    bool major = m->schema_major && m->schema_major != SCHEMA_MAJOR;
    bool minor = m->min_schema_minor > SCHEMA_MINOR;
    const uint32_t oldest = SCHEMA_MIN_MINOR;
    bool old = m->schema_major && m->schema_minor < oldest;
    if (!major && !minor && !old)
        return 0;
    return fault_set(f, FP8D_EUNIMPLEMENTED,
                     "the client speaks schema %u.%u and needs at least %u.%u; this server (fp8d %s) "
                     "speaks %d.%d and serves clients from %d.%d on: upgrade the %s",
                     m->schema_major, m->schema_minor, m->schema_major, m->min_schema_minor,
                     rpc->o.version, SCHEMA_MAJOR, SCHEMA_MINOR, SCHEMA_MAJOR, SCHEMA_MIN_MINOR,
                     old || (major && m->schema_major < SCHEMA_MAJOR) ? "client" : "server");
}

void rpc_hello(struct request *rq)
{
    const Fp8d__V1__HelloRequest *in = (const Fp8d__V1__HelloRequest *)(const void *)rq->message;
    struct rpc *rpc = rq->rpc;
    struct caller *c = idmap_get(&rpc->callers, rq->conn);
    struct fault f = {.stage = STAGE_DECODE};
    int rc = check_schema(in, rpc, &f);
    if (!rc && c->greeted)
        rc = fault_set(&f, FP8D_EFAILED_PRECONDITION, "Hello was answered already");
    if (!rc && (strlen(in->client_name) > 128 || strlen(in->client_version) > 128))
        rc = fault_set(&f, FP8D_EINVALID_ARGUMENT,
                       "client_name and client_version have %zu and %zu bytes, at most 128",
                       strlen(in->client_name), strlen(in->client_version));
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    c->greeted = true;
    struct backend_info info;
    backend_info(rpc->o.engine->o.backend, &info);
    Fp8d__V1__HelloReply m = FP8D__V1__HELLO_REPLY__INIT;
    Fp8d__V1__Caps caps = FP8D__V1__CAPS__INIT;
    fill_caps(rpc, &caps);
    m.framing_version = FRAME_VERSION;
    m.schema_major = SCHEMA_MAJOR;
    m.schema_minor = SCHEMA_MINOR;
    m.min_schema_minor = SCHEMA_MIN_MINOR;
    m.server_name = (char *)(uintptr_t)"fp8d";
    m.server_version = (char *)(uintptr_t)rpc->o.version;
    m.n_capabilities = sizeof capabilities / sizeof capabilities[0];
    m.capabilities = (char **)(uintptr_t)capabilities;
    m.caps = &caps;
    m.backend = (char *)(uintptr_t)info.name;
    m.device = info.device;
    m.instance_id = rpc->o.instance_id;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_ping(struct request *rq)
{
    Fp8d__V1__PingReply m = FP8D__V1__PING_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_cancel(struct request *rq)
{
    const Fp8d__V1__CancelRequest *in = (const Fp8d__V1__CancelRequest *)(const void *)rq->message;
    struct session *s = rq->session;
    struct fault f = {.stage = STAGE_QUEUE};
    Fp8d__V1__CancelReply m = FP8D__V1__CANCEL_REPLY__INIT;
    struct request *queued = session_unqueue(s, in->id);
    if (queued) {
        fault_set(&f, FP8D_ECANCELLED, "cancelled in line; it was not executed");
        request_fail(queued, &f);
        m.outcome = FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_REMOVED;
    } else if (s->running && s->running->header.id == in->id) {
        bool stops = s->running->load || s->running->save;
        m.outcome = stops ? FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_STOPPING
                          : FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_RUNNING;
        if (s->running->load)
            load_cancel(s->running->load);
        if (s->running->save)
            save_cancel(s->running->save);
    } else if (s->ahead && s->ahead->header.id == in->id) {
        m.outcome = FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_RUNNING;
    } else {
        fault_set(&f, FP8D_ENOT_FOUND, "id %llu is not in flight on this connection",
                  (unsigned long long)in->id);
        request_fail(rq, &f);
        return;
    }
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_status(struct request *rq)
{
    struct rpc *rpc = rq->rpc;
    struct engine *e = rpc->o.engine;
    Fp8d__V1__StatusReply m = FP8D__V1__STATUS_REPLY__INIT;
    struct backend_info info;
    backend_info(e->o.backend, &info);
    m.server_version = (char *)(uintptr_t)rpc->o.version;
    m.instance_id = rpc->o.instance_id;
    m.pid = (uint64_t)getpid();
    m.uptime_ms = (e->o.exec->now(e->o.exec->self) - e->started_ns) / 1000000;
    m.backend = (char *)(uintptr_t)info.name;
    m.device = info.device;
    m.backend_reason = (char *)(uintptr_t)rpc->o.backend_reason;
    m.memory_used = ledger_used(e->o.ledger);
    m.memory_limit = e->o.ledger->cap;
    m.memory_peak = ledger_peak(e->o.ledger);
    m.connections = rpc->session_count;
    m.models = (uint32_t)e->model_count;
    for (size_t i = 0; i < e->model_count; i++) {
        m.parameters += model_parameters(e->models[i]);
        m.model_bytes += model_bytes(e->models[i]);
    }
    m.queued = rpc->queued;
    m.running = rpc->running + rpc->ahead;
    m.requests_done = rpc->requests_done;
    m.forwards_done = e->forwards_done;
    m.progress_age_ms = rpc_progress_age_ms(rpc);
    m.contexts = e->contexts;
    m.scopes = e->scopes;
    m.draining = rpc->draining;
    m.device_memory_used = info.unified ? 0 : info.memory_used;
    m.device_memory_total = info.unified ? 0 : info.memory_total;
    m.plans = (char *)(uintptr_t)plans_name(e->o.plans);
    request_answer(rq, &m.base, NULL, 0);
}
