#include "daemon/engine/backward.h"

#include "base/mem.h"
#include "daemon/engine/flight.h"
#include "daemon/engine/output.h"
#include "daemon/engine/scope.h"
#include "daemon/engine/stage.h"

#include <errno.h>
#include <string.h>

/* Host-readable memory of one request: the cast's report and readings of the clock, then a mirror.
 */
struct scratch {
    struct cast_report report;
    uint64_t begun, ended; /* 0: not read */
};

struct backward {
    struct op op;
    struct backward_args a;
    struct model *model; /* own reference, as are the next two */
    struct operand grad_output;
    struct operand grad_input;
    struct stage stage;
    struct tensor dy, dx; /* where the backend computes */
    struct buffer *scratch;
    struct qtensor *dyq;
    struct qtensor *used[2];   /* the context's weight and input: it may go with its forward */
    struct qtensor *turned[2]; /* the same, where they have no second form */
    struct gradient_next next;
    struct scope *scope; /* explicit, or NULL */
    struct flight flight;
    struct filing filing;
    struct apply_site site;
    bool apply; /* own scope: site is filled */
    backward_done_cb done;
    void *arg;
};

static struct layer *layer_of(const struct backward *w)
{
    return w->a.context->layer;
}

static struct engine *engine_of(const struct backward *w)
{
    return w->a.lease->engine;
}

/* --- checks --- */

static int check_dims(const struct context *c, const struct operand *g, struct fault *f)
{
    if (g->rank != c->rank)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "grad_output.dims: rank %u, context %llu needed %u, that of its input",
                         g->rank, (unsigned long long)c->id, c->rank);
    for (unsigned i = 0; i < g->rank; i++) {
        uint64_t want = i + 1 < g->rank ? c->dims[i] : c->layer->out;
        if (g->dims[i] != want)
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "grad_output.dims: dimension %u is %llu, context %llu of layer %s "
                             "needed %llu",
                             i, (unsigned long long)g->dims[i], (unsigned long long)c->id,
                             c->layer->name, (unsigned long long)want);
    }
    return 0;
}

static int check(const struct backward_args *a, enum dtype out, struct fault *f)
{
    const struct operand *g = a->grad_output;
    if (g->q)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "grad_output.dtype is %s, needed F32, BF16 or F16",
                         dtype_name(operand_dtype(g)));
    if (!dtype_is_high(out))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "grad_input_dtype is %s, needed F32, BF16 or F16", dtype_name(out));
    if (a->no_grad_input && a->grad_input_id)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "grad_input_id is %llu, but no_grad_input is set",
                         (unsigned long long)a->grad_input_id);
    int rc = check_dims(a->context, g, f);
    if (!rc)
        rc = scope_check_train(a->context->model, a->lease, f);
    return rc ? rc : flight_check_backward(a->lease->engine, a->context, f);
}

/* --- before compute --- */

static int make_grad_input(struct backward *w, enum dtype dtype, struct fault *f)
{
    const struct backward_args *a = &w->a;
    struct output_wish wish = {
        .rank = a->context->rank,
        .dims = a->context->dims,
        .rows = a->context->tokens,
        .cols = layer_of(w)->in,
        .dtype = dtype,
        .stays = a->grad_input_id != 0,
        .inline_max = a->inline_max,
        .what = "grad_input",
        .id_field = "grad_input_id",
    };
    int rc = output_make(engine_of(w), &wish, &w->grad_input, f);
    if (!rc && a->grad_input_id)
        rc = filing_open(a->lease, a->grad_input_id, "grad_input_id", a->replace_grad_input,
                         operand_ref(&w->grad_input), &w->filing, f);
    return rc;
}

static int reserve(struct backward *w, struct fault *f)
{
    struct scope *open = w->model->scope;
    uint64_t bytes = sizeof(struct scratch) + scaler_bytes(w->model->recipe.history_len);
    w->scope = open && open->lease == w->a.lease ? open : NULL;
    int rc = w->scope && w->model->recipe.kind == RECIPE_DELAYED ? scope_reserve(w->scope, f) : 0;
    if (!rc)
        rc = engine_host_buffer(engine_of(w), bytes, "the request", &w->scratch, f);
    if (rc)
        return rc;
    memset(w->scratch->host, 0, bytes);
    const struct layer *l = layer_of(w);
    return w->a.context->tokens ? gradient_reserve(&l->gradient, engine_of(w), l->out, l->in,
                                                   l->weight.bias.buf != NULL, &w->next, f)
                                : 0;
}

