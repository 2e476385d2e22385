/* SetScaling, SetRecipe. */
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"

#include <stdio.h>

static void on_reset(void *arg, const struct fault *f, uint32_t sites)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    Fp8d__V1__SetScalingReply m = FP8D__V1__SET_SCALING_REPLY__INIT;
    m.sites = sites;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_set_scaling(struct request *rq)
{
    const Fp8d__V1__SetScalingRequest *in =
        (const Fp8d__V1__SetScalingRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *m;
    int rc = reply_find_model(rq, in->model, &m, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    switch (in->action) {
    case FP8D__V1__SCALING_ACTION__SCALING_ACTION_RESET:
        rc = upkeep_reset(m, on_reset, rq, &f);
        break;
    case FP8D__V1__SCALING_ACTION__SCALING_ACTION_FREEZE:
    case FP8D__V1__SCALING_ACTION__SCALING_ACTION_UNFREEZE:
        m->frozen = in->action == FP8D__V1__SCALING_ACTION__SCALING_ACTION_FREEZE;
        on_reset(rq, &(struct fault){0}, 0);
        break;
    default:
        rc = fault_set(&f, FP8D_EINVALID_ARGUMENT, "action is unset, needed RESET, FREEZE or "
                                                   "UNFREEZE");
    }
    if (rc)
        request_fail(rq, &f);
}

/* --- recipe --- */

/* The change in flight: what the model had before. */
struct change {
    struct request *rq;
    struct model *m; /* own reference */
    struct recipe before;
};

static void on_recipe(void *arg, const struct fault *f, uint32_t sites)
{
    struct change *c = arg;
    struct request *rq = c->rq;
    char line[192];
    char text[128];
    char *notes[] = {line};
    (void)sites;
    if (f->code) {
        request_fail(rq, f);
    } else {
        Fp8d__V1__SetRecipeReply m = FP8D__V1__SET_RECIPE_REPLY__INIT;
        Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
        reply_recipe_out(&c->m->recipe, &recipe);
        bool kept = recipe_differs_in_sums_alone(&c->before, &c->m->recipe);
        (void)snprintf(line, sizeof line, "the recipe was %s; copies of weights were %s",
                       recipe_text(&c->before, text, sizeof text), kept ? "kept" : "dropped");
        m.recipe = &recipe;
        m.n_notes = 1;
        m.notes = notes;
        request_answer(rq, &m.base, NULL, 0);
    }
    model_unref(c->m);
    mem_free(c);
}

static int start(struct request *rq, struct model *m, const struct recipe *r, struct fault *f)
{
    struct change *c = mem_zalloc(sizeof *c);
    if (!c)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "out of memory for the request");
    *c = (struct change){rq, model_ref(m), m->recipe};
    int rc = upkeep_recipe(m, r, on_recipe, c, f);
    if (rc) {
        model_unref(c->m);
        mem_free(c);
    }
    return rc;
}

void rpc_set_recipe(struct request *rq)
{
    const Fp8d__V1__SetRecipeRequest *in =
        (const Fp8d__V1__SetRecipeRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct recipe_wish wish;
    struct model *m;
    int rc = reply_find_model(rq, in->model, &m, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (!rc)
        rc = reply_recipe_in(in->recipe, &wish, &f);
    if (!rc) {
        struct recipe r = recipe_wished(&m->recipe, &wish);
        rc = start(rq, m, &r, &f);
    }
    if (rc)
        request_fail(rq, &f);
}
