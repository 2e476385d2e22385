/* engine.h - the owner of all models. Everything here runs on the engine thread.
 *
 * Requests reach the engine one call at a time, through rpc. Compute is enqueued on one backend
 * queue and completes later (op.h); rpc starts a computing request that may change state when no
 * other computes, so that decisions are taken from state that is complete. Questions read the state as it
 * is after the last completed change. Loads run on the loader's own thread and queue.
 */
#ifndef FP8D_DAEMON_ENGINE_ENGINE_H
#define FP8D_DAEMON_ENGINE_ENGINE_H

#include "base/idmap.h"
#include "base/io.h"
#include "base/ledger.h"
#include "daemon/engine/op.h"
#include "daemon/engine/plans.h"

#include <sys/types.h>

struct model;
struct load;
struct loader;
struct flight;

struct engine_options {
    struct backend *backend;  /* borrowed; outlives the engine */
    struct ledger *ledger;
    const struct exec *exec;
    const struct io *io;
    uint64_t resident_max;    /* bytes of tensors and contexts of one connection */
    uint32_t contexts_max;    /* of one connection */
    uint32_t tensors_max;
    uint64_t header_cap;      /* of a checkpoint's header; 0: the default of safetensors.h */
    enum plans plans;         /* of GEMMs */
    const char *load_roots;   /* colon-separated absolute directories; NULL or "": none */
};

struct engine {
    struct engine_options o;
    struct exec exec;       /* o.exec points here */
    struct queue *queue;
    bool unified;           /* host memory is where the backend computes */
    struct loader *loader;
    struct model **models;  /* sorted by name */
    size_t model_count, model_room;
    struct load *loads;     /* committed and not ended */
    struct flight *flight;       /* the change that computes, if another may begin behind it */
    struct flight *flight_ahead; /* that other one, likewise */
    bool ahead;                  /* what rpc starts now begins behind `flight`, before its end */
    const struct queue_note *adopted; /* of the last FP8 tensor made for what rpc starts now */
    uint64_t next_incarnation;
    uint64_t started_ns;
    /* Counters for status. */
    uint64_t forwards_done;
    uint32_t contexts, scopes;
};

int engine_new(const struct engine_options *o, struct engine **out, struct fault *f);

/* All ops are complete, all leases are gone. Joins the loader. NULL is fine. */
void engine_free(struct engine *e);

/* The model of that name, or FP8D_ENOT_FOUND. Borrowed. */
int engine_find(struct engine *e, const char *name, struct model **out, struct fault *f);

/* Put a model in the place of its name; the one that was there is let go (its scopes end without an
 * update), and the new one's weight version is above its. Takes over the caller's reference. Fails only for memory, before anything changed. */
int engine_install(struct engine *e, struct model *m, struct fault *f);

/* Take a model out of the registry and let it go. */
void engine_remove(struct engine *e, struct model *m);

/* Memory for a tensor that the host fills or reads: a host buffer, which on a unified backend the
 * backend can use as it is. Any thread. */
int engine_host_buffer(struct engine *e, uint64_t bytes, const char *what, struct buffer **out,
                       struct fault *f);

/* What a client expects of a model that it is about to change; zeros are not checked. */
struct expect {
    uint64_t incarnation, weight_version;
};
int expect_check(const struct expect *x, const struct model *m, struct fault *f);

#endif
