/* bench_report.h - what 'fp8ctl bench' prints. */
#ifndef FP8D_CLIENT_CTL_BENCH_REPORT_H
#define FP8D_CLIENT_CTL_BENCH_REPORT_H

#include "client/ctl/bench_figures.h"
#include "client/ctl/ctl.h"

/* A table, or with --json an object; an exit code. */
int bench_report(struct ctl *ctl, const struct bench_plan *p, const struct bench_figures *planes,
                 size_t count);

#endif
