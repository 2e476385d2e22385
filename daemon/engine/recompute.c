#include "daemon/engine/recompute.h"

#include "base/mem.h"
#include "daemon/engine/output.h"
#include "daemon/engine/stage.h"

#include <errno.h>
#include <string.h>

/* Readings of the device's clock, in host-readable memory; 0: not read. */
struct readings {
    uint64_t begun, ended;
};

struct recompute {
    struct op op;
    struct recompute_args a;
    struct model *model; /* own reference, as are the operands below */
    struct qtensor *x, *w;
    struct tensor bias; /* buf NULL: none */
    struct operand output;
    struct stage stage;
    struct tensor y; /* where the backend computes */
    struct buffer *readings;
    struct filing filing;
    struct recompute_result r;
    recompute_done_cb done;
    void *arg;
};

static struct engine *engine_of(const struct recompute *w)
{
    return w->a.lease->engine;
}

/* --- before compute --- */

static void take_operands(struct recompute *w, const struct context *c)
{
    w->model = model_ref(c->model);
    w->x = c->input ? qtensor_ref(c->input) : NULL;
    w->w = c->weight ? qtensor_ref(c->weight) : NULL;
    w->bias = c->bias;
    if (w->bias.buf)
        buffer_ref(w->bias.buf);
    w->r.incarnation = c->incarnation;
    w->r.weight_version = c->weight_version;
}

static int make_output(struct recompute *w, enum dtype dtype, struct fault *f)
{
    const struct recompute_args *a = &w->a;
    struct output_wish wish = {
        .rank = a->context->rank,
        .dims = a->context->dims,
        .rows = a->context->tokens,
        .cols = a->context->layer->out,
        .dtype = dtype,
        .stays = a->output_id != 0,
        .inline_max = a->inline_max,
        .what = "the output",
        .id_field = "output_id",
    };
    int rc = output_make(engine_of(w), &wish, &w->output, f);
    if (!rc && a->output_id)
        rc = filing_open(a->lease, a->output_id, "output_id", a->replace_output,
                         operand_ref(&w->output), &w->filing, f);
    return rc;
}

static int prepare(struct recompute *w, struct fault *f)
{
    const struct context *c = w->a.context;
    enum dtype out = w->a.output_dtype ? w->a.output_dtype : c->output_dtype;
    if (!dtype_is_high(out))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "output_dtype is %s, needed F32, BF16 or F16",
                         dtype_name(out));
    take_operands(w, c);
    int rc =
        engine_host_buffer(engine_of(w), sizeof(struct readings), "the request", &w->readings, f);
    if (rc)
        return rc;
    memset(w->readings->host, 0, sizeof(struct readings));
    return make_output(w, out, f);
}

static void recompute_free(struct recompute *w)
{
    operand_fini(&w->output);
    stage_fini(&w->stage);
    buffer_unref(w->readings);
    buffer_unref(w->bias.buf);
    qtensor_unref(w->x);
    qtensor_unref(w->w);
    model_unref(w->model);
    mem_free(w);
}

/* --- compute --- */

static int enqueue_gemm(struct recompute *w, struct fault *f)
{
    struct gemm g = {
        .a = w->x,
        .b = w->w,
        .bias = w->bias.buf ? &w->bias : NULL,
        .precise = w->model->recipe.fprop == ACCUMULATION_PRECISE,
        .reproducible = plans_reproducible(engine_of(w)->o.plans, MODE_TRAIN),
    };
    int rc = stage_out(&w->stage, engine_of(w), &w->output.high, "the output", &w->y, f);
    g.out = w->y;
    if (!rc)
        rc = backend_gemm(engine_of(w)->queue, &g, f);
    return rc ? rc : stage_back(engine_of(w), &w->y, &w->output.high, f);
}

static void enqueue(struct recompute *w)
{
    struct readings *s = w->readings->data;
    struct queue *q = engine_of(w)->queue;
    struct fault none;
    if (w->a.time_compute)
        (void)backend_stamp(q, &s->begun, &none);
    (void)enqueue_gemm(w, &w->op.fault); /* what was enqueued must complete first */
    if (w->a.time_compute)
        (void)backend_stamp(q, &s->ended, &none);
}

static void finish(struct op *op)
{
    struct recompute *w = (struct recompute *)op;
    const struct readings *s = w->readings->host;
    if (op->fault.code) {
        filing_withdraw(&w->filing);
    } else {
        filing_settle(&w->filing);
        w->r.output = w->output;
        w->r.compute_ns = s->begun && s->ended > s->begun ? s->ended - s->begun : 0;
    }
    w->done(w->arg, &op->fault, op->fault.code ? NULL : &w->r);
    recompute_free(w);
}

int recompute_start(const struct recompute_args *a, recompute_done_cb done, void *arg,
                    struct fault *f)
{
    struct recompute *w = mem_zalloc(sizeof *w);
    if (!w)
        return fault_set(f, -ENOMEM, "out of memory for the request");
    op_init(&w->op, a->lease->engine->o.exec, finish);
    w->a = *a;
    w->done = done;
    w->arg = arg;
    int rc = prepare(w, f);
    if (rc) {
        filing_withdraw(&w->filing);
        recompute_free(w);
        return rc;
    }
    if (a->context->tokens)
        enqueue(w);
    op_submit(&w->op, a->lease->engine->queue);
    return 0;
}
