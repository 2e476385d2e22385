#include "daemon/engine/check.h"

#include "base/checked.h"
#include "base/mem.h"
#include "daemon/engine/forward.h"
#include "daemon/engine/highview.h"
#include "daemon/engine/stage.h"

#include <errno.h>
#include <string.h>

struct scratch {
    struct cast_report input, weight;
    struct compare_report compare;
};

struct check {
    struct op op;
    struct engine *engine;
    struct model *model;
    struct layer *layer;
    struct operand input;
    struct stage stage;
    struct tensor x;         /* the input where the backend computes */
    struct tensor low, high; /* outputs, F32 */
    struct buffer *scratch;
    struct qtensor *xq, *wq;
    struct tensor view;      /* the weight in high precision; own reference */
    struct copy_choice choice;
    struct check_result result;
    check_done_cb done;
    void *arg;
};

static void check_free(struct check *c)
{
    operand_fini(&c->input);
    stage_fini(&c->stage);
    buffer_unref(c->low.buf);
    buffer_unref(c->high.buf);
    buffer_unref(c->scratch);
    qtensor_unref(c->xq);
    qtensor_unref(c->wq);
    buffer_unref(c->view.buf);
    model_unref(c->model);
    mem_free(c);
}

static void check_finish(struct op *op)
{
    struct check *c = (struct check *)op;
    if (!op->fault.code) {
        const struct scratch *s = c->scratch->host;
        c->result.input = s->input;
        c->result.weight = s->weight;
        c->result.compare = s->compare;
        c->layer->sites[SITE_INPUT].uncalibrated_casts += c->result.uncalibrated && s->input.from_tensor;
        c->layer->sites[SITE_WEIGHT].uncalibrated_casts +=
            c->result.uncalibrated && s->weight.from_tensor;
    }
    c->done(c->arg, &op->fault, op->fault.code ? NULL : &c->result);
    check_free(c);
}

static int make_buffers(struct check *c, struct fault *f)
{
    uint64_t n;
    uint64_t bytes;
    c->low = (struct tensor){NULL, 0, DTYPE_F32, c->input.high.rows, c->layer->out};
    if (!ck_mul(c->low.rows, c->low.cols, &n) || !dtype_bytes(DTYPE_F32, n, &bytes))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "input.dims: too many tokens");
    c->high = c->low;
    struct engine *e = c->engine;
    int rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes, "the FP8 output",
                        &c->low.buf, f);
    if (!rc)
        rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, bytes,
                        "the high-precision output", &c->high.buf, f);
    if (!rc)
        rc = engine_host_buffer(e, sizeof(struct scratch), "the request", &c->scratch, f);
    if (!rc)
        memset(c->scratch->host, 0, sizeof(struct scratch));
    return rc;
}

static int enqueue_casts(struct check *c, struct fault *f)
{
    const struct recipe *r = &c->model->recipe;
    struct scratch *s = c->scratch->data;
    int rc = stage_in(&c->stage, c->engine, &c->input.high, "the input", &c->x, f);
    if (rc)
        return rc;
    struct cast cast = {
        .src = c->x,
        .fmt = c->result.input_fmt,
        .mode = r->kind == RECIPE_CURRENT ? CAST_TENSOR : CAST_SITE_OR_TENSOR,
        .margin = r->margin,
        .site = site_state(&c->layer->sites[SITE_INPUT]),
        .report = &s->input,
    };
    rc = qtensor_cast(c->engine->queue, c->engine->o.ledger, &cast, "the FP8 input", &c->xq, f);
    if (rc)
        return rc;
    if (c->choice.found) {
        c->wq = qtensor_ref(c->choice.found->q);
        ((struct scratch *)c->scratch->host)->weight = c->choice.found->report;
        return 0;
    }
    cast.src = c->layer->weight.high;
    cast.fmt = c->choice.key.fmt;
    cast.mode = c->choice.key.from_tensor ? CAST_TENSOR : CAST_SITE;
    cast.site = site_state(&c->layer->sites[SITE_WEIGHT]);
    cast.report = &s->weight;
    return qtensor_cast(c->engine->queue, c->engine->o.ledger, &cast, "the FP8 copy of the weight",
                        &c->wq, f);
}

static int enqueue(struct check *c, struct fault *f)
{
    struct queue *q = c->engine->queue;
    const struct weight *w = &c->layer->weight;
    const struct tensor *bias = w->bias.buf ? &w->bias : NULL;
    int rc = enqueue_casts(c, f);
    if (!rc)
        rc = highview_open(c->engine, w, &c->view, f);
    if (rc)
        return rc;
    struct gemm g = {
        .a = c->xq,
        .b = c->wq,
        .bias = bias,
        .out = c->low,
        .precise = c->model->recipe.fprop == ACCUMULATION_PRECISE,
        .reproducible = plans_reproducible(c->engine->o.plans, MODE_CHECK),
    };
    struct gemm_high h = {
        .a = c->x, .b = c->view, .bias = bias, .out = c->high, .reproducible = g.reproducible};
#ifdef FP8D_MUTANT_CHECK_FAST
    g.precise = false;
#endif
    rc = backend_gemm(q, &g, f);
    if (!rc)
        rc = backend_gemm_high(q, &h, f);
    if (!rc)
        rc = backend_compare(q, &c->low, &c->high, &((struct scratch *)c->scratch->data)->compare,
                             f);
    return rc;
}

int check_start(struct lease *l, struct model *m, struct layer *layer, const struct operand *input,
                check_done_cb done, void *arg, struct fault *f)
{
    int rc = forward_check_input(layer, input, false, f);
    if (rc)
        return rc;
    struct check *c = mem_zalloc(sizeof *c);
    if (!c)
        return fault_set(f, -ENOMEM, "out of memory for the request");
    op_init(&c->op, l->engine->o.exec, check_finish);
    c->engine = l->engine;
    c->model = model_ref(m);
    c->layer = layer;
    c->input = operand_ref(input);
    c->done = done;
    c->arg = arg;
    c->result.incarnation = m->incarnation;
    c->result.weight_version = m->weight_version;
    c->result.uncalibrated = m->recipe.kind == RECIPE_DELAYED;
    c->result.input_fmt = recipe_dtype(&m->recipe, SITE_INPUT);
    c->result.input_elements = operand_rows(input) * operand_cols(input);
    c->result.weight_elements = layer->in * layer->out;
    rc = make_buffers(c, f);
    if (rc) {
        check_free(c);
        return rc;
    }
    const struct scaler *site = site_mirror(&layer->sites[SITE_WEIGHT]);
    c->choice = weight_choose(&layer->weight, &m->recipe, site, MODE_CHECK, FIRST_UNSET);
    c->result.weight_fmt = c->choice.key.fmt;
    if (c->input.high.rows)
        (void)enqueue(c, &c->op.fault);
    op_submit(&c->op, l->engine->queue);
    return 0;
}
