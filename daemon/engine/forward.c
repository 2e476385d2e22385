#include "daemon/engine/forward_run.h"

#include "base/mem.h"
#include "daemon/engine/highview.h"
#include "daemon/engine/output.h"

#include <errno.h>
#include <string.h>

/* --- before compute --- */

static int make_output(struct forward *w, enum dtype dtype, struct fault *f)
{
    const struct forward_args *a = &w->a;
    struct output_wish wish = {
        .rank = w->input.rank,
        .dims = w->input.dims,
        .rows = operand_rows(&w->input),
        .cols = a->layer->out,
        .dtype = dtype,
        .stays = a->output_id != 0,
        .inline_max = a->inline_max,
        .what = "the output",
        .id_field = "output_id",
    };
    return output_make(a->lease->engine, &wish, &w->output, f);
}

static void forward_free(struct forward *w)
{
    operand_fini(&w->input);
    operand_fini(&w->output);
    stage_fini(&w->stage);
    buffer_unref(w->scratch);
    qtensor_unref(w->xq);
    qtensor_unref(w->wq);
    buffer_unref(w->high.buf);
    model_unref(w->a.model);
    mem_free(w);
}

/* --- enqueueing --- */

static int enqueue_input(struct forward *w, struct fault *f)
{
    const struct forward_args *a = &w->a;
    if (w->input.q) {
        w->xq = qtensor_ref(w->input.q);
        return 0;
    }
    const struct recipe *r = &a->model->recipe;
    /* The mirror is current: nothing that moves a scale computes beside this. */
    bool set = site_mirror(&a->layer->sites[SITE_INPUT])->set;
    struct cast c = {
        .src = w->x,
        .fmt = recipe_dtype(r, SITE_INPUT),
        .mode = r->kind == RECIPE_CURRENT      ? CAST_TENSOR
                : a->mode == MODE_TRAIN || set ? CAST_SITE
                                               : CAST_TENSOR,
        .margin = r->margin,
        .site = site_state(&a->layer->sites[SITE_INPUT]),
        .report = &((struct forward_scratch *)w->scratch->data)->input,
        .transposed = a->context_id != 0, /* backward multiplies along the tokens */
    };
    return qtensor_cast(a->lease->engine->queue, a->lease->engine->o.ledger, &c, "the FP8 input",
                        &w->xq, f);
}

static int enqueue_weight(struct forward *w, struct fault *f)
{
    const struct forward_args *a = &w->a;
    if (w->choice.found) {
        w->wq = qtensor_ref(w->choice.found->q);
        forward_scratch(w)->weight = w->choice.found->report;
        return 0;
    }
    struct cast c = {
        .src = a->layer->weight.high,
        .fmt = w->choice.key.fmt,
        .mode = w->choice.key.from_tensor ? CAST_TENSOR : CAST_SITE,
        .margin = a->model->recipe.margin,
        .site = site_state(&a->layer->sites[SITE_WEIGHT]),
        .report = &((struct forward_scratch *)w->scratch->data)->weight,
        .transposed = a->context_id != 0,
    };
    return qtensor_cast(a->lease->engine->queue, a->lease->engine->o.ledger, &c,
                        "the FP8 copy of the weight", &w->wq, f);
}

/* The request's own scope: collect and apply behind the casts, in queue order. */
static int enqueue_apply(struct forward *w, struct fault *f)
{
    const struct forward_args *a = &w->a;
    const struct recipe *r = &a->model->recipe;
    struct forward_scratch *s = w->scratch->data;
    /* A reused copy feeds what it remembered; one that feeds nothing has an empty slot. */
    const struct amax_slot *weight = w->choice.feed ? &s->weight.slot : NULL;
    const struct amax_slot *input = w->input.q ? NULL : &s->input.slot;
    char *mirrors = (char *)(s + 1);
    w->sites[0] = scope_apply_site(a->layer, SITE_INPUT, r, input, mirrors);
    w->sites[1] =
        scope_apply_site(a->layer, SITE_WEIGHT, r, weight, mirrors + scaler_bytes(r->history_len));
    w->apply = true;
    struct apply apply = {w->sites, 2, r->algo, r->margin, a->model->frozen};
    return backend_apply(a->lease->engine->queue, &apply, f);
}

