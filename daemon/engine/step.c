#include "daemon/engine/step.h"

#include "base/mem.h"
#include "daemon/engine/flight.h"
#include "daemon/engine/scope.h"
#include "daemon/engine/step_layer.h"

#include <errno.h>
#include <string.h>

/* Of the device's clock; 0: not read. */
struct readings {
    uint64_t begun[2], ended[2]; /* of the rounds */
};

struct step {
    struct op op;
    struct step_args a;
    struct model *model; /* own reference */
    struct step_layer *layers;
    size_t count;
    struct buffer *scratch; /* readings, then a struct step_report each, then a mirror each */
    struct apply_site *sites;
    size_t site_count;
    struct step_result r;
    step_done_cb done;
    void *arg;
};

/* --- checks --- */

static int check_number(const struct step_args *a, struct fault *f)
{
    const struct optimizer *o = &a->model->optimizer;
    if (!o->set)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "model %s has no optimizer, needed SetOptimizer before the first step",
                         a->model->name);
    if (a->step == o->steps + 1 || (a->step && a->step == o->steps))
        return 0;
    return fault_set(f, FP8D_EFAILED_PRECONDITION,
                     "step is %llu, needed %llu: model %s has taken %llu",
                     (unsigned long long)a->step, (unsigned long long)o->steps + 1, a->model->name,
                     (unsigned long long)o->steps);
}

static int check(const struct step_args *a, struct fault *f)
{
    if (!(a->loss_scale > 0.0 && a->loss_scale <= (double)FP8_FLT_MAX))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "loss_scale is %g, needed a number above 0 and at most %g", a->loss_scale,
                         (double)FP8_FLT_MAX);
    if (!(a->max_norm >= 0.0 && a->max_norm <= (double)FP8_FLT_MAX))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "max_norm is %g, needed a number from 0 to %g", a->max_norm,
                         (double)FP8_FLT_MAX);
    int rc = check_number(a, f);
    if (!rc && a->step != a->model->optimizer.steps)
        rc = model_check_counts(a->model, f);
    if (!rc)
        rc = scope_check_train(a->model, a->lease, f);
    const struct optimizer *o = &a->model->optimizer;
    return rc ? rc : flight_check_step(a->lease->engine, a->model, a->step == o->steps, f);
}

/* --- its memory --- */

static struct step_report *report_of(const struct step *s, size_t i)
{
    return (struct step_report *)((struct readings *)s->scratch->host + 1) + i;
}

/* The same memory, as the device writes it. */
static struct step_report *report_at(const struct step *s, size_t i)
{
    return (struct step_report *)((struct readings *)s->scratch->data + 1) + i;
}

/* A clock that cannot be read fails nothing. */
static void stamp(struct step *s, uint64_t *at)
{
    struct fault none;
    if (s->a.time_compute)
        (void)backend_stamp(s->model->engine->queue, at, &none);
}

static uint64_t compute_ns(const struct step *s)
{
    const struct readings *t = s->scratch->host;
    uint64_t ns = 0;
    for (int i = 0; i < 2; i++)
        ns += t->begun[i] && t->ended[i] > t->begun[i] ? t->ended[i] - t->begun[i] : 0;
    return ns;
}

/* --- the ends --- */

static void step_free(struct step *s)
{
    for (size_t i = 0; i < s->count; i++)
        step_layer_fini(&s->layers[i]);
    mem_free(s->layers);
    mem_free(s->sites);
    buffer_unref(s->scratch);
    model_unref(s->model);
    mem_free(s);
}

static void end(struct step *s)
{
    s->r.compute_ns = s->scratch ? compute_ns(s) : 0;
    s->done(s->arg, &s->op.fault, s->op.fault.code ? NULL : &s->r);
    step_free(s);
}

/* Applied or skipped, the step was taken. */
static void take(struct step *s, enum step_outcome outcome)
{
    s->r.outcome = outcome;
    s->model->optimizer.steps++;
    for (size_t i = 0; i < s->model->layer_count; i++)
        gradient_forget(&s->model->layers[i].gradient);
}

