/* fp8ctl backward, recompute, drop-context: what becomes of a context. */
#include "client/ctl/cast.h"
#include "client/ctl/ctl.h"
#include "client/ctl/output.h"
#include "client/ctl/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* All that is said about a backward. */
struct outcome {
    const struct fp8d_backward *q;
    const char *file;
    const struct fp8d_result *r;
    const struct fp8d_backward_result *g;
    struct output output; /* unless q->no_grad_input */
};

/* The number of a context, the first argument. False after a usage error. */
static bool take_context(const struct ctl *ctl, const struct args *a, uint64_t *id)
{
    char text[CTL_TEXT];
    if (!args_is_number(a->argument[0], 1, UINT32_MAX)) {
        ctl_usage(ctl, "ID is '%s', needed a whole number from 1 to %u",
                  ctl_text(text, a->argument[0]), UINT32_MAX);
        return false;
    }
    *id = strtoul(a->argument[0], NULL, 10);
    return true;
}

static int backward_json(struct ctl *ctl, const struct outcome *o)
{
    const struct fp8d_reply *reply = fp8d_result_reply(o->r);
    json_t *j = json_begin(ctl);
    json_t *casts = json_object();
    json_put(ctl, casts, "grad_output", json_cast(ctl, o->g->has_grad_output, &o->g->grad_output));
    json_put(ctl, j, "context", json_u64(o->q->context_id));
    json_put_reply(ctl, j, o->r);
    json_put(ctl, j, "grad_input",
             o->q->no_grad_input ? json_null() : output_json(ctl, &o->output));
    json_put(ctl, j, "casts", casts);
    json_put(ctl, j, "dropped", json_boolean(o->g->dropped));
    json_put(ctl, j, "accumulated", json_boolean(o->g->accumulated));
    json_put(ctl, j, "scales_applied", json_boolean(o->g->scales_applied));
    json_put(ctl, j, "queue_us", json_u64(reply->queue_us));
    json_put(ctl, j, "run_us", json_u64(reply->run_us));
    return json_end(ctl, j);
}

static int backward_print(const struct ctl *ctl, const struct outcome *o)
{
    if (!o->q->no_grad_input) {
        output_print(&o->output, "grad_input", "dx");
        putchar('\n');
    }
    printf("gradients  %s%s\n",
           o->g->dropped       ? "dropped: the model was replaced or unloaded"
           : o->g->accumulated ? "added to"
                               : "overwritten",
           o->g->scales_applied ? "; own scope ended" : "");
    return o->g->has_grad_output ? cast_print_grad(ctl, &o->g->grad_output) : CTL_OK;
}

static int finish(struct ctl *ctl, struct outcome *o)
{
    struct fault f = {0};
    o->g = fp8d_result_backward(o->r);
    if (!o->q->no_grad_input && !o->g->has_grad_input) {
        fault_set(&f, FP8D_EPROTOCOL, "the reply has no grad_input");
        return ctl_fault(ctl, &f);
    }
    if (!o->q->no_grad_input &&
        output_take(&o->output, "grad_input", &o->g->grad_input, o->file, &f))
        return ctl_fault(ctl, &f);
    return ctl->json ? backward_json(ctl, o) : backward_print(ctl, o);
}

static int backward(struct ctl *ctl, const struct fp8d_backward *q, const char *file)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_backward(ctl->c, q, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    struct outcome o = {.q = q, .file = file, .r = r};
    int rc = finish(ctl, &o);
    fp8d_result_free(r);
    return rc;
}

static bool options_good(const struct ctl *ctl, const struct args *a)
{
    const char *with = args_has(a, "output") ? "output" : "output-dtype";
    if (!args_has(a, "grad-output"))
        ctl_usage(ctl, "backward needs --grad-output FILE[:TENSOR]");
    else if (args_has(a, "no-grad-input") && args_has(a, with))
        ctl_usage(ctl, "--no-grad-input and --%s exclude each other", with);
    else
        return true;
    return false;
}

int cmd_backward(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct tensor_file grad_output = {0};
    struct fp8d_backward q = {
        .grad_input_dtype = (enum fp8d_dtype)args_choice(a, "output-dtype"),
        .no_grad_input = args_has(a, "no-grad-input"),
    };
    if (!take_context(ctl, a, &q.context_id) || !options_good(ctl, a))
        return CTL_USAGE;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (tensor_file_read(args_text(a, "grad-output"), &grad_output, &f))
        return ctl_fault(ctl, &f);
    q.grad_output = grad_output.tensor;
    rc = backward(ctl, &q, args_text(a, "output"));
    tensor_file_fini(&grad_output);
    return rc;
}

/* --- recompute --- */

static int recompute_json(struct ctl *ctl, uint64_t id, const struct fp8d_result *r,
                          const struct output *o)
{
    const struct fp8d_reply *reply = fp8d_result_reply(r);
    json_t *j = json_begin(ctl);
    json_put(ctl, j, "context", json_u64(id));
    json_put_reply(ctl, j, r);
    json_put(ctl, j, "output", output_json(ctl, o));
    json_put(ctl, j, "queue_us", json_u64(reply->queue_us));
    json_put(ctl, j, "run_us", json_u64(reply->run_us));
    return json_end(ctl, j);
}

int cmd_recompute(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct fp8d_error err;
    struct fp8d_result *r;
    struct output o;
    struct fp8d_recompute q = {.output_dtype = (enum fp8d_dtype)args_choice(a, "output-dtype")};
    if (!take_context(ctl, a, &q.context_id))
        return CTL_USAGE;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_recompute(ctl->c, &q, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    if (output_take(&o, "output", &fp8d_result_recompute(r)->output, args_text(a, "output"), &f)) {
        rc = ctl_fault(ctl, &f);
    } else if (ctl->json) {
        rc = recompute_json(ctl, q.context_id, r, &o);
    } else {
        output_print(&o, "output", "y");
        putchar('\n');
    }
    fp8d_result_free(r);
    return rc;
}

/* --- drop-context --- */

int cmd_drop_context(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    uint64_t id = 0;
    if (!take_context(ctl, a, &id))
        return CTL_USAGE;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_drop_context(ctl->c, id, NULL, NULL, &err))
        return ctl_failed(ctl, &err);
    if (!ctl->json) {
        printf("context %" PRIu64 " dropped\n", id);
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "dropped", json_u64(id));
    return json_end(ctl, o);
}
