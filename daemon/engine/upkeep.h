/* upkeep.h - changes of a live model's scaling state that are no training: reset, freeze, another
 * recipe. Rules: docs/numerics.md section 3. Engine thread, compute slot held. */
#ifndef FP8D_DAEMON_ENGINE_UPKEEP_H
#define FP8D_DAEMON_ENGINE_UPKEEP_H

#include "daemon/engine/model.h"

/* What a request asks of a recipe: 0 (margin: -1) keeps what is there. */
struct recipe_wish {
    enum recipe_kind kind;
    enum recipe_format format;
    enum amax_algo algo;
    uint32_t history_len;
    int margin;
    enum recipe_accumulation fprop;
};

/* `base` with the wish laid over it; recipe_check is the caller's. */
struct recipe recipe_wished(const struct recipe *base, const struct recipe_wish *wish);

typedef void (*upkeep_done_cb)(void *arg, const struct fault *f, uint32_t sites);

/* Histories 0, scale 1, unset, counters 0; copies and calibration dropped. */
int upkeep_reset(struct model *m, upkeep_done_cb done, void *arg, struct fault *f);

/* Copies dropped, histories resized; a site whose FP8 format changes is reset. Where accumulation
 * alone differs, copies and sites stay as they are: no cast depends on it. */
int upkeep_recipe(struct model *m, const struct recipe *r, upkeep_done_cb done, void *arg,
                  struct fault *f);

/* FP8D_EFAILED_PRECONDITION naming what is open on the model. */
int upkeep_check_idle(const struct model *m, const char *what, struct fault *f);

#endif
