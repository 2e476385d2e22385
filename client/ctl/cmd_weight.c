/* fp8ctl set-weight. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>

static int weight_result(struct ctl *ctl, const char *target, const struct fp8d_result *r)
{
    char text[CTL_TEXT];
    if (!ctl->json) {
        printf("%s has a new weight, version %" PRIu64 "\n", ctl_text(text, target),
               fp8d_result_reply(r)->weight_version);
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "target", json_text(target));
    json_put_reply(ctl, o, r);
    return json_end(ctl, o);
}

static int edit(struct ctl *ctl, const char *target, const struct fp8d_edit_weight *e)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_edit_weight(ctl->c, e, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    int rc = weight_result(ctl, target, r);
    fp8d_result_free(r);
    return rc;
}

int cmd_set_weight(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct tensor_file weight = {0}, bias = {0};
    struct fp8d_edit_weight e = {0};
    char model[129];
    const char *bias_file = args_text(a, "bias");
    if (!ctl_split(ctl, a->argument[0], model, &e.layer))
        return CTL_USAGE;
    if (!args_has(a, "input"))
        return ctl_usage(ctl, "set-weight needs --input FILE[:TENSOR]");
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    rc = tensor_file_read(args_text(a, "input"), &weight, &f);
    if (!rc && bias_file)
        rc = tensor_file_read(bias_file, &bias, &f);
    e.model = model;
    e.weight = weight.tensor;
    e.bias = bias_file ? &bias.tensor : NULL;
    rc = rc ? ctl_fault(ctl, &f) : edit(ctl, a->argument[0], &e);
    tensor_file_fini(&weight);
    tensor_file_fini(&bias);
    return rc;
}
