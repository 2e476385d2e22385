/* fp8ctl forward. */
#include "client/ctl/cast.h"
#include "client/ctl/ctl.h"
#include "client/ctl/names.h"
#include "client/ctl/output.h"
#include "client/ctl/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>

/* All that is said about a forward. */
struct outcome {
    const struct fp8d_forward *q;
    const char *file;
    const struct fp8d_result *r;
    const struct fp8d_forward_result *y;
    struct output output;
};

static int forward_json(struct ctl *ctl, const struct outcome *o)
{
    const struct fp8d_reply *reply = fp8d_result_reply(o->r);
    json_t *j = json_begin(ctl);
    json_t *casts = json_object();
    json_put(ctl, casts, "input", json_cast(ctl, o->y->has_input, &o->y->input));
    json_put(ctl, casts, "weight", json_cast(ctl, o->y->has_weight, &o->y->weight));
    json_put(ctl, j, "model", json_text(o->q->model));
    json_put(ctl, j, "layer", json_text(o->q->layer));
    json_put_reply(ctl, j, o->r);
    json_put(ctl, j, "mode", json_string(mode_name(o->q->mode)));
    json_put(ctl, j, "context", o->q->context_id ? json_u64(o->q->context_id) : json_null());
    json_put(ctl, j, "output", output_json(ctl, &o->output));
    json_put(ctl, j, "casts", casts);
    json_put(ctl, j, "weight_copy", json_string(weight_copy_name(o->y->weight_copy)));
    json_put(ctl, j, "scales_applied", json_boolean(o->y->scales_applied));
    json_put(ctl, j, "queue_us", json_u64(reply->queue_us));
    json_put(ctl, j, "run_us", json_u64(reply->run_us));
    return json_end(ctl, j);
}

static int forward_print(const struct ctl *ctl, const struct outcome *o)
{
    const struct fp8d_forward_result *y = o->y;
    output_print(&o->output, "output  ", "y");
    printf("\nweight   %s%s\n", weight_copy_name(y->weight_copy),
           y->scales_applied ? "; own scope ended" : "");
    if (o->q->context_id)
        printf("context  %" PRIu64 "\n", o->q->context_id);
    return cast_print(ctl, y->has_input ? &y->input : NULL, y->has_weight ? &y->weight : NULL);
}

static int finish(struct ctl *ctl, struct outcome *o)
{
    struct fault f = {0};
    o->y = fp8d_result_forward(o->r);
    if (output_take(&o->output, "output", &o->y->output, o->file, &f))
        return ctl_fault(ctl, &f);
    return ctl->json ? forward_json(ctl, o) : forward_print(ctl, o);
}

static int forward(struct ctl *ctl, const struct fp8d_forward *q, const char *file)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_forward(ctl->c, q, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    struct outcome o = {.q = q, .file = file, .r = r};
    int rc = finish(ctl, &o);
    fp8d_result_free(r);
    return rc;
}

int cmd_forward(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct tensor_file input = {0};
    char model[129];
    struct fp8d_forward q = {
        .model = model,
        .mode = (enum fp8d_mode)args_choice(a, "mode"),
        .first_microbatch = (enum fp8d_first_microbatch)args_choice(a, "first-microbatch"),
        .output_dtype = (enum fp8d_dtype)args_choice(a, "output-dtype"),
        .context_id = args_number(a, "context"),
    };
    if (!ctl_split(ctl, a->argument[0], model, &q.layer))
        return CTL_USAGE;
    if (!args_has(a, "input"))
        return ctl_usage(ctl, "forward needs --input FILE[:TENSOR]");
    if (q.context_id && q.mode != FP8D_MODE_TRAIN)
        return ctl_usage(ctl, "--context is %s with --mode %s, needed --mode train",
                         args_text(a, "context"), mode_name(q.mode));
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (tensor_file_read(args_text(a, "input"), &input, &f))
        return ctl_fault(ctl, &f);
    q.input = input.tensor;
    rc = forward(ctl, &q, args_text(a, "output"));
    tensor_file_fini(&input);
    return rc;
}
