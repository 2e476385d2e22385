/* site.h - one quantisation site of a layer: the scaler where the backend computes, and its mirror.
 *
 * The mirror is what questions and decisions read; it equals the backend's state after the last
 * completed change. Owned by a layer; engine thread (before a model is installed: its loader).
 */
#ifndef FP8D_DAEMON_ENGINE_SITE_H
#define FP8D_DAEMON_ENGINE_SITE_H

#include "kernels/buffer.h"
#include "kernels/scaler.h"

struct engine;
struct queue;

struct site {
    struct buffer *state;       /* BUFFER_DEVICE: struct scaler */
    struct buffer *mirror_buf;  /* BUFFER_HOST */
    float calibration_amax;     /* of an unfinished calibration */
    bool calibration_seen;
    uint64_t uncalibrated_casts; /* of eval and check; for information, never saved */
};

/* A fresh scaler of `len` rows. The mirror is initialised; so is the state where it is host memory,
 * otherwise the caller writes it through a queue (site_upload). */
int site_init(struct site *s, struct engine *e, uint32_t len, struct fault *f);
void site_fini(struct site *s); /* also when zeroed */

static inline struct scaler *site_mirror(const struct site *s)
{
    return s->mirror_buf->host;
}

static inline struct scaler *site_state(const struct site *s)
{
    return s->state->data;
}

/* Enqueue: the backend's copy becomes what the mirror holds now. */
int site_upload(struct site *s, struct queue *q, struct fault *f);

/* Take over what an apply wrote: `from` has the length of the site. */
void site_refresh(struct site *s, const struct scaler *from);

#endif
