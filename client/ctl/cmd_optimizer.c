/* fp8ctl optimizer: what a model's steps are taken with. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/reals.h"

#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int optimizer_json(struct ctl *ctl, const struct args *a, const struct fp8d_result *r)
{
    const struct fp8d_optimizer_set *k = fp8d_result_optimizer_set(r);
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(a->argument[0]));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "kind", json_text(args_text(a, "kind")));
    json_put(ctl, o, "updates", json_u64(k->updates));
    json_put(ctl, o, "next_step", json_u64(k->step));
    return json_end(ctl, o);
}

static int optimizer_print(const struct args *a, const struct fp8d_result *r)
{
    char text[CTL_TEXT];
    const struct fp8d_optimizer_set *k = fp8d_result_optimizer_set(r);
    printf("optimizer of %s: %s; %" PRIu64 " updates so far, next step %" PRIu64 "\n",
           ctl_text(text, a->argument[0]), args_text(a, "kind"), k->updates, k->step);
    return CTL_OK;
}

/* An option of another kind would be sent and not be used. */
static bool options_fit(const struct ctl *ctl, const struct args *a, const struct fp8d_optimizer *o)
{
    static const char *const sgd[] = {"momentum", "dampening", "nesterov", NULL};
    static const char *const adam[] = {"beta1", "beta2", "eps", NULL};
    for (const char *const *p = o->kind == FP8D_OPTIMIZER_SGD ? adam : sgd; *p; p++)
        if (args_has(a, *p)) {
            ctl_usage(ctl, "--%s and --kind %s exclude each other", *p, args_text(a, "kind"));
            return false;
        }
    if (o->nesterov && !(o->momentum > 0))
        ctl_usage(ctl, "--nesterov needs --momentum above 0");
    else if (o->nesterov && o->dampening > 0)
        ctl_usage(ctl, "--nesterov and --dampening exclude each other");
    else
        return true;
    return false;
}

/* False after a usage error. */
static bool take_options(const struct ctl *ctl, const struct args *a, struct fp8d_optimizer *o)
{
    *o = (struct fp8d_optimizer){
        .kind = (enum fp8d_optimizer_kind)args_choice(a, "kind"),
        .nesterov = args_has(a, "nesterov"),
        .weight_decay_set = args_has(a, "weight-decay"),
    };
    const struct real reals[] = {
        {"rate", &o->rate, REAL_ABOVE_0},
        {"momentum", &o->momentum, REAL_FROM_0},
        {"dampening", &o->dampening, REAL_TO_1},
        {"beta1", &o->beta1, REAL_BELOW_1},
        {"beta2", &o->beta2, REAL_BELOW_1},
        {"eps", &o->eps, REAL_ABOVE_0},
        {"weight-decay", &o->weight_decay, REAL_FROM_0},
        {NULL, NULL, REAL_FROM_0},
    };
    if (!o->kind) {
        ctl_usage(ctl, "optimizer needs --kind sgd|adam|adamw");
        return false;
    }
    return reals_take(ctl, a, reals) && options_fit(ctl, a, o);
}

/* The layers to freeze. NULL and count 0 if none, or no memory; mem_free it. */
static struct fp8d_layer_options *take_layers(const struct args *a, size_t *count)
{
    const char **names = args_list(a, "freeze", count);
    struct fp8d_layer_options *layers = names ? mem_array(*count, sizeof *layers) : NULL;
    for (size_t i = 0; layers && i < *count; i++)
        layers[i] = (struct fp8d_layer_options){.layer = names[i], .frozen = true};
    mem_free(names);
    return layers;
}

static int set(struct ctl *ctl, const struct args *a, const struct fp8d_optimizer *o,
               const struct fp8d_layer_options *layers, size_t count)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_set_optimizer(ctl->c, a->argument[0], o, layers, count, NULL, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    int rc = ctl->json ? optimizer_json(ctl, a, r) : optimizer_print(a, r);
    fp8d_result_free(r);
    return rc;
}

int cmd_optimizer(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    struct fp8d_optimizer o;
    size_t count;
    if (!take_options(ctl, a, &o))
        return CTL_USAGE;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    struct fp8d_layer_options *layers = take_layers(a, &count);
    if (args_has(a, "freeze") && !layers) {
        fault_set(&f, -ENOMEM, "no memory for layers");
        rc = ctl_fault(ctl, &f);
    } else {
        rc = set(ctl, a, &o, layers, count);
    }
    mem_free(layers);
    return rc;
}
