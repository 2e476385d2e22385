/* fp8ctl zero-grad, fp8ctl gradient: what layers hold of gradients. */
#include "client/ctl/ctl.h"
#include "client/ctl/output.h"
#include "client/ctl/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>

static int zeroed(struct ctl *ctl, const char *model, const struct fp8d_result *r)
{
    char text[CTL_TEXT];
    const struct fp8d_grad_zeroed *k = fp8d_result_grad_zeroed(r);
    if (!ctl->json) {
        printf("gradients of %s forgotten: %u layer%s\n", ctl_text(text, model), k->layers,
               k->layers == 1 ? "" : "s");
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(model));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "layers", json_u64(k->layers));
    return json_end(ctl, o);
}

int cmd_zero_grad(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_zero_grad(ctl->c, a->argument[0], NULL, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    rc = zeroed(ctl, a->argument[0], r);
    fp8d_result_free(r);
    return rc;
}

/* All that is said about a gradient. */
struct outcome {
    const char *model, *layer;
    bool bias;
    const struct fp8d_result *r;
    const struct fp8d_gradient *g;
    struct output output;
    double norm;
};

static int gradient_json(struct ctl *ctl, const struct outcome *o)
{
    json_t *j = json_begin(ctl);
    json_t *gradient = output_json(ctl, &o->output);
    json_put(ctl, gradient, "norm", json_f64(o->norm));
    json_put(ctl, j, "model", json_text(o->model));
    json_put(ctl, j, "layer", json_text(o->layer));
    json_put_reply(ctl, j, o->r);
    json_put(ctl, j, "part", json_string(o->bias ? "bias" : "weight"));
    json_put(ctl, j, "gradient", gradient);
    json_put(ctl, j, "contributions", json_u64(o->g->contributions));
    json_put(ctl, j, "grad_output_nonfinite", json_u64(o->g->nonfinite));
    return json_end(ctl, j);
}

static int gradient_print(const struct outcome *o)
{
    output_print(&o->output, o->bias ? "bias    " : "weight  ", "g");
    printf("\nnorm     %.9g\nsum of   %" PRIu64 " backward request%s", o->norm, o->g->contributions,
           o->g->contributions == 1 ? "" : "s");
    if (o->g->nonfinite)
        printf(", whose grad_output had %" PRIu64 " element%s", o->g->nonfinite,
               o->g->nonfinite == 1 ? " that is not finite" : "s that are not finite");
    putchar('\n');
    return CTL_OK;
}

static int finish(struct ctl *ctl, struct outcome *o, const char *file)
{
    struct fault f = {0};
    o->g = fp8d_result_gradient(o->r);
    if (output_take(&o->output, "gradient", &o->g->tensor, file, &f))
        return ctl_fault(ctl, &f);
    o->norm = tensor_norm(&o->g->tensor);
    return ctl->json ? gradient_json(ctl, o) : gradient_print(o);
}

int cmd_gradient(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    char model[129];
    struct outcome o = {.model = model, .bias = args_has(a, "bias")};
    if (!ctl_split(ctl, a->argument[0], model, &o.layer))
        return CTL_USAGE;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_get_gradient(ctl->c, model, o.layer,
                          o.bias ? FP8D_GRADIENT_BIAS : FP8D_GRADIENT_WEIGHT, NULL, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    o.r = r;
    rc = finish(ctl, &o, args_text(a, "output"));
    fp8d_result_free(r);
    return rc;
}
