/* forward_run.h - one forward while it runs: shared by its start (forward.c) and its end
 * (forward_settle.c). */
#ifndef FP8D_DAEMON_ENGINE_FORWARD_RUN_H
#define FP8D_DAEMON_ENGINE_FORWARD_RUN_H

#include "daemon/engine/context.h"
#include "daemon/engine/flight.h"
#include "daemon/engine/forward.h"
#include "daemon/engine/scope.h"
#include "daemon/engine/stage.h"

/* Host-readable memory of one request: reports and readings of the clock, then two mirrors. */
struct forward_scratch {
    struct cast_report input, weight;
    uint64_t begun, ended; /* 0: not read */
};

struct forward {
    struct op op;
    struct forward_args a;
    struct operand input; /* own reference */
    struct operand output;
    struct stage stage;
    struct tensor x, y; /* input and output where the backend computes */
    struct buffer *scratch;
    struct qtensor *xq; /* cast, or the FP8 input itself */
    struct qtensor *wq; /* the copy that is multiplied with */
    struct tensor high; /* calibrate: the weight in high precision; own reference */
    struct copy_choice choice;
    struct scope *scope;     /* explicit, or NULL */
    struct context *context; /* made beforehand, filled at the end, or NULL */
    struct flight flight;
    struct filing filing; /* of an output that stays */
    struct apply_site sites[2];
    bool apply; /* own scope: sites are filled */
    uint64_t incarnation, weight_version;
    forward_done_cb done;
    void *arg;
};

static inline struct forward_scratch *forward_scratch(const struct forward *w)
{
    return w->scratch->host;
}

/* Compute is complete: what it left becomes the model's, the scope's, the client's. Cannot fail. */
void forward_settle(struct forward *w);
/* What the client hears of it, after that. */
struct forward_result forward_result(const struct forward *w);

#endif