static int prepare(struct backward *w, const struct backward_args *a, struct fault *f)
{
    enum dtype out = a->grad_input_dtype ? a->grad_input_dtype : operand_dtype(a->grad_output);
    int rc = check(a, out, f);
    w->a = *a;
    w->model = model_ref(a->context->model);
    w->grad_output = operand_ref(a->grad_output);
    w->a.grad_output = &w->grad_output;
    if (!rc)
        rc = reserve(w, f);
    if (!rc && !a->no_grad_input)
        rc = make_grad_input(w, out, f);
    if (!rc && a->context->tokens) {
        w->used[0] = qtensor_ref(a->context->weight);
        w->used[1] = qtensor_ref(a->context->input);
    }
    return rc ? rc : flight_follow(engine_of(w), f);
}

/* What no operation uses any more. */
static void let_go(struct backward *w)
{
    qtensor_unref(w->used[0]);
    qtensor_unref(w->used[1]);
    w->used[0] = w->used[1] = NULL;
}

static void backward_free(struct backward *w)
{
    operand_fini(&w->grad_output);
    operand_fini(&w->grad_input);
    stage_fini(&w->stage);
    buffer_unref(w->scratch);
    gradient_next_fini(&w->next);
    qtensor_unref(w->dyq);
    let_go(w);
    qtensor_unref(w->turned[0]);
    qtensor_unref(w->turned[1]);
    model_unref(w->model);
    mem_free(w);
}

/* --- enqueueing --- */

static int enqueue_stage(struct backward *w, struct fault *f)
{
    struct engine *e = engine_of(w);
    int rc = stage_in(&w->stage, e, &w->grad_output.high, "grad_output", &w->dy, f);
    if (!rc && w->grad_input.high.buf)
        rc = stage_out(&w->stage, e, &w->grad_input.high, "grad_input", &w->dx, f);
    return rc;
}

/* One pass over grad_output: codes in both forms, amax, and its column sums. */
static int enqueue_cast(struct backward *w, struct fault *f)
{
    const struct recipe *r = &w->model->recipe;
    const struct gradient *g = &layer_of(w)->gradient;
    bool delayed = r->kind == RECIPE_DELAYED;
    struct cast c = {
        .src = w->dy,
        .fmt = recipe_dtype(r, SITE_GRAD_OUTPUT),
        .mode = delayed ? CAST_SITE : CAST_TENSOR,
        .margin = r->margin,
        .site = site_state(&layer_of(w)->sites[SITE_GRAD_OUTPUT]),
        .report = &((struct scratch *)w->scratch->data)->report,
        .transposed = true,
        .sums = w->next.bias,
        .sums_add = g->held && g->bias.buf,
    };
    return qtensor_cast(engine_of(w)->queue, engine_of(w)->o.ledger, &c, "the FP8 gradient",
                        &w->dyq, f);
}

/* An operand to be multiplied the other way round: by its second form, or turned now. */
static int other_way(struct backward *w, const struct qtensor *t, const char *what,
                     struct qtensor **turned, const struct qtensor **out, bool *second,
                     struct fault *f)
{
    *out = t;
    *second = qtensor_info(t).transposed;
    if (*second)
        return 0;
    int rc = qtensor_transpose(engine_of(w)->queue, engine_of(w)->o.ledger, t, what, turned, f);
    *out = *turned;
    return rc;
}

static bool reproducible(const struct backward *w)
{
    return plans_reproducible(engine_of(w)->o.plans, MODE_TRAIN);
}

static int enqueue_dgrad(struct backward *w, struct fault *f)
{
    struct gemm g = {.a = w->dyq, .out = w->dx, .precise = true, .reproducible = reproducible(w)};
    int rc =
        other_way(w, w->used[0], "the transposed weight", &w->turned[0], &g.b, &g.b_transposed, f);
    if (!rc)
        rc = backend_gemm(engine_of(w)->queue, &g, f);
    return rc ? rc : stage_back(engine_of(w), &w->dx, &w->grad_input.high, f);
}

static int enqueue_wgrad(struct backward *w, struct fault *f)
{
    const struct layer *l = layer_of(w);
    struct gemm g = {
        .a = w->dyq,
        .a_transposed = true,
        .out = w->next.weight,
        .precise = true,
        .reproducible = reproducible(w),
        .accumulate = l->gradient.held,
    };
#ifdef FP8D_MUTANT_GRADIENT_ADDS
    g.accumulate = !w->next.fresh;
#endif
    int rc =
        other_way(w, w->used[1], "the transposed input", &w->turned[1], &g.b, &g.b_transposed, f);
    return rc ? rc : backend_gemm(engine_of(w)->queue, &g, f);
}

/* The request's own scope. A model that is gone is fed nothing. */
static int enqueue_apply(struct backward *w, struct fault *f)
{
    const struct recipe *r = &w->model->recipe;
    struct scratch *s = w->scratch->data;
    if (r->kind != RECIPE_DELAYED || w->scope || w->model->gone)
        return 0;
    w->site = scope_apply_site(layer_of(w), SITE_GRAD_OUTPUT, r, &s->report.slot, s + 1);
    w->apply = true;
    struct apply apply = {&w->site, 1, r->algo, r->margin, w->model->frozen};
    return backend_apply(engine_of(w)->queue, &apply, f);
}

