/* pending.h - the requests of a handle that are under way, or whose result was not fetched yet.
 *
 * A direct-mapped table: request id modulo PENDING_SLOTS. Ids rise and skip occupied slots, so
 * that a lookup is one step. Owned by the handle; one thread at a time.
 */
#ifndef FP8D_CLIENT_PENDING_H
#define FP8D_CLIENT_PENDING_H

#include "base/fault.h"
#include "client/fp8d.h"

#include <stdbool.h>
#include <stdint.h>

#define PENDING_SLOTS FP8D_PENDING_MAX

struct pending {
    uint64_t id;
    uint16_t type;
    bool replied;    /* the final frame is in: rc and result are valid */
    bool forgotten;  /* drop it when the final frame comes */
    int rc;          /* of a failure found here: no result then */
    char *why;       /* its sentence; NULL when memory was short for it, too */
    struct fp8d_result *result;
    struct fp8d_buffer buffer; /* where payload goes; data NULL: memory of the result */
    fp8d_progress_cb progress;
    void *arg;
    unsigned char *parts; /* metas of frames with MORE, joined */
    size_t parts_len;
};

struct pending_table {
    struct pending *slots[PENDING_SLOTS];
    uint64_t last_id;
    uint32_t used;    /* slots in use */
    uint32_t flying;  /* of them, without a final frame */
};

/* A new entry with a new id; FP8D_ERESOURCE_EXHAUSTED when all slots are used, or -ENOMEM. */
int pending_add(struct pending_table *t, uint16_t type, struct pending **out, struct fault *f);
struct pending *pending_find(const struct pending_table *t, uint64_t id); /* NULL: none */
void pending_replied(struct pending_table *t, struct pending *p); /* frees it if forgotten */
void pending_drop(struct pending_table *t, struct pending *p);    /* and its result */
void pending_fini(struct pending_table *t);

#endif
