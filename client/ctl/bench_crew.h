/* bench_crew.h - all clients of 'fp8ctl bench', a thread each, through one series together. */
#ifndef FP8D_CLIENT_CTL_BENCH_CREW_H
#define FP8D_CLIENT_CTL_BENCH_CREW_H

#include "base/fault.h"
#include "client/ctl/bench_client.h"

/* Run the series on all of them, from one moment on, and wait for the last. *seconds is the time
 * between that moment and the last reply. Fails for want of a thread or memory, or with the first
 * client's failure. */
int bench_crew_run(struct bench_client *clients, unsigned count, const struct bench_series *series,
                   double *seconds, struct fp8d_error *err);

#endif
