#include "client/ctl/bench_report.h"

#include "client/ctl/json.h"
#include "client/ctl/names.h"
#include "client/ctl/table.h"

#include <inttypes.h>
#include <stdio.h>

/* With more than one forward under way, the time outside the device holds waiting for the others.
 */
static bool alone(const struct bench_plan *p)
{
    return p->clients == 1 && p->depth == 1;
}

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

/* --- JSON --- */

static json_t *spread_json(struct ctl *ctl, const struct samples *s)
{
    json_t *o = json_object();
    json_put(ctl, o, "p50", json_f64(us(samples_percentile(s, 50))));
    json_put(ctl, o, "p90", json_f64(us(samples_percentile(s, 90))));
    json_put(ctl, o, "p99", json_f64(us(samples_percentile(s, 99))));
    json_put(ctl, o, "max", json_f64(us(samples_max(s))));
    return o;
}

static json_t *layer_json(struct ctl *ctl, const struct bench_plan *p)
{
    json_t *o = json_object();
    json_put(ctl, o, "m", json_u64(p->m));
    json_put(ctl, o, "n", json_u64(p->n));
    json_put(ctl, o, "k", json_u64(p->k));
    return o;
}

static json_t *plane_json(struct ctl *ctl, const struct bench_plan *p,
                          const struct bench_figures *g)
{
    struct bench_rates r = bench_figures_rates(p, g);
    bool known = g->device.count != 0;
    json_t *outside = known ? json_f64(us(samples_percentile(&g->outside, 50))) : json_null();
    json_t *o = json_object();
    json_put(ctl, o, "plane", json_string(bench_plane_name(g->plane)));
    json_put(ctl, o, "requests", json_u64(g->requests));
    json_put(ctl, o, "seconds", json_f64(g->seconds));
    json_put(ctl, o, "forwards_per_s", json_f64(r.forwards_per_s));
    json_put(ctl, o, "latency_us", spread_json(ctl, &g->latency));
    json_put(ctl, o, "device_requests", json_u64(g->device.count));
    json_put(ctl, o, "device_us", known ? spread_json(ctl, &g->device) : json_null());
    json_put(ctl, o, "overhead_us", alone(p) ? json_incref(outside) : json_null());
    json_put(ctl, o, "waiting_us", alone(p) ? json_null() : json_incref(outside));
    json_decref(outside);
    json_put(ctl, o, "payload_bytes", json_u64(bench_figures_payload(p, g->plane)));
    json_put(ctl, o, "payload_gb_per_s",
             g->plane == BENCH_INLINE ? json_f64(r.gb_per_s) : json_null());
    json_put(ctl, o, "tflops", json_f64(r.tflops));
    json_put(ctl, o, "device_tflops", known ? json_f64(r.device_tflops) : json_null());
    return o;
}

static int report_json(struct ctl *ctl, const struct bench_plan *p,
                       const struct bench_figures *planes, size_t count)
{
    const struct fp8d_server *s = fp8d_server_info(ctl->c);
    json_t *o = json_begin(ctl);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_push(ctl, list, plane_json(ctl, p, &planes[i]));
    json_put(ctl, o, "backend", json_text(s->backend));
    json_put(ctl, o, "device", json_text(s->device));
    json_put(ctl, o, "layer", layer_json(ctl, p));
    json_put(ctl, o, "dtype", json_string(fp8d_dtype_name(p->dtype)));
    json_put(ctl, o, "mode", json_string(mode_name(p->mode)));
    json_put(ctl, o, "clients", json_u64(p->clients));
    json_put(ctl, o, "depth", json_u64(p->depth));
    json_put(ctl, o, "flop", json_f64(bench_plan_flop(p)));
    json_put(ctl, o, "planes", list);
    return json_end(ctl, o);
}

/* --- text --- */

static void title_print(const struct fp8d_server *s, const struct bench_plan *p)
{
    char backend[CTL_TEXT], device[CTL_TEXT];
    printf("layer     %" PRIu64 " tokens, [%" PRIu64 ", %" PRIu64 "] weight, %s, %s\n", p->m, p->n,
           p->k, fp8d_dtype_name(p->dtype), mode_name(p->mode));
    printf("clients   %u, each with %u under way\n", p->clients, p->depth);
    printf("backend   %s on %s\n", ctl_text(backend, s->backend), ctl_text(device, s->device));
}

static void plane_row(struct table *t, const struct bench_plan *p, const struct bench_figures *g)
{
    struct bench_rates r = bench_figures_rates(p, g);
    bool known = g->device.count != 0;
    table_row(t);
    table_cell(t, "%s", bench_plane_name(g->plane));
    table_cell(t, "%" PRIu64, g->requests);
    table_cell(t, "%.3f", g->seconds);
    table_cell(t, "%.1f", r.forwards_per_s);
    table_cell(t, "%.1f", us(samples_percentile(&g->latency, 50)));
    table_cell(t, "%.1f", us(samples_percentile(&g->latency, 90)));
    table_cell(t, "%.1f", us(samples_percentile(&g->latency, 99)));
    table_cell(t, "%.1f", us(samples_max(&g->latency)));
    table_cell(t, known ? "%.1f" : "-", us(samples_percentile(&g->device, 50)));
    table_cell(t, known ? "%.1f" : "-", us(samples_percentile(&g->outside, 50)));
    table_cell(t, g->plane == BENCH_INLINE ? "%.3f" : "-", r.gb_per_s);
    table_cell(t, "%.4g", r.tflops);
    table_cell(t, known ? "%.4g" : "-", r.device_tflops);
}

static int report_print(const struct ctl *ctl, const struct bench_plan *p,
                        const struct bench_figures *planes, size_t count)
{
    const char *columns[] = {"PLANE",
                             ">REQUESTS",
                             ">SECONDS",
                             ">FORWARDS/S",
                             ">P50",
                             ">P90",
                             ">P99",
                             ">MAX",
                             ">DEVICE",
                             alone(p) ? ">OVERHEAD" : ">WAITING",
                             ">GB/S",
                             ">TFLOP/S",
                             ">DEVICE TFLOP/S",
                             NULL};
    struct table t;
    title_print(fp8d_server_info(ctl->c), p);
    table_begin(&t, columns);
    for (size_t i = 0; i < count; i++)
        plane_row(&t, p, &planes[i]);
    if (!table_end(&t)) {
        struct fault f = {0};
        fault_set(&f, FP8D_EINTERNAL, "the table could not be printed");
        return ctl_fault(ctl, &f);
    }
    printf("Times of a request in microseconds; DEVICE and %s are medians.\n",
           alone(p) ? "OVERHEAD" : "WAITING");
    return CTL_OK;
}

int bench_report(struct ctl *ctl, const struct bench_plan *p, const struct bench_figures *planes,
                 size_t count)
{
    return ctl->json ? report_json(ctl, p, planes, count) : report_print(ctl, p, planes, count);
}
