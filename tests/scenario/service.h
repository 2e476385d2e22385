/* service.h - the real daemon over its socket, for tests through libfp8d. Every failure of the
 * fixture is a failed check. One thread. */
#ifndef FP8D_TESTS_SCENARIO_SERVICE_H
#define FP8D_TESTS_SCENARIO_SERVICE_H

#include "tests/bench/daemon_process.h"

#include "client/fp8d.h"

#include <stdbool.h>

extern struct daemon_process server;
extern bool told; /* to stop, by the test */
extern struct fp8d_error err;

void service_start(void);
/* Every test ends with a clean stop: exit status 0, which the daemon gives only when all handles of
 * its loop are closed. */
void service_stop(void);

struct fp8d *client(void); /* another one */

/* Load a checkpoint of one layer "big" [n, n], all weights 1/64. */
void load_square(struct fp8d *c, const char *model, uint64_t n);

#endif
