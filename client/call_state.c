/* Requests about a model's state: its scaling, its recipe, and saves. */
#include "client/call.h"

int fp8d_submit_set_scaling(struct fp8d *c, const char *model, enum fp8d_scaling_action action,
                            const struct fp8d_expect *expect, const struct fp8d_call *call,
                            uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__SetScalingRequest m = FP8D__V1__SET_SCALING_REQUEST__INIT;
    struct request r = {.type = REQUEST_SET_SCALING, .msg = &m.base};
    Fp8d__V1__Expect expected;
    m.model = call_text(model);
    m.action = (Fp8d__V1__ScalingAction)action;
    m.expect = call_expect(&expected, expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_set_scaling(struct fp8d *c, const char *model, enum fp8d_scaling_action action,
                     const struct fp8d_expect *expect, const struct fp8d_call *call,
                     struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_set_scaling(c, model, action, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_set_recipe(struct fp8d *c, const char *model, const struct fp8d_recipe *recipe,
                           const struct fp8d_expect *expect, const struct fp8d_call *call,
                           uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__SetRecipeRequest m = FP8D__V1__SET_RECIPE_REQUEST__INIT;
    struct request r = {.type = REQUEST_SET_RECIPE, .msg = &m.base};
    Fp8d__V1__Expect expected;
    Fp8d__V1__Recipe wanted;
    m.model = call_text(model);
    m.recipe = call_recipe(&wanted, recipe);
    m.expect = call_expect(&expected, expect);
    return call_submit(c, &r, call, id, err);
}

int fp8d_set_recipe(struct fp8d *c, const char *model, const struct fp8d_recipe *recipe,
                    const struct fp8d_expect *expect, const struct fp8d_call *call,
                    struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_set_recipe(c, model, recipe, expect, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_save_begin(struct fp8d *c, const struct fp8d_save_begin *save,
                           const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__SaveBeginRequest m = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    struct request r = {.type = REQUEST_SAVE_BEGIN, .msg = &m.base};
    Fp8d__V1__Expect expect;
    m.save_id = save->save_id;
    m.model = call_text(save->model);
    m.target = save->server_path ? FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH
                                 : FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_DESCRIPTORS;
    m.server_path = call_text(save->server_path);
    m.expect = call_expect(&expect, &save->expect);
    m.no_optimizer = save->no_optimizer;
    return call_submit(c, &r, call, id, err);
}

int fp8d_save_begin(struct fp8d *c, const struct fp8d_save_begin *save,
                    const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_save_begin(c, save, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_save_attach(struct fp8d *c, uint64_t save_id, int fd, const char *name,
                            const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__SaveAttachRequest m = FP8D__V1__SAVE_ATTACH_REQUEST__INIT;
    struct request r = {.type = REQUEST_SAVE_ATTACH, .msg = &m.base};
    char *names[1] = {call_text(name)};
    m.save_id = save_id;
    m.n_names = 1;
    m.names = names;
    r.fds = &fd;
    r.nfds = 1;
    return call_submit(c, &r, call, id, err);
}

int fp8d_save_attach(struct fp8d *c, uint64_t save_id, int fd, const char *name,
                     const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_save_attach(c, save_id, fd, name, call, &id, err);
    return call_finish(c, rc, id, out, err);
}

int fp8d_submit_save_commit(struct fp8d *c, uint64_t save_id, fp8d_progress_cb progress, void *arg,
                            const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err)
{
    Fp8d__V1__SaveCommitRequest m = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    struct request r = {.type = REQUEST_SAVE_COMMIT, .msg = &m.base};
    m.save_id = save_id;
    m.progress = progress != NULL;
    r.progress = progress;
    r.arg = arg;
    return call_submit(c, &r, call, id, err);
}

int fp8d_save_commit(struct fp8d *c, uint64_t save_id, fp8d_progress_cb progress, void *arg,
                     const struct fp8d_call *call, struct fp8d_result **out, struct fp8d_error *err)
{
    uint64_t id = 0;
    int rc = fp8d_submit_save_commit(c, save_id, progress, arg, call, &id, err);
    return call_finish(c, rc, id, out, err);
}
