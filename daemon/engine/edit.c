#include "daemon/engine/edit.h"

#include "base/mem.h"
#include "daemon/engine/engine.h"

#include <errno.h>

struct edit {
    struct op op;
    struct model *model; /* own reference */
    struct layer *layer;
    struct operand from_weight, from_bias; /* own references */
    struct tensor weight, bias;            /* the layer's to be; own memory */
    edit_done_cb done;
    void *arg;
};

static int check(const struct layer *l, const struct operand *w, const struct operand *b,
                 struct fault *f)
{
    if (w->q)
        return fault_set(f, FP8D_EUNIMPLEMENTED,
                         "weight.dtype is %s; FP8 weights come with a load or CreateModel, needed "
                         "F32, BF16 or F16",
                         dtype_name(operand_dtype(w)));
    if (w->rank != 2 || w->dims[0] != l->out || w->dims[1] != l->in)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "weight.dims: rank %u of %llu x %llu elements, layer %s needed [%llu, %llu]",
                         w->rank, (unsigned long long)operand_rows(w),
                         (unsigned long long)operand_cols(w), l->name, (unsigned long long)l->out,
                         (unsigned long long)l->in);
    if (b && (b->q || b->rank != 1 || b->dims[0] != l->out))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "bias: %s of rank %u with last dimension %llu, layer %s needed F32, BF16 or "
                         "F16 of [%llu]",
                         dtype_name(operand_dtype(b)), b->rank,
                         (unsigned long long)b->dims[b->rank - 1], l->name,
                         (unsigned long long)l->out);
    return 0;
}

static void edit_free(struct edit *e)
{
    operand_fini(&e->from_weight);
    operand_fini(&e->from_bias);
    buffer_unref(e->weight.buf);
    buffer_unref(e->bias.buf);
    model_unref(e->model);
    mem_free(e);
}

/* Memory of the layer's own, and the copy to it. */
static int copy_in(struct edit *e, const struct operand *from, const char *what, struct tensor *to,
                   struct fault *f)
{
    struct engine *engine = e->model->engine;
    uint64_t bytes = operand_bytes(from);
    *to = (struct tensor){.dtype = from->high.dtype, .rows = from->high.rows, .cols = from->high.cols};
    int rc = buffer_new(engine->o.backend, engine->o.ledger, BUFFER_DEVICE, bytes, what, &to->buf, f);
    if (rc)
        return rc;
    return backend_copy(engine->queue, to->buf, 0, from->high.buf, from->high.offset, bytes, f);
}

static void install(struct edit *e)
{
    struct layer *l = e->layer;
    struct site *s = &l->sites[SITE_WEIGHT];
    if (!e->bias.buf && l->weight.bias.buf) {
        e->bias = l->weight.bias;
        buffer_ref(e->bias.buf);
    }
    /* A calibration has seen the old weight's maximum; the new one is yet to be seen. */
    s->calibration_amax = 0.0f;
    s->calibration_seen = false;
    /* Another weight has another master; moments go on, as for a parameter that is written to. */
    optimizer_state_rebase(&l->weight_state);
    if (e->bias.buf != l->weight.bias.buf)
        optimizer_state_rebase(&l->bias_state);
    e->model->weight_version++;
    weight_replace(&l->weight, e->weight, e->bias, e->model->weight_version);
    e->weight = (struct tensor){0};
    e->bias = (struct tensor){0};
}

static void finish(struct op *op)
{
    struct edit *e = (struct edit *)op;
    if (!op->fault.code)
        (void)model_check_here(e->model, &op->fault);
    if (!op->fault.code)
        install(e);
    e->done(e->arg, &op->fault);
    edit_free(e);
}

int edit_start(struct model *m, struct layer *l, const struct operand *weight,
               const struct operand *bias, edit_done_cb done, void *arg, struct fault *f)
{
    int rc = check(l, weight, bias, f);
    if (!rc)
        rc = model_check_counts(m, f);
    if (rc)
        return rc;
    struct edit *e = mem_zalloc(sizeof *e);
    if (!e)
        return fault_set(f, -ENOMEM, "out of memory for the edit");
    op_init(&e->op, m->engine->o.exec, finish);
    e->model = model_ref(m);
    e->layer = l;
    e->from_weight = operand_ref(weight);
    if (bias)
        e->from_bias = operand_ref(bias);
    e->done = done;
    e->arg = arg;
    /* A fault stays in the op: what was enqueued must complete first. */
    if (!copy_in(e, weight, "the weight", &e->weight, &e->op.fault) && bias)
        (void)copy_in(e, bias, "the bias", &e->bias, &e->op.fault);
    op_submit(&e->op, m->engine->queue);
    return 0;
}
