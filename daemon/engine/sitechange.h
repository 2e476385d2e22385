/* sitechange.h - scalers of many sites replaced at once: all of them, or none.
 *
 * Calibration's end, reset and a recipe change build new scalers beside the old ones, send them to
 * the backend in one operation, and swap when it is complete. Engine thread; the caller holds the
 * compute slot, so that nothing else moves a scale meanwhile.
 */
#ifndef FP8D_DAEMON_ENGINE_SITECHANGE_H
#define FP8D_DAEMON_ENGINE_SITECHANGE_H

#include "daemon/engine/model.h"
#include "daemon/engine/op.h"

struct sitechange_item {
    struct layer *layer;
    enum site_kind kind;
    struct site next;     /* memory of the new scaler; its mirror is to be filled */
};

struct sitechange {
    struct op op;
    struct model *model;
    struct sitechange_item *items;
    size_t count;
    void (*done)(struct sitechange *c); /* op.fault.code 0: the sites have been swapped */
    void *arg;
};

/* `history_len` rows for every site that `wants` is true for; each new mirror starts as a copy of
 * the old one (resized). *out is empty of items if none is wanted. */
int sitechange_new(struct model *m, uint32_t history_len,
                   bool (*wants)(const struct layer *l, enum site_kind kind), struct sitechange **out,
                   struct fault *f);

/* The mirror of an item's new scaler, to be changed before sitechange_commit. */
struct scaler *sitechange_scaler(struct sitechange_item *item);

/* Always ends in `done` on the engine thread; the change is freed after it. */
void sitechange_commit(struct sitechange *c, void (*done)(struct sitechange *c), void *arg);
void sitechange_free(struct sitechange *c); /* before commit; NULL is fine */

#endif
