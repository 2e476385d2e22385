/* layer_options.h - what fp8ctl optimizer is told of single layers: --freeze LAYER, --layer-rate
 * LAYER=X,
 * --layer-decay LAYER=X. */
#ifndef FP8D_CLIENT_CTL_LAYER_OPTIONS_H
#define FP8D_CLIENT_CTL_LAYER_OPTIONS_H

#include "client/ctl/ctl.h"

struct layer_options {
    struct fp8d_layer_options *list; /* one a layer; an option that is given twice is there twice */
    size_t count;
    char *names;
};

/* CTL_OK, or the exit code after a sentence; then there is nothing to free. */
int layer_options_take(const struct ctl *ctl, const struct args *a, struct layer_options *out);
void layer_options_fini(struct layer_options *o);

#endif
