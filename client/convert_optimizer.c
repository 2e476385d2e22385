/* Replies about a model's optimizer. */
#include "client/convert.h"

/* The number of a next step: a caller sends it back, and steps count from 1. */
static int check_next(uint64_t step, struct fault *f)
{
    return step ? 0
                : fault_set(f, FP8D_EPROTOCOL, "field step is 0, needed the next step's number");
}

int convert_set_optimizer(struct fp8d_result *r, const Fp8d__V1__SetOptimizerReply *m,
                          struct fault *f)
{
    struct fp8d_optimizer_set *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_optimizer_set){.step = m->step, .updates = m->updates};
    r->body = s;
    return check_next(m->step, f);
}

static int take_problems(struct fp8d_result *r, const Fp8d__V1__StepReply *m,
                         struct fp8d_step_result *s, struct fault *f)
{
    struct fp8d_step_problem *list = arena_zalloc(&r->arena, m->n_problems, sizeof *list);
    if (!list)
        return convert_nomem(f);
    if (m->problems_total < m->n_problems)
        return fault_set(f, FP8D_EPROTOCOL,
                         "field problems_total is %u, needed at least the %zu listed",
                         m->problems_total, m->n_problems);
    for (size_t i = 0; i < m->n_problems; i++) {
        const Fp8d__V1__StepProblem *p = m->problems[i];
        if (!*p->layer || !*p->tensor)
            return fault_set(f, FP8D_EPROTOCOL, "field problems[%zu].%s is empty", i,
                             *p->layer ? "tensor" : "layer");
        list[i] = (struct fp8d_step_problem){
            .layer = p->layer, .tensor = p->tensor, .nonfinite = p->nonfinite};
    }
    s->problems = list;
    s->count = m->n_problems;
    s->problems_total = m->problems_total;
    return 0;
}

/* Callers switch over the outcome: one that they cannot know must not reach them. */
static int check_outcome(const Fp8d__V1__StepReply *m, struct fault *f)
{
    if (m->outcome != FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED &&
        m->outcome != FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_SKIPPED &&
        m->outcome != FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_REPEATED)
        return fault_set(f, FP8D_EPROTOCOL,
                         "field outcome is %d, needed 1 (APPLIED), 2 (SKIPPED) or 3 (REPEATED)",
                         (int)m->outcome);
    if (m->problems_total && m->outcome == FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED)
        return fault_set(f, FP8D_EPROTOCOL, "field outcome is APPLIED, with %u problems",
                         m->problems_total);
    return check_next(m->step, f);
}

int convert_step(struct fp8d_result *r, const Fp8d__V1__StepReply *m, struct fault *f)
{
    struct fp8d_step_result *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_step_result){
        .outcome = (enum fp8d_step_outcome)m->outcome,
        .step = m->step,
        .compute_ns = m->compute_ns,
        .updates = m->updates,
        .grad_norm = m->grad_norm,
        .clip = m->clip,
        .layers = m->layers,
    };
    r->body = s;
    int rc = check_outcome(m, f);
    return rc ? rc : take_problems(r, m, s, f);
}
