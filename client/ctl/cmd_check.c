/* fp8ctl check. */
#include "client/ctl/cast.h"
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>

static int check_json(struct ctl *ctl, const char *target, const struct fp8d_result *r)
{
    const struct fp8d_check *k = fp8d_result_check(r);
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "target", json_text(target));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "max_abs_error", json_f64(k->max_abs_error));
    json_put(ctl, o, "max_abs_reference", json_f64(k->max_abs_reference));
    json_put(ctl, o, "relative_error", json_f64(k->relative_error));
    json_put(ctl, o, "nonfinite_outputs", json_u64(k->nonfinite_outputs));
    json_put(ctl, o, "input", json_cast(ctl, k->has_input, &k->input));
    json_put(ctl, o, "weight", json_cast(ctl, k->has_weight, &k->weight));
    json_put(ctl, o, "input_elements", json_u64(k->input_elements));
    json_put(ctl, o, "weight_elements", json_u64(k->weight_elements));
    return json_end(ctl, o);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_share(const char *name, const struct fp8d_cast *c, uint64_t elements)
{
    printf("%-10s of %" PRIu64 " elements %.4g %% saturated, %.4g %% flushed to zero\n", name,
           elements, percent(c->saturated, elements), percent(c->flushed, elements));
}

static int check_print(const struct ctl *ctl, const struct fp8d_check *k)
{
    printf("error      relative %.6g, largest %.6g where max|y| is %.6g\n", k->relative_error,
           k->max_abs_error, k->max_abs_reference);
    if (k->nonfinite_outputs)
        printf("left out   %" PRIu64 " outputs that are not finite\n", k->nonfinite_outputs);
    if (k->has_input)
        print_share("input", &k->input, k->input_elements);
    if (k->has_weight)
        print_share("weight", &k->weight, k->weight_elements);
    return cast_print(ctl, k->has_input ? &k->input : NULL, k->has_weight ? &k->weight : NULL);
}

static int check(struct ctl *ctl, const char *target, const char *model, const char *layer,
                 const struct fp8d_tensor *input)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_check_numerics(ctl->c, model, layer, input, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    int rc = ctl->json ? check_json(ctl, target, r) : check_print(ctl, fp8d_result_check(r));
    fp8d_result_free(r);
    return rc;
}

int cmd_check(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct tensor_file input = {0};
    char model[129];
    const char *layer;
    if (!ctl_split(ctl, a->argument[0], model, &layer))
        return CTL_USAGE;
    if (!args_has(a, "input"))
        return ctl_usage(ctl, "check needs --input FILE[:TENSOR]");
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (tensor_file_read(args_text(a, "input"), &input, &f))
        return ctl_fault(ctl, &f);
    rc = check(ctl, a->argument[0], model, layer, &input.tensor);
    tensor_file_fini(&input);
    return rc;
}