/* --- the second round --- */

static void updated(struct op *op)
{
    struct step *s = (struct step *)op;
    struct model *m = s->model;
    if (!op->fault.code)
        (void)model_check_here(m, &op->fault);
    if (!op->fault.code) {
        m->weight_version++;
        m->optimizer.updates++;
        for (size_t i = 0; i < s->count; i++)
            step_layer_settle(&s->layers[i], m, report_of(s, i));
        for (size_t i = 0, n = 0; i < s->count && n < s->site_count; i++)
            if (s->layers[i].q)
                site_refresh(&s->layers[i].layer->sites[SITE_WEIGHT], s->sites[n++].mirror);
        s->r.layers = (uint32_t)s->count;
        take(s, STEP_APPLIED);
    }
    end(s);
}

/* What the casts of the new weights saw waits in row 0 for the end of the next scope. */
static int enqueue_collect(struct step *s, struct fault *f)
{
    const struct recipe *r = &s->model->recipe;
    struct engine *e = s->model->engine;
    uint64_t bytes = scaler_bytes(r->history_len);
    char *mirrors = (char *)report_at(s, s->count);
    if (r->kind != RECIPE_DELAYED)
        return 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!s->layers[i].q)
            continue;
        struct step_report *p = report_at(s, i);
        struct apply_site *at = &s->sites[s->site_count];
        *at = scope_apply_site(s->layers[i].layer, SITE_WEIGHT, r, &p->cast.slot,
                               mirrors + s->site_count++ * bytes);
        at->collect = true;
    }
    struct apply a = {s->sites, s->site_count, r->algo, r->margin, s->model->frozen};
    return backend_apply(e->queue, &a, f);
}

/* All of it or none: a step that runs out of memory half-way has changed nothing. */
static void enqueue_updates(struct step *s)
{
    struct fault *f = &s->op.fault;
    struct queue *q = s->model->engine->queue;
    float scale = (float)(s->r.clip / s->a.loss_scale);
    int rc = 0;
    stamp(s, &((struct readings *)s->scratch->data)->begun[1]);
    queue_hold(q);
    for (size_t i = 0; !rc && i < s->count; i++)
        rc = step_layer_update(&s->layers[i], s->model, scale, report_at(s, i), f);
    if (!rc)
        rc = enqueue_collect(s, f);
    queue_release(q, !rc);
    stamp(s, &((struct readings *)s->scratch->data)->ended[1]);
}

/* --- between the rounds --- */

static void add_problem(struct step_result *r, const struct layer *l, const char *tensor,
                        uint64_t nonfinite)
{
    if (!nonfinite)
        return;
    if (r->problem_count < STEP_PROBLEMS_MAX)
        r->problems[r->problem_count] = (struct step_problem){l, tensor, nonfinite};
    r->problem_count++;
}

/* Norm, clipping as torch.nn.utils.clip_grad_norm_, and what is not finite. */
static void judge(struct step *s)
{
    struct step_result *r = &s->r;
    double sum2 = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct layer *l = s->layers[i].layer;
        const struct step_report *p = report_of(s, i);
        sum2 += p->weight.sum2 + p->bias.sum2;
        add_problem(r, l, "weight", p->weight.nonfinite);
        add_problem(r, l, "bias", p->bias.nonfinite);
        add_problem(r, l, "grad_output", l->gradient.nonfinite);
    }
    r->grad_norm = step_sqrt(sum2) / s->a.loss_scale;
    double clip = s->a.max_norm > 0 ? s->a.max_norm / (r->grad_norm + 1e-6) : 1.0;
    r->clip = clip < 1.0 ? clip : 1.0;
}

/* Gradients are multiplied in float32: a scale that makes them infinite would be the end of the weights. No
 * element is above the norm. */
