/* SetOptimizer, Step. */
#include "daemon/engine/scope.h"
#include "daemon/engine/step.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"

#include <errno.h>

/* --- SetOptimizer --- */

static int options_in(const Fp8d__V1__OptimizerOptions *in, struct optimizer_options *out,
                      struct fault *f)
{
    if (!in)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "options is absent, needed an optimizer");
    if (in->kind < FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_SGD ||
        in->kind > FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAMW)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "options.kind is %d, needed 1 (SGD), 2 (ADAM) or 3 (ADAMW)",
                         (int)in->kind);
    *out = optimizer_default((enum optimizer_kind)in->kind);
    if (in->rate != 0)
        out->rate = in->rate;
    if (in->beta1 != 0)
        out->beta1 = in->beta1;
    if (in->beta2 != 0)
        out->beta2 = in->beta2;
    if (in->eps != 0)
        out->eps = in->eps;
    if (in->weight_decay != 0 || in->weight_decay_set)
        out->weight_decay = in->weight_decay;
    out->momentum = in->momentum;
    out->dampening = in->dampening;
    out->nesterov = in->nesterov;
    return 0;
}

/* own[i] is the i-th layer's of the model. */
static int own_in(const Fp8d__V1__SetOptimizerRequest *in, struct model *m,
                  struct optimizer_own *own, bool *seen, struct fault *f)
{
    for (size_t i = 0; i < in->n_layers; i++) {
        const Fp8d__V1__LayerOptions *o = in->layers[i];
        struct layer *l;
        int rc = model_find_layer(m, o->layer, &l, f);
        if (rc)
            return fault_wrap(f, "layers[%zu]", i);
        size_t at = (size_t)(l - m->layers);
        if (seen[at])
            return fault_set(f, FP8D_EINVALID_ARGUMENT, "layers[%zu].layer %s is there twice", i,
                             l->name);
        seen[at] = true;
        own[at] = (struct optimizer_own){
            .frozen = o->frozen,
            .rate_set = o->rate != 0,
            .rate = o->rate,
            .decay_set = o->weight_decay != 0 || o->weight_decay_set,
            .weight_decay = o->weight_decay,
        };
    }
    return 0;
}

static int set_optimizer(struct request *rq, struct model *m, struct fault *f)
{
    const Fp8d__V1__SetOptimizerRequest *in =
        (const Fp8d__V1__SetOptimizerRequest *)(const void *)rq->message;
    struct optimizer_options options;
    int rc = options_in(in->options, &options, f);
    if (rc)
        return rc;
    struct optimizer_own *own = mem_array(m->layer_count, sizeof *own);
    bool *seen = mem_array(m->layer_count, sizeof *seen);
    rc = own && seen ? own_in(in, m, own, seen, f)
                     : fault_set(f, -ENOMEM, "out of memory for the options of %zu layers",
                                 m->layer_count);
    if (!rc)
        rc = optimizer_set(m, &options, own, f);
    mem_free(own);
    mem_free(seen);
    return rc;
}

void rpc_set_optimizer(struct request *rq)
{
    const Fp8d__V1__SetOptimizerRequest *in =
        (const Fp8d__V1__SetOptimizerRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *m;
    int rc = reply_find_model(rq, in->model, &m, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (!rc)
        rc = scope_check_train(m, &rq->session->lease, &f);
    if (!rc)
        rc = set_optimizer(rq, m, &f);
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    Fp8d__V1__SetOptimizerReply out = FP8D__V1__SET_OPTIMIZER_REPLY__INIT;
    out.step = m->optimizer.steps + 1;
    out.updates = m->optimizer.updates;
    request_answer(rq, &out.base, NULL, 0);
}

/* --- Step --- */

static void answer(struct request *rq, const struct step_result *r, const struct model *m)
{
    Fp8d__V1__StepReply out = FP8D__V1__STEP_REPLY__INIT;
    Fp8d__V1__StepProblem rows[STEP_PROBLEMS_MAX];
    Fp8d__V1__StepProblem *at[STEP_PROBLEMS_MAX];
    size_t n = r->problem_count < STEP_PROBLEMS_MAX ? r->problem_count : STEP_PROBLEMS_MAX;
    for (size_t i = 0; i < n; i++) {
        fp8d__v1__step_problem__init(&rows[i]);
        rows[i].layer = r->problems[i].layer->name;
        rows[i].tensor = (char *)(uintptr_t)r->problems[i].tensor;
        rows[i].nonfinite = r->problems[i].nonfinite;
        at[i] = &rows[i];
    }
    out.outcome = (Fp8d__V1__StepOutcome)r->outcome;
    out.step = m->optimizer.steps + 1;
    out.updates = m->optimizer.updates;
    out.grad_norm = r->grad_norm;
    out.clip = r->clip;
    out.layers = r->layers;
    out.n_problems = n;
    out.problems = at;
    out.problems_total = r->problem_count;
    out.compute_ns = r->compute_ns;
    request_stamp(rq, m->incarnation, m->weight_version);
    request_answer(rq, &out.base, NULL, 0);
}

static void on_step(void *arg, const struct fault *f, const struct step_result *r)
{
    struct request *rq = arg;
    const Fp8d__V1__StepRequest *in = (const Fp8d__V1__StepRequest *)(const void *)rq->message;
    struct fault why = *f;
    struct model *m = NULL;
    int rc = f->code;
    if (!rc)
        rc = reply_find_model(rq, in->model, &m, &why); /* it is there: the step was taken */
    if (rc || !m)
        request_fail(rq, &why);
    else
        answer(rq, r, m);
}

void rpc_step(struct request *rq)
{
    const Fp8d__V1__StepRequest *in = (const Fp8d__V1__StepRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct step_args a = {
        .lease = &rq->session->lease,
        .step = in->step,
        .loss_scale = in->loss_scale != 0 ? in->loss_scale : 1.0,
        .max_norm = in->max_norm,
        .time_compute = in->time_compute,
    };
    int rc = reply_find_model(rq, in->model, &a.model, &f);
    if (!rc && (!in->expect || in->step != a.model->optimizer.steps)) /* a repeat finds it moved */
        rc = reply_expect(in->expect, a.model, &f);
    if (!rc)
        rc = step_start(&a, on_step, rq, &f);
    if (rc)
        request_fail(rq, &f);
}
