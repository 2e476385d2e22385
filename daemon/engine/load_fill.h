/* load_fill.h - the big tensors of a load: read, converted and quantised on the loader's queue,
 * into what load_reserve has set aside. Loader thread.
 *
 * A weight of the file becomes what the options say: high precision as it is, FP8 primary verbatim,
 * FP8 primary cast with the scale that the site has by then (primary_fp8), or high precision from
 * FP8 (dequantize). Rule: docs/numerics.md section 3, "Load into FP8 primary".
 */
#ifndef FP8D_DAEMON_ENGINE_LOAD_FILL_H
#define FP8D_DAEMON_ENGINE_LOAD_FILL_H

#include "daemon/engine/load.h"

/* After load_state_apply. The queue is idle when it returns, also on failure. */
int load_fill(struct load *ld, struct queue *q, struct fault *f);

#endif
