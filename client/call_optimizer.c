/* Requests about a model's optimizer. */
#include "client/call.h"

#include "base/mem.h"

#include <errno.h>

#define LAYERS_MAX 4096

/* The messages of the layers' own options. */
struct own {
    Fp8d__V1__LayerOptions *layers; /* heap, with the list of pointers to them */
    Fp8d__V1__LayerOptions **list;
};

static void own_fini(struct own *s)
{
    mem_free(s->layers);
    mem_free(s->list);
}

static int own_init(struct own *s, const struct fp8d_layer_options *from, size_t count,
                    struct fault *f)
{
    *s = (struct own){0};
    if (count > LAYERS_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "layers has %zu entries, needed at most %d",
                         count, LAYERS_MAX);
    s->layers = mem_array(count + 1, sizeof *s->layers);
    s->list = mem_array(count + 1, sizeof *s->list);
    if (!s->layers || !s->list)
        return fault_set(f, -ENOMEM, "no memory for the options of %zu layers", count);
    for (size_t i = 0; i < count; i++) {
        Fp8d__V1__LayerOptions *m = &s->layers[i];
        fp8d__v1__layer_options__init(m);
        m->layer = call_text(from[i].layer);
        m->rate = from[i].rate;
        m->weight_decay = from[i].weight_decay;
        m->weight_decay_set = from[i].weight_decay_set;
        m->frozen = from[i].frozen;
        s->list[i] = m;
    }
    return 0;
}

static Fp8d__V1__OptimizerOptions *take_options(Fp8d__V1__OptimizerOptions *m,
                                                const struct fp8d_optimizer *o)
{
    fp8d__v1__optimizer_options__init(m);
    m->kind = (Fp8d__V1__OptimizerKind)o->kind;
    m->rate = o->rate;
    m->momentum = o->momentum;
    m->dampening = o->dampening;
    m->nesterov = o->nesterov;
    m->beta1 = o->beta1;
    m->beta2 = o->beta2;
    m->eps = o->eps;
    m->weight_decay = o->weight_decay;
    m->weight_decay_set = o->weight_decay_set;
    return m;
}

int fp8d_submit_set_optimizer(struct fp8d *c, const char *model,
                              const struct fp8d_optimizer *optimizer,
                              const struct fp8d_layer_options *layers, size_t count,
                              const struct fp8d_expect *expect, const struct fp8d_call *call,
                              uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__SetOptimizerRequest m = FP8D__V1__SET_OPTIMIZER_REQUEST__INIT;
    struct request r = {.type = REQUEST_SET_OPTIMIZER, .msg = &m.base};
    Fp8d__V1__OptimizerOptions options;
    Fp8d__V1__Expect expected;
    struct fault f = {0};
    struct own own;
    int rc = own_init(&own, layers, count, &f);
    if (rc) {
        (void)call_error(&f, err);
    } else {
        m.model = call_text(model);
        m.options = take_options(&options, optimizer);
        m.n_layers = count;
        m.layers = own.list;
        m.expect = call_expect(&expected, expect);
        rc = call_submit(c, &r, call, id, err);
    }
    own_fini(&own);
    return rc;
}

int fp8d_set_optimizer(struct fp8d *c, const char *model, const struct fp8d_optimizer *optimizer,
                       const struct fp8d_layer_options *layers, size_t count,
                       const struct fp8d_expect *expect, const struct fp8d_call *call,
                       struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_set_optimizer(c, model, optimizer, layers, count, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_step(struct fp8d *c, const struct fp8d_step *step, const struct fp8d_call *call,
                     uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__StepRequest m = FP8D__V1__STEP_REQUEST__INIT;
    struct request r = {.type = REQUEST_STEP, .msg = &m.base};
    Fp8d__V1__Expect expected;
    m.model = call_text(step->model);
    m.step = step->step;
    m.loss_scale = step->loss_scale;
    m.max_norm = step->max_norm;
    m.time_compute = step->time_compute;
    m.expect = call_expect(&expected, &step->expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_step(struct fp8d *c, const struct fp8d_step *step, const struct fp8d_call *call,
              struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_step(c, step, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
