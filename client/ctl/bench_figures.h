/* bench_figures.h - what was measured on one plane, and what follows from it. Pure. */
#ifndef FP8D_CLIENT_CTL_BENCH_FIGURES_H
#define FP8D_CLIENT_CTL_BENCH_FIGURES_H

#include "client/ctl/bench_plan.h"
#include "client/ctl/samples.h"

/* Nanoseconds, sorted. Those of the device are of a second series, whose requests ask for its
 * clock: the first series does not pay for that. */
struct bench_figures {
    enum bench_plane plane;
    uint64_t requests;      /* of the first series, as are seconds and latency */
    double seconds;         /* from its begin to the last reply */
    struct samples latency; /* from the call that sends a forward to its reply */
    struct samples device;  /* of a forward on the device; empty: the server does not say */
    struct samples outside; /* latency less device, request by request */
};

struct bench_rates {
    double forwards_per_s;
    double gb_per_s;      /* 10^9 bytes of inputs and outputs that travelled */
    double tflops;        /* 10^12 operations a second, over all the time */
    double device_tflops; /* over the median of the device's time; 0: not known */
};

void bench_figures_fini(struct bench_figures *g); /* also zeroed */
uint64_t bench_figures_payload(const struct bench_plan *p, enum bench_plane plane); /* bytes a
                                                                                      forward */
struct bench_rates bench_figures_rates(const struct bench_plan *p, const struct bench_figures *g);

#endif
