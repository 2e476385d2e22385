#include "daemon/engine/flight.h"

#include "daemon/engine/context.h"

void flight_begin(struct engine *e, struct flight *fl)
{
    *(e->ahead ? &e->flight_ahead : &e->flight) = fl;
}

void flight_end(struct engine *e, const struct flight *fl)
{
    if (e->flight_ahead == fl)
        e->flight_ahead = NULL;
    if (e->flight != fl)
        return;
    e->flight = e->flight_ahead;
    e->flight_ahead = NULL;
}

static int not_yet(const char *why, struct fault *f)
{
    return fault_set(f, FP8D_EABORTED, "the request before it has not ended, and %s", why);
}

/* Its own layer's copy of the weight and scales are what a forward decides from. */
int flight_check_forward(const struct engine *e, const struct layer *l, struct fault *f)
{
    if (!e->ahead || e->flight->backward)
        return 0;
#ifndef FP8D_MUTANT_AHEAD_SAME_LAYER
    if (e->flight->layer == l)
        return not_yet("may change scales and copy of this layer", f);
#endif
    return 0;
}

/* A context that a forward makes is whole once that is enqueued. Gradients add up one after
 * another. */
int flight_check_backward(const struct engine *e, const struct context *c, struct fault *f)
{
    if (!e->ahead || !e->flight->backward)
        return 0;
    if (e->flight->used == c)
        return not_yet("uses up this context", f);
    return e->flight->layer == c->layer ? not_yet("adds to this layer's gradient", f) : 0;
}

int flight_check_step(const struct engine *e, const struct model *m, bool repeated, struct fault *f)
{
    if (!e->ahead)
        return 0;
    if (!e->flight->backward || e->flight->model != m)
        return not_yet("is no backward of this model", f);
    return repeated ? not_yet("the answer would overtake its own", f) : 0;
}

int flight_check_tensor(const struct engine *e, const struct lease *l, uint64_t id, struct fault *f)
{
#ifdef FP8D_MUTANT_AHEAD_OLD_TENSOR
    return 0;
#endif
    if (!e->ahead || e->flight->lease != l || e->flight->filed != id)
        return 0;
    return not_yet("files a tensor under this id", f);
}

int flight_follow(struct engine *e, struct fault *f)
{
#ifdef FP8D_MUTANT_AHEAD_UNCHAINED
    return 0;
#endif
    int rc = e->ahead ? backend_follow(e->queue, e->flight->note, f) : 0;
    return rc || !e->adopted ? rc : backend_follow(e->queue, e->adopted, f);
}
