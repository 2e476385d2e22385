/* primary.h - making a weight FP8 primary by casting it, on any queue.
 *
 * With a scale that was loaded or calibrated the weight is cast with it and nothing is fed. An unset
 * site gets scale = fp8_max * 2^-margin / amax(W) and the amax as its newest row, else weights of
 * small spread would live in the subnormals for ever; amax 0: scale 1, the site stays unset.
 * Rule: docs/numerics.md section 3.
 *
 * Two steps around a queue: enqueue on all layers, then settle when a note has fired. */
#ifndef FP8D_DAEMON_ENGINE_PRIMARY_H
#define FP8D_DAEMON_ENGINE_PRIMARY_H

#include "daemon/engine/model.h"

/* The cast of one weight under way. Zeroed: none. */
struct primary_cast {
    struct qtensor *q;
    struct buffer *report; /* struct cast_report */
    enum dtype origin;
};

/* The site's mirror decides; it and its state must agree. */
int primary_enqueue(struct layer *l, const struct recipe *r, struct engine *e, struct queue *q,
                    struct primary_cast *out, struct fault *f);

/* The weight becomes primary; true if the site's mirror was given a scale by it (the caller brings the
 * state up to date, by site_upload or because it is host memory and written here). */
bool primary_settle(struct layer *l, const struct recipe *r, struct primary_cast *c);
void primary_drop(struct primary_cast *c); /* instead of settle */

#endif
