/* output.h - memory for what a computing request gives back: host memory that is sent, or where the
 * backend computes for a resident tensor. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_OUTPUT_H
#define FP8D_DAEMON_ENGINE_OUTPUT_H

#include "daemon/engine/engine.h"
#include "daemon/engine/resident.h"

struct output_wish {
    unsigned rank;
    const uint64_t *dims; /* [rank]; the last one is taken from cols */
    uint64_t rows, cols;
    enum dtype dtype;
    bool stays;           /* it becomes a resident tensor */
    uint64_t inline_max;  /* bytes that it may have if not; 0: any */
    const char *what;     /* "the output", and */
    const char *id_field; /* "output_id": how to have more */
};

/* Zeroed *out on failure. */
int output_make(struct engine *e, const struct output_wish *w, struct operand *out,
                struct fault *f);

#endif
