/* load.h - a load: begin, attach, commit; a transaction whose only visible effect is one swap.
 *
 * Begin and attach happen on the engine thread; commit parses, checks, reserves, reads and
 * quantises on the loader thread and its queue, into memory that nobody else can see, and then
 * swaps between two requests on the engine thread. On any error the model that was there stays
 * exactly as it was. One load of a name at a time: the second commit is FP8D_EABORTED.
 *
 * The peak of a replacing load is old + new + 64 MiB; with primary_fp8 the largest weight in high
 * precision comes to it.
 */
#ifndef FP8D_DAEMON_ENGINE_LOAD_H
#define FP8D_DAEMON_ENGINE_LOAD_H

#include "daemon/engine/claim.h"
#include "daemon/engine/lease.h"
#include "daemon/engine/loader.h"
#include "daemon/engine/model.h"
#include "daemon/engine/upkeep.h"

#include <stdatomic.h>

#define LOADS_MAX 8 /* begun and not ended, of one connection: each may hold a descriptor */
#define LOAD_BLOCK ((size_t)8 << 20) /* cancel is looked at between two of these */

struct load_options {
    char model[129];
    const char *server_path;   /* NULL: descriptors are attached; borrowed by load_begin */
    struct recipe_wish recipe; /* over what the file saved, else over the default */
    bool no_strict;
    bool primary_fp8;
    enum dtype dequantize; /* DTYPE_NONE, F32 or BF16 */
    bool allow_nan;
    bool finish_calibration;
    bool no_optimizer;     /* optimizer state and gradients of the file are left out */
    char *const *only; /* borrowed by load_begin */
    size_t only_count;
    char *const *skip;
    size_t skip_count;
    struct expect expect;
};

struct load_progress {
    uint64_t bytes_done, bytes_total;
    uint32_t tensors_done, tensors_total;
    const char *stage; /* "read" */
};

struct load_report {
    uint64_t parameters, bytes_read, read_us;
    struct recipe recipe;
    const struct claim *claim; /* layers, ignored, notes */
    const struct claim_lines *converted;
    uint64_t nan_codes; /* NaN and Inf codes in FP8 weights, with allow_nan */
    uint64_t incarnation, weight_version;
};

/* What a layer of the claim still needs until the load is complete; the loader thread's. */
struct load_part {
    float factor, input_factor; /* 0: none */
    struct buffer *codes;       /* memory that becomes the FP8 primary weight */
    struct buffer *copy_codes;  /* and that of the training copy */
    struct buffer *hold;        /* room kept for a cast: let go just before it */
    struct weight_copy copy;    /* of a save: key and report, without q */
};

/* Both on the engine thread. Progress: any number of calls before done. */
typedef void (*load_progress_cb)(void *arg, const struct load_progress *p);
typedef void (*load_done_cb)(void *arg, const struct fault *f, const struct load_report *r);

struct load {
    struct loader_job job;
    struct load *next; /* in engine->loads, while committing */
    struct engine *engine;
    struct lease *lease; /* until it is done: a lease may end inside the callback */
    uint64_t id;
    struct arena arena; /* copies of the strings of the options */
    struct load_options o;
    int fd;         /* -1 until attached */
    char file[256]; /* its name, for sentences */
    bool committing;
    _Atomic bool cancel;

    /* While it runs: the loader thread's, then the engine thread's. */
    struct fault fault;
    struct safetensors *header;
    struct claim claim;
    struct claim_lines converted;
    struct load_part *parts;   /* one a layer of the claim */
    struct recipe file_recipe; /* of a save; else the default */
    struct optimizer optimizer; /* of a save, and goes on; else unset */
    struct buffer *staging; /* BUFFER_HOST, LOAD_BLOCK or one row of FP8 codes; NULL: not needed */
    struct buffer *scratch; /* the largest weight that is cast; NULL: none is */
    struct model *built;
    struct load_report report;
    load_progress_cb on_progress;
    load_done_cb done;
    void *arg;
    struct exec_task progress_task;
    _Atomic bool progress_posted;
    _Atomic uint64_t bytes_done, bytes_total;
    _Atomic uint32_t tensors_done, tensors_total;
    uint64_t progress_ns; /* when the last one was posted */
};

int load_begin(struct lease *l, uint64_t id, const struct load_options *o, struct fault *f);
int load_find(struct lease *l, uint64_t id, struct load **out, struct fault *f);

/* Takes the descriptor, but not on failure. One file a load; it is looked at when the load runs. */
int load_attach(struct load *ld, const char *name, int fd, struct fault *f);

/* 0: `done` will be called, and the load is gone then. A status: nothing started, the load stays;
 * FP8D_EABORTED while another load of this name is under way. */
int load_commit(struct load *ld, load_progress_cb progress, load_done_cb done, void *arg,
                struct fault *f);

void load_cancel(struct load *ld); /* stops at the next block, FP8D_ECANCELLED */
void load_end(struct load *ld);    /* not while committing */

#endif