/* What changes state comes last, the gradient before the site: an operation that cannot be launched
 * keeps those behind it from running. */
static int enqueue_all(struct backward *w, struct fault *f)
{
    int rc = enqueue_stage(w, f);
    if (!rc)
        rc = gradient_carry(&layer_of(w)->gradient, &w->next, engine_of(w)->queue, f);
    if (!rc)
        rc = enqueue_cast(w, f);
    if (!rc && w->grad_input.high.buf)
        rc = enqueue_dgrad(w, f);
    if (!rc)
        rc = enqueue_wgrad(w, f);
    return rc ? rc : enqueue_apply(w, f);
}

static void enqueue(struct backward *w)
{
    struct scratch *s = w->scratch->data;
    struct queue *q = engine_of(w)->queue;
    struct fault none;
    if (w->a.time_compute)
        (void)backend_stamp(q, &s->begun, &none);
    /* All of it or none; the fault stays in the op. */
    queue_hold(q);
    queue_release(q, !enqueue_all(w, &w->op.fault));
    if (w->a.time_compute)
        (void)backend_stamp(q, &s->ended, &none);
}

/* --- after compute --- */

static void settle_site(struct backward *w)
{
    const struct scratch *s = w->scratch->host;
    struct layer *l = layer_of(w);
    if (w->apply)
        site_refresh(&l->sites[SITE_GRAD_OUTPUT], w->site.mirror);
    if (!w->scope || w->scope->orphan || w->model->recipe.kind != RECIPE_DELAYED)
        return;
    struct scope_part *p = scope_part(w->scope, l); /* reserved before compute */
    p->ran[SITE_GRAD_OUTPUT] = true;
    slot_merge(&p->slot[SITE_GRAD_OUTPUT], &s->report.slot);
}

static void answer(struct backward *w, bool accumulated)
{
    const struct scratch *s = w->scratch->host;
    struct backward_result r = {
        .grad_input = w->grad_input,
        .has_grad_input = w->grad_input.high.buf != NULL,
        .cast = w->dyq != NULL,
        .grad_output = s->report,
        .fmt = recipe_dtype(&w->model->recipe, SITE_GRAD_OUTPUT),
        .dropped = w->model->gone,
        .accumulated = accumulated,
        .applied = w->apply,
        .incarnation = w->model->incarnation,
        .weight_version = w->model->weight_version,
        .compute_ns = s->begun && s->ended > s->begun ? s->ended - s->begun : 0,
    };
    w->done(w->arg, &w->op.fault, &r);
}

static void fly(struct backward *w)
{
    struct layer *l = layer_of(w);
    if (w->op.fault.code)
        return;
    w->flight = (struct flight){
        .note = &w->op.note,
        .lease = w->a.lease,
        .model = w->model,
        .layer = l,
        .used = w->a.context,
        .filed = w->a.grad_input_id,
        .backward = true,
    };
    l->gradient.coming = &w->next;
    flight_begin(engine_of(w), &w->flight);
}

static void land(struct backward *w)
{
    if (w->flight.layer)
        w->flight.layer->gradient.coming = NULL;
    flight_end(w->a.lease->engine, &w->flight);
    let_go(w);
}

static void backward_finish(struct op *op)
{
    struct backward *w = (struct backward *)op;
    land(w);
    if (op->fault.code) {
        filing_withdraw(&w->filing);
        w->done(w->arg, &op->fault, NULL);
        backward_free(w);
        return;
    }
    bool accumulated = w->dyq && layer_of(w)->gradient.held;
    if (w->dyq) {
        settle_site(w);
        gradient_settle(&layer_of(w)->gradient, &w->next,
                        ((const struct scratch *)w->scratch->host)->report.slot.nonfinite);
    }
    filing_settle(&w->filing);
    context_end(w->a.context);
    w->a.context = NULL;
    answer(w, accumulated);
    backward_free(w);
}

int backward_start(const struct backward_args *a, backward_done_cb done, void *arg, struct fault *f)
{
    struct backward *w = mem_zalloc(sizeof *w);
    if (!w)
        return fault_set(f, -ENOMEM, "out of memory for the request");
    op_init(&w->op, a->lease->engine->o.exec, backward_finish);
    w->done = done;
    w->arg = arg;
    int rc = prepare(w, a, f);
    if (rc) {
        filing_withdraw(&w->filing);
        backward_free(w);
        return rc;
    }
    if (a->context->tokens) {
        enqueue(w);
        fly(w);
    }
    op_submit(&w->op, a->lease->engine->queue);
    return 0;
}
