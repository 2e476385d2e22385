/* highview.h - a weight in high precision, for GEMMs that are not FP8: calibrate and check.
 *
 * A high-precision weight is used as it is; an FP8 primary weight is dequantised to F32 first. */
#ifndef FP8D_DAEMON_ENGINE_HIGHVIEW_H
#define FP8D_DAEMON_ENGINE_HIGHVIEW_H

#include "daemon/engine/weight.h"

struct engine;

/* Enqueues what is needed on the engine's queue. *out holds a reference that the caller drops once
 * a note enqueued later has fired. */
int highview_open(struct engine *e, const struct weight *w, struct tensor *out, struct fault *f);

#endif
