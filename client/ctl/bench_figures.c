#include "client/ctl/bench_figures.h"

void bench_figures_fini(struct bench_figures *g)
{
    samples_fini(&g->latency);
    samples_fini(&g->device);
    samples_fini(&g->outside);
    *g = (struct bench_figures){0};
}

uint64_t bench_figures_payload(const struct bench_plan *p, enum bench_plane plane)
{
    return plane == BENCH_INLINE ? bench_plan_input_bytes(p) + bench_plan_output_bytes(p) : 0;
}

struct bench_rates bench_figures_rates(const struct bench_plan *p, const struct bench_figures *g)
{
    double rate = g->seconds > 0 ? (double)g->requests / g->seconds : 0;
    double median_s = (double)samples_percentile(&g->device, 50) / 1e9;
    return (struct bench_rates){
        .forwards_per_s = rate,
        .gb_per_s = rate * (double)bench_figures_payload(p, g->plane) / 1e9,
        .tflops = rate * bench_plan_flop(p) / 1e12,
        .device_tflops = median_s > 0 ? bench_plan_flop(p) / median_s / 1e12 : 0,
    };
}
