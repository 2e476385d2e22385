/* fp8ctl status, fp8ctl ping. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static int status_json(struct ctl *ctl, const struct fp8d_status *s)
{
    char instance[32];
    json_t *o = json_begin(ctl);
    (void)snprintf(instance, sizeof instance, "%016" PRIx64, s->instance_id);
    json_put(ctl, o, "server_version", json_text(s->server_version));
    json_put(ctl, o, "instance", json_string(instance));
    json_put(ctl, o, "pid", json_u64(s->pid));
    json_put(ctl, o, "uptime_ms", json_u64(s->uptime_ms));
    json_put(ctl, o, "backend", json_text(s->backend));
    json_put(ctl, o, "device", json_text(s->device));
    json_put(ctl, o, "backend_reason", json_text(s->backend_reason));
    json_put(ctl, o, "plans", json_text(s->plans));
    json_put(ctl, o, "memory_used", json_u64(s->memory_used));
    json_put(ctl, o, "memory_limit", json_u64(s->memory_limit));
    json_put(ctl, o, "memory_peak", json_u64(s->memory_peak));
    json_put(ctl, o, "device_memory_used", json_u64(s->device_memory_used));
    json_put(ctl, o, "device_memory_total", json_u64(s->device_memory_total));
    json_put(ctl, o, "connections", json_u64(s->connections));
    json_put(ctl, o, "models", json_u64(s->models));
    json_put(ctl, o, "parameters", json_u64(s->parameters));
    json_put(ctl, o, "model_bytes", json_u64(s->model_bytes));
    json_put(ctl, o, "contexts", json_u64(s->contexts));
    json_put(ctl, o, "scopes", json_u64(s->scopes));
    json_put(ctl, o, "queued", json_u64(s->queued));
    json_put(ctl, o, "running", json_u64(s->running));
    json_put(ctl, o, "requests_done", json_u64(s->requests_done));
    json_put(ctl, o, "forwards_done", json_u64(s->forwards_done));
    json_put(ctl, o, "progress_age_ms", json_u64(s->progress_age_ms));
    json_put(ctl, o, "draining", json_boolean(s->draining));
    return json_end(ctl, o);
}

static void status_print(const struct fp8d_status *s)
{
    char text[CTL_TEXT], a[32], b[32], c[32];
    printf("server      fp8d %s, pid %" PRIu64 ", up %.1f s%s\n", ctl_text(text, s->server_version),
           s->pid, (double)s->uptime_ms / 1000, s->draining ? ", stopping" : "");
    printf("instance    %016" PRIx64 "\n", s->instance_id);
    printf("backend     %s", ctl_text(text, s->backend));
    printf(" on %s\n", ctl_text(text, s->device));
    printf("            %s\n", ctl_text(text, s->backend_reason));
    if (*s->plans)
        printf("plans       %s\n", ctl_text(text, s->plans));
    printf("memory      %s of %s, at most %s so far\n", bytes_text(s->memory_used, a),
           bytes_text(s->memory_limit, b), bytes_text(s->memory_peak, c));
    if (s->device_memory_total)
        printf("gpu memory  %s of %s\n", bytes_text(s->device_memory_used, a),
               bytes_text(s->device_memory_total, b));
    printf("holds       models %u, contexts %u, scopes %u; connections %u\n", s->models,
           s->contexts, s->scopes, s->connections);
    if (s->parameters)
        printf("parameters  %" PRIu64 ", held in %s: %.2f bytes each\n", s->parameters,
               bytes_text(s->model_bytes, a), (double)s->model_bytes / (double)s->parameters);
    printf("requests    %u queued, %u running, %" PRIu64 " done, of them %" PRIu64 " forwards\n",
           s->queued, s->running, s->requests_done, s->forwards_done);
    if (s->progress_age_ms)
        printf("progress    %" PRIu64 " ms ago\n", s->progress_age_ms);
}

int cmd_status(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = ctl_connect(ctl);
    (void)a;
    if (rc)
        return rc;
    if (fp8d_get_status(ctl->c, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    if (ctl->json)
        rc = status_json(ctl, fp8d_result_status(r));
    else
        status_print(fp8d_result_status(r));
    fp8d_result_free(r);
    return rc;
}

/* --- ping --- */

struct times {
    uint32_t count;
    double min, sum, max; /* microseconds */
};

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void times_add(struct times *t, double us)
{
    t->min = t->count && t->min < us ? t->min : us;
    t->max = t->count && t->max > us ? t->max : us;
    t->sum += us;
    t->count++;
}

static int ping_result(struct ctl *ctl, const struct times *t)
{
    double mean = t->sum / t->count;
    if (!ctl->json) {
        printf("%u %s, round trip min %.1f us, mean %.1f us, max %.1f us\n", t->count,
               t->count == 1 ? "reply" : "replies", t->min, mean, t->max);
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "count", json_u64(t->count));
    json_put(ctl, o, "min_us", json_f64(t->min));
    json_put(ctl, o, "mean_us", json_f64(mean));
    json_put(ctl, o, "max_us", json_f64(t->max));
    return json_end(ctl, o);
}

int cmd_ping(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct times t = {0};
    uint32_t count = args_has(a, "count") ? args_number(a, "count") : 1;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < count; i++) {
        double began = now_us();
        if (fp8d_ping(ctl->c, NULL, NULL, &err))
            return ctl_failed(ctl, &err);
        times_add(&t, now_us() - began);
    }
    return ping_result(ctl, &t);
}
