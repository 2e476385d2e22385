/* load_reserve.h - memory for everything that a load will need, before the first big byte is read.
 * Loader thread. */
#ifndef FP8D_DAEMON_ENGINE_LOAD_RESERVE_H
#define FP8D_DAEMON_ENGINE_LOAD_RESERVE_H

#include "daemon/engine/load.h"

/* ld->built with this recipe, its layers without contents, and ld->parts. */
int load_reserve(struct load *ld, const struct recipe *r, struct fault *f);

#endif
