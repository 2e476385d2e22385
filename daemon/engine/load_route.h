/* load_route.h - what becomes of a weight of a file, by the options of its load. Pure. */
#ifndef FP8D_DAEMON_ENGINE_LOAD_ROUTE_H
#define FP8D_DAEMON_ENGINE_LOAD_ROUTE_H

#include "daemon/engine/load.h"

enum load_route {
    ROUTE_HIGH,     /* high precision as it is */
    ROUTE_VERBATIM, /* FP8: bytes and factor */
    ROUTE_CAST,     /* high precision to FP8 primary */
    ROUTE_WIDEN,    /* FP8 to high precision */
};

enum load_route load_route(const struct load *ld, const struct source *x);

/* The copy of a save goes on as the training copy if the recipe in force would make such a one. */
bool load_route_keeps_copy(const struct load *ld, const struct source *x);

#endif