/* Input and output to where the backend computes; an FP8 input is there already. */
static int enqueue_stage(struct forward *w, struct fault *f)
{
    struct engine *e = w->a.lease->engine;
    int rc = w->input.q ? 0 : stage_in(&w->stage, e, &w->input.high, "the input", &w->x, f);
    return rc ? rc : stage_out(&w->stage, e, &w->output.high, "the output", &w->y, f);
}

static int enqueue_fp8(struct forward *w, struct fault *f)
{
    const struct forward_args *a = &w->a;
    int rc = enqueue_stage(w, f);
    if (!rc)
        rc = enqueue_input(w, f);
    if (!rc)
        rc = enqueue_weight(w, f);
    if (rc)
        return rc;
    struct gemm g = {
        .a = w->xq,
        .b = w->wq,
        .bias = a->layer->weight.bias.buf ? &a->layer->weight.bias : NULL,
        .out = w->y,
        .precise = a->model->recipe.fprop == ACCUMULATION_PRECISE,
        .reproducible = plans_reproducible(a->lease->engine->o.plans, a->mode),
    };
#ifdef FP8D_MUTANT_TRAIN_TIMED
    g.reproducible = false;
#endif
    rc = backend_gemm(a->lease->engine->queue, &g, f);
    if (!rc)
        rc = stage_back(a->lease->engine, &w->y, &w->output.high, f);
    bool delayed = a->model->recipe.kind == RECIPE_DELAYED;
    bool feeds = a->mode == MODE_TRAIN;
#ifdef FP8D_MUTANT_EVAL_FEEDS
    feeds = true;
#endif
    if (!rc && feeds && delayed && !w->scope)
        rc = enqueue_apply(w, f);
    return rc;
}

static int enqueue_calibrate(struct forward *w, struct fault *f)
{
    const struct forward_args *a = &w->a;
    struct queue *q = a->lease->engine->queue;
    struct forward_scratch *s = w->scratch->data;
    const struct weight *weight = &a->layer->weight;
    int rc = enqueue_stage(w, f);
    if (!rc)
        rc = highview_open(a->lease->engine, weight, &w->high, f);
    if (!rc)
        rc = backend_measure(q, &w->x, &s->input, f);
    if (!rc)
        rc = backend_measure(q, &w->high, &s->weight, f);
    struct gemm_high g = {
        .a = w->x,
        .b = w->high,
        .bias = weight->bias.buf ? &weight->bias : NULL,
        .out = w->y,
        .reproducible = plans_reproducible(a->lease->engine->o.plans, a->mode),
    };
    if (!rc)
        rc = backend_gemm_high(q, &g, f);
    return rc ? rc : stage_back(a->lease->engine, &w->y, &w->output.high, f);
}

/* A clock that cannot be read fails nothing: behind an apply the state has moved already. */
static void enqueue_reading(struct forward *w, uint64_t *at)
{
    struct fault f;
    if (w->a.time_compute)
        (void)backend_stamp(w->a.lease->engine->queue, at, &f);
}

/* What cannot be enqueued leaves its fault in the op: what was, must complete first. */
static void enqueue(struct forward *w)
{
    struct forward_scratch *s = w->scratch->data;
    if (!operand_rows(&w->input))
        return;
    enqueue_reading(w, &s->begun);
    if (w->a.mode == MODE_CALIBRATE)
        (void)enqueue_calibrate(w, &w->op.fault);
    else
        (void)enqueue_fp8(w, &w->op.fault);
    enqueue_reading(w, &s->ended);
}