static int check_scale(const struct step *s, struct fault *f)
{
    double norm = s->r.grad_norm * s->r.clip;
    double scale = s->r.clip / s->a.loss_scale;
    if (norm <= (double)FP8_FLT_MAX && scale <= (double)FP8_FLT_MAX)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "loss_scale is %g, which makes the gradients' norm %g, needed a norm and a factor "
                     "of at most %g",
                     s->a.loss_scale, norm, (double)FP8_FLT_MAX);
}

static void measured(struct op *op)
{
    struct step *s = (struct step *)op;
    for (size_t i = 0; i < s->count; i++)
        step_layer_measured(&s->layers[i]);
    if (!op->fault.code)
        (void)model_check_here(s->model, &op->fault);
    if (op->fault.code) {
        end(s);
        return;
    }
    judge(s);
    if (s->r.problem_count) {
        take(s, STEP_SKIPPED);
        end(s);
        return;
    }
    if (check_scale(s, &s->op.fault)) {
        end(s);
        return;
    }
    op_init(&s->op, s->model->engine->o.exec, updated);
    enqueue_updates(s);
    op_submit(&s->op, s->model->engine->queue);
}

/* --- the first round --- */

static bool takes_part(const struct layer *l)
{
    return gradient_expected(&l->gradient) && !l->own.frozen;
}

static int reserve(struct step *s, struct fault *f)
{
    struct model *m = s->model;
    size_t n = 0;
    for (size_t i = 0; i < m->layer_count; i++)
        n += takes_part(&m->layers[i]);
    if (!n)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "no layer of model %s holds a gradient that a step could use: no backward "
                         "since the last step, or all are frozen",
                         m->name);
    uint64_t each = sizeof(struct step_report) + scaler_bytes(m->recipe.history_len);
    uint64_t bytes = sizeof(struct readings) + n * each;
    int rc = engine_host_buffer(m->engine, bytes, "the step", &s->scratch, f);
    if (rc)
        return rc;
    memset(s->scratch->host, 0, bytes);
    s->layers = mem_array(n, sizeof *s->layers);
    s->sites = mem_array(n, sizeof *s->sites);
    if (!s->layers || !s->sites)
        return fault_set(f, -ENOMEM, "out of memory for the step");
    for (size_t i = 0; !rc && i < m->layer_count; i++)
        if (takes_part(&m->layers[i]))
            rc = step_layer_init(&s->layers[s->count++], m, &m->layers[i], f);
    return rc;
}

static void enqueue_norms(struct step *s)
{
    struct fault *f = &s->op.fault;
    int rc = 0;
    stamp(s, &((struct readings *)s->scratch->data)->begun[0]);
    for (size_t i = 0; !rc && i < s->count; i++)
        rc = step_layer_begin(&s->layers[i], s->model, report_at(s, i), f);
    stamp(s, &((struct readings *)s->scratch->data)->ended[0]);
}

static void repeated(struct exec_task *task)
{
    struct step *s = (struct step *)(void *)((char *)task - offsetof(struct step, op.task));
    s->r.outcome = STEP_REPEATED;
    end(s);
}

int step_start(const struct step_args *a, step_done_cb done, void *arg, struct fault *f)
{
    const struct exec *x = a->lease->engine->o.exec;
    int rc = check(a, f);
    if (rc)
        return rc;
    struct step *s = mem_zalloc(sizeof *s);
    if (!s)
        return fault_set(f, -ENOMEM, "out of memory for the step");
    op_init(&s->op, x, measured);
    s->a = *a;
    s->model = model_ref(a->model);
    s->done = done;
    s->arg = arg;
    s->r.clip = 1.0;
#ifndef FP8D_MUTANT_STEP_TWICE
    if (a->step == a->model->optimizer.steps) {
        s->op.task.run = repeated;
        x->post(x->self, &s->op.task);
        return 0;
    }
#endif
    rc = reserve(s, f);
    if (!rc)
        rc = flight_follow(s->model->engine, f);
    if (rc) {
        step_free(s);
        return rc;
    }
    enqueue_norms(s);
    op_submit(&s->op, a->lease->engine->queue);
    return 0;
}
