/* fp8ctl optimizer: what a model's steps are taken with, shown or set. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/layer_options.h"
#include "client/ctl/names.h"
#include "client/ctl/reals.h"
#include "client/ctl/table.h"

#include <inttypes.h>
#include <stdio.h>

/* --- shown --- */

static bool has_something(const struct fp8d_layer *l)
{
    return l->gradients || l->optimizer;
}

static json_t *layers_json(struct ctl *ctl, const struct fp8d_description *d)
{
    json_t *all = json_array();
    for (size_t i = 0; i < d->count; i++) {
        const struct fp8d_layer *l = &d->layers[i];
        const struct fp8d_layer_options *own = l->optimizer;
        json_t *o = json_object();
        json_put(ctl, o, "name", json_text(l->name));
        json_put(ctl, o, "frozen", json_boolean(own && own->frozen));
        json_put(ctl, o, "rate", own && own->rate > 0 ? json_f64(own->rate) : json_null());
        json_put(ctl, o, "weight_decay",
                 own && (own->weight_decay_set || own->weight_decay > 0)
                     ? json_f64(own->weight_decay)
                     : json_null());
        json_put(ctl, o, "gradients", json_u64(l->gradients));
        json_push(ctl, all, o);
    }
    return all;
}

static int show_json(struct ctl *ctl, const struct fp8d_description *d, const struct fp8d_result *r)
{
    static const struct fp8d_optimizer none;
    const struct fp8d_optimizer *k = d->optimizer ? d->optimizer : &none;
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"rate", k->rate},
                   {"momentum", k->momentum},
                   {"dampening", k->dampening},
                   {"beta1", k->beta1},
                   {"beta2", k->beta2},
                   {"eps", k->eps},
                   {"weight_decay", k->weight_decay}};
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(d->model.name));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "kind", d->optimizer ? json_text(optimizer_name(k->kind)) : json_null());
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        json_put(ctl, o, numbers[i].name, d->optimizer ? json_f64(numbers[i].value) : json_null());
    json_put(ctl, o, "nesterov", d->optimizer ? json_boolean(k->nesterov) : json_null());
    json_put(ctl, o, "updates", d->optimizer ? json_u64(d->updates) : json_null());
    json_put(ctl, o, "next_step", d->optimizer ? json_u64(d->next_step) : json_null());
    json_put(ctl, o, "layers", layers_json(ctl, d));
    return json_end(ctl, o);
}

static void options_print(const struct fp8d_optimizer *k)
{
    printf("%-9s %.9g\n", "rate", k->rate);
    if (k->kind == FP8D_OPTIMIZER_SGD)
        printf("%-9s %.9g, dampening %.9g%s\n", "momentum", k->momentum, k->dampening,
               k->nesterov ? ", Nesterov's" : "");
    else
        printf("%-9s %.9g and %.9g, eps %.9g\n", "betas", k->beta1, k->beta2, k->eps);
    printf("%-9s %.9g\n", "decay", k->weight_decay);
}

static void own_row(struct table *t, const struct fp8d_layer *l)
{
    static const struct fp8d_layer_options none;
    const struct fp8d_layer_options *own = l->optimizer ? l->optimizer : &none;
    char text[CTL_TEXT];
    table_row(t);
    table_cell(t, "%s", ctl_text(text, l->name));
    table_cell(t, "%s", own->frozen ? "frozen" : "moves");
    if (own->rate > 0)
        table_cell(t, "%.9g", own->rate);
    else
        table_cell(t, "-");
    if (own->weight_decay_set || own->weight_decay > 0)
        table_cell(t, "%.9g", own->weight_decay);
    else
        table_cell(t, "-");
    table_cell(t, "%" PRIu64, l->gradients);
}

static int show_print(const struct ctl *ctl, const struct fp8d_description *d)
{
    static const char *const columns[] = {"LAYER", "STEPS", ">RATE", ">DECAY", ">GRADIENTS", NULL};
    char text[CTL_TEXT];
    struct table t;
    bool any = false;
    printf("optimizer of %s: ", ctl_text(text, d->model.name));
    if (d->optimizer) {
        printf("%s; %" PRIu64 " updates so far, next step %" PRIu64 "\n",
               optimizer_name(d->optimizer->kind), d->updates, d->next_step);
        options_print(d->optimizer);
    } else {
        printf("none\n");
    }
    for (size_t i = 0; i < d->count; i++)
        any = any || has_something(&d->layers[i]);
    if (!any)
        return CTL_OK;
    table_begin(&t, columns);
    for (size_t i = 0; i < d->count; i++)
        if (has_something(&d->layers[i]))
            own_row(&t, &d->layers[i]);
    return table_done(ctl, &t);
}

static int show(struct ctl *ctl, const char *model)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_describe_model(ctl->c, model, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    const struct fp8d_description *d = fp8d_result_description(r);
    rc = ctl->json ? show_json(ctl, d, r) : show_print(ctl, d);
    fp8d_result_free(r);
    return rc;
}

/* --- set --- */

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

static int set(struct ctl *ctl, const struct args *a, const struct fp8d_optimizer *o,
               const struct layer_options *layers)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_set_optimizer(ctl->c, a->argument[0], o, layers->list, layers->count, NULL, NULL, &r,
                           &err))
        return ctl_failed(ctl, &err);
    int rc = ctl->json ? optimizer_json(ctl, a, r) : optimizer_print(a, r);
    fp8d_result_free(r);
    return rc;
}

/* Anything that is only of use when it is set. */
static bool asked(const struct args *a)
{
    static const char *const options[] = {"kind",         "rate",   "momentum",   "dampening",
                                          "nesterov",     "beta1",  "beta2",      "eps",
                                          "weight-decay", "freeze", "layer-rate", "layer-decay"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (args_has(a, options[i]))
            return true;
    return false;
}

int cmd_optimizer(struct ctl *ctl, const struct args *a)
{
    struct fp8d_optimizer o;
    struct layer_options layers;
    if (!asked(a))
        return show(ctl, a->argument[0]);
    if (!take_options(ctl, a, &o))
        return CTL_USAGE;
    int rc = layer_options_take(ctl, a, &layers);
    if (rc)
        return rc;
    rc = ctl_connect(ctl);
    if (!rc)
        rc = set(ctl, a, &o, &layers);
    layer_options_fini(&layers);
    return rc;
}
