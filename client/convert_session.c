/* Replies about the session and the server, and those that say nothing but their head. */
#include "client/convert.h"

#include <errno.h>

int convert_nomem(struct fault *f)
{
    return fault_set(f, -ENOMEM, "no memory for the reply");
}

#define EMPTY(Name, snake)                                                                         \
    int convert_##snake(struct fp8d_result *r, const Fp8d__V1__##Name##Reply *m, struct fault *f)  \
    {                                                                                              \
        (void)r, (void)m, (void)f;                                                                 \
        return 0;                                                                                  \
    }
EMPTY(Ping, ping)
EMPTY(LoadBegin, load_begin)
EMPTY(LoadAttach, load_attach)
EMPTY(DropModel, drop_model)
EMPTY(EditWeight, edit_weight)
EMPTY(SaveBegin, save_begin)
EMPTY(SaveAttach, save_attach)
EMPTY(PutTensor, put_tensor)
EMPTY(FreeTensor, free_tensor)
EMPTY(BeginScope, begin_scope)
EMPTY(DropContext, drop_context)
#undef EMPTY

static void take_caps(const Fp8d__V1__Caps *m, struct fp8d_server *s)
{
    s->meta_bytes = m->meta_bytes;
    s->payload_bytes = m->payload_bytes;
    s->descriptors = m->descriptors;
    s->in_flight = m->in_flight;
    s->resident_bytes = m->resident_bytes;
    s->contexts = m->contexts;
    s->tensors = m->tensors;
    s->connections = m->connections;
}

int convert_hello(struct fp8d_result *r, const Fp8d__V1__HelloReply *m, struct fault *f)
{
    struct fp8d_server *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    s->name = m->server_name;
    s->version = m->server_version;
    s->schema_major = m->schema_major;
    s->schema_minor = m->schema_minor;
    s->min_schema_minor = m->min_schema_minor;
    s->capabilities = (const char *const *)m->capabilities;
    s->capabilities_count = m->n_capabilities;
    s->backend = m->backend;
    s->device = m->device;
    s->instance_id = m->instance_id;
    if (m->caps)
        take_caps(m->caps, s);
    r->body = s;
    return 0;
}

int convert_cancel(struct fp8d_result *r, const Fp8d__V1__CancelReply *m, struct fault *f)
{
    enum fp8d_cancel_outcome *outcome = arena_alloc(&r->arena, sizeof *outcome);
    if (!outcome)
        return convert_nomem(f);
    *outcome = (enum fp8d_cancel_outcome)m->outcome;
    r->body = outcome;
    return 0;
}

int convert_status(struct fp8d_result *r, const Fp8d__V1__StatusReply *m, struct fault *f)
{
    struct fp8d_status *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_status){
        .server_version = m->server_version,
        .instance_id = m->instance_id,
        .pid = m->pid,
        .uptime_ms = m->uptime_ms,
        .backend = m->backend,
        .device = m->device,
        .backend_reason = m->backend_reason,
        .memory_used = m->memory_used,
        .memory_limit = m->memory_limit,
        .memory_peak = m->memory_peak,
        .connections = m->connections,
        .models = m->models,
        .contexts = m->contexts,
        .scopes = m->scopes,
        .queued = m->queued,
        .running = m->running,
        .requests_done = m->requests_done,
        .forwards_done = m->forwards_done,
        .progress_age_ms = m->progress_age_ms,
        .draining = m->draining,
        .device_memory_used = m->device_memory_used,
        .device_memory_total = m->device_memory_total,
        .plans = m->plans,
        .parameters = m->parameters,
        .model_bytes = m->model_bytes,
    };
    r->body = s;
    return 0;
}
