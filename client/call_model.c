/* Requests that make, change and remove models. */
#include "client/call.h"

static void fill_options(Fp8d__V1__LoadOptions *m, Fp8d__V1__Recipe *recipe,
                         const struct fp8d_load_options *o)
{
    fp8d__v1__load_options__init(m);
    m->recipe = call_recipe(recipe, &o->recipe);
    m->no_strict = o->no_strict;
    m->n_only = o->only_count;
    m->only = (char **)o->only;
    m->n_skip = o->skip_count;
    m->skip = (char **)o->skip;
    m->primary_fp8 = o->primary_fp8;
    m->dequantize = (Fp8d__V1__DType)o->dequantize;
    m->allow_nan = o->allow_nan;
    m->finish_calibration = o->finish_calibration;
    m->no_optimizer = o->no_optimizer;
}

int fp8d_submit_load_begin(struct fp8d *c, const struct fp8d_load_begin *load,
                           const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__LoadBeginRequest m = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    struct request r = {.type = REQUEST_LOAD_BEGIN, .msg = &m.base};
    Fp8d__V1__LoadOptions options;
    Fp8d__V1__Recipe recipe;
    Fp8d__V1__Expect expect;
    m.load_id = load->load_id;
    m.model = call_text(load->model);
    m.source = load->server_path ? FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH
                                 : FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_DESCRIPTORS;
    m.server_path = call_text(load->server_path);
    m.expect = call_expect(&expect, &load->expect);
    if (load->options) {
        fill_options(&options, &recipe, load->options);
        m.options = &options;
    }
    return call_submit(c, &r, call, id, err);
}

int fp8d_load_begin(struct fp8d *c, const struct fp8d_load_begin *load,
                    const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_load_begin(c, load, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_load_attach(struct fp8d *c, uint64_t load_id, const int *fds,
                            const char *const *names, size_t count, const struct fp8d_call *call,
                            uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__LoadAttachRequest m = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    struct request r = {.type = REQUEST_LOAD_ATTACH, .msg = &m.base};
    m.load_id = load_id;
    m.n_names = count;
    m.names = (char **)names;
    r.fds = fds;
    r.nfds = count < UINT32_MAX ? (unsigned)count : UINT32_MAX;
    return call_submit(c, &r, call, id, err);
}

int fp8d_load_attach(struct fp8d *c, uint64_t load_id, const int *fds, const char *const *names,
                     size_t count, const struct fp8d_call *call, struct fp8d_result **out,
                     struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_load_attach(c, load_id, fds, names, count, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_load_commit(struct fp8d *c, uint64_t load_id, fp8d_progress_cb progress, void *arg,
                            const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__LoadCommitRequest m = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    struct request r = {.type = REQUEST_LOAD_COMMIT, .msg = &m.base};
    m.load_id = load_id;
    m.progress = progress != NULL;
    r.progress = progress;
    r.arg = arg;
    return call_submit(c, &r, call, id, err);
}

int fp8d_load_commit(struct fp8d *c, uint64_t load_id, fp8d_progress_cb progress, void *arg,
                     const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_load_commit(c, load_id, progress, arg, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_drop_model(struct fp8d *c, const char *model, const struct fp8d_expect *expect,
                           const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__DropModelRequest m = FP8D__V1__DROP_MODEL_REQUEST__INIT;
    struct request r = {.type = REQUEST_DROP_MODEL, .msg = &m.base};
    Fp8d__V1__Expect expected;
    m.model = call_text(model);
    m.expect = call_expect(&expected, expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_drop_model(struct fp8d *c, const char *model, const struct fp8d_expect *expect,
                    const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_drop_model(c, model, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_edit_weight(struct fp8d *c, const struct fp8d_edit_weight *edit,
                            const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__EditWeightRequest m = FP8D__V1__EDIT_WEIGHT_REQUEST__INIT;
    struct request r = {.type = REQUEST_EDIT_WEIGHT, .msg = &m.base};
    Fp8d__V1__Expect expected;
    struct call_tensor weight, bias;
    int rc = call_tensor_fill(&weight, &edit->weight, &r, 0, err);
    if (!rc && edit->bias)
        rc = call_tensor_fill(&bias, edit->bias, &r, 1, err);
    if (rc)
        return rc;
    m.model = call_text(edit->model);
    m.layer = call_text(edit->layer);
    m.weight = &weight.ref;
    m.bias = edit->bias ? &bias.ref : NULL;
    m.expect = call_expect(&expected, &edit->expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_edit_weight(struct fp8d *c, const struct fp8d_edit_weight *edit,
                     const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_edit_weight(c, edit, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