/* --- the end --- */

/* What was made beforehand goes; nothing else has changed. */
static void withdraw(struct forward *w)
{
    if (w->context)
        context_end(w->context);
    filing_withdraw(&w->filing);
}

static void forward_finish(struct op *op)
{
    struct forward *w = (struct forward *)op;
    flight_end(w->a.lease->engine, &w->flight);
    if (op->fault.code) {
        withdraw(w);
        w->done(w->arg, &op->fault, NULL);
    } else {
        forward_settle(w);
        struct forward_result r = forward_result(w);
        w->done(w->arg, &op->fault, &r);
    }
    forward_free(w);
}

/* --- start --- */

/* Everything that the end needs, so that it cannot fail. */
static int reserve(struct forward *w, struct fault *f)
{
    const struct forward_args *a = &w->a;
    int rc = 0;
    struct scope *open = a->model->scope;
    w->scope = a->mode == MODE_TRAIN && open && open->lease == a->lease ? open : NULL;
    if (w->scope && operand_rows(&w->input) && a->model->recipe.kind == RECIPE_DELAYED)
        rc = scope_reserve(w->scope, f);
    if (!rc && a->context_id)
        rc = context_new(a->lease, a->context_id, a->model, a->layer, &w->input, &w->context, f);
    if (!rc && a->output_id)
        rc = filing_open(a->lease, a->output_id, "output_id", a->replace_output,
                         operand_ref(&w->output), &w->filing, f);
    return rc ? rc : flight_follow(a->lease->engine, f);
}

/* All is enqueued: a backward may use the context from now on, behind this. */
static void fly(struct forward *w)
{
    const struct forward_args *a = &w->a;
    if (w->op.fault.code)
        return;
    if (w->context)
        context_fill(w->context, w->xq, w->wq, w->output.high.dtype);
    if (a->mode != MODE_TRAIN || !operand_rows(&w->input))
        return;
    w->flight = (struct flight){
        .note = &w->op.note,
        .lease = a->lease,
        .model = a->model,
        .layer = a->layer,
        .filed = a->output_id,
    };
    flight_begin(a->lease->engine, &w->flight);
}

static int prepare(struct forward *w, const struct forward_args *a, struct fault *f)
{
    w->a = *a;
    w->a.model = model_ref(a->model);
    w->input = operand_ref(a->input);
    w->a.input = &w->input;
    w->incarnation = a->model->incarnation;
    w->weight_version = a->model->weight_version;
    enum dtype out = a->output_dtype ? a->output_dtype
                     : a->input->q   ? DTYPE_BF16
                                     : a->input->high.dtype;
    int rc = forward_check(&w->a, out, f);
    if (!rc)
        rc = make_output(w, out, f);
    uint64_t bytes =
        sizeof(struct forward_scratch) + 2 * scaler_bytes(a->model->recipe.history_len);
    if (!rc)
        rc = engine_host_buffer(a->lease->engine, bytes, "the request", &w->scratch, f);
    if (rc)
        return rc;
    memset(w->scratch->host, 0, bytes);
    return reserve(w, f);
}

int forward_start(const struct forward_args *a, forward_done_cb done, void *arg, struct fault *f)
{
    struct forward *w = mem_zalloc(sizeof *w);
    if (!w)
        return fault_set(f, -ENOMEM, "out of memory for the request");
    op_init(&w->op, a->lease->engine->o.exec, forward_finish);
    w->done = done;
    w->arg = arg;
    int rc = prepare(w, a, f);
    if (rc) {
        withdraw(w);
        forward_free(w);
        return rc;
    }
    const struct scaler *site = site_mirror(&a->layer->sites[SITE_WEIGHT]);
    w->choice = weight_choose(&a->layer->weight, &a->model->recipe, site, a->mode, a->first);
    enqueue(w);
    fly(w);
    op_submit(&w->op, a->lease->engine->queue);
    return 0;
}
