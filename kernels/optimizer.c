#include "kernels/optimizer.h"

struct optimizer_options optimizer_default(enum optimizer_kind kind)
{
    struct optimizer_options o = {.kind = kind, .rate = 1e-3};
    if (kind == OPTIMIZER_SGD)
        return o;
    o.beta1 = 0.9;
    o.beta2 = 0.999;
    o.eps = 1e-8;
    o.weight_decay = kind == OPTIMIZER_ADAMW ? 0.01 : 0.0;
    return o;
}

static int check_number(double x, const char *field, struct fault *f)
{
    if (x >= 0.0 && x <= (double)FP8_FLT_MAX) /* NaN is not */
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "options.%s is %g, needed a finite float32 of at least 0", field, x);
}

static int check_beta(double x, const char *field, struct fault *f)
{
    if (x >= 0.0 && x < 1.0)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "options.%s is %g, needed at least 0 and below 1",
                     field, x);
}

static int check_nesterov(const struct optimizer_options *o, struct fault *f)
{
    if (!o->nesterov)
        return 0;
    if (o->kind != OPTIMIZER_SGD)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "options.nesterov is set, needed unset for kind %d", (int)o->kind);
    if (!(o->momentum > 0.0))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "options.momentum is %g, needed above 0 with nesterov", o->momentum);
    return o->dampening == 0.0
               ? 0
               : fault_set(f, FP8D_EINVALID_ARGUMENT,
                           "options.dampening is %g, needed 0 with nesterov", o->dampening);
}

int optimizer_check(const struct optimizer_options *o, struct fault *f)
{
    if (o->kind != OPTIMIZER_SGD && o->kind != OPTIMIZER_ADAM && o->kind != OPTIMIZER_ADAMW)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "options.kind is %d, needed 1 (sgd), 2 (adam) or 3 (adamw)",
                         (int)o->kind);
    int rc = check_number(o->rate, "rate", f);
    if (!rc)
        rc = check_number(o->momentum, "momentum", f);
    if (!rc && !(o->dampening >= 0.0 && o->dampening <= 1.0))
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "options.dampening is %g, needed 0 to 1",
                       o->dampening);
    if (!rc)
        rc = check_beta(o->beta1, "beta1", f);
    if (!rc)
        rc = check_beta(o->beta2, "beta2", f);
    if (!rc)
        rc = check_number(o->eps, "eps", f);
    if (!rc)
        rc = check_number(o->weight_decay, "weight_decay", f);
    return rc ? rc : check_nesterov(o, f);
}

unsigned optimizer_moments(const struct optimizer_options *o)
{
    if (o->kind != OPTIMIZER_SGD)
        return 2;
    return o->momentum > 0.0 ? 1 : 0;
}

static double power(double base, uint64_t n)
{
    double result = 1.0;
    for (; n; n /= 2) {
        if (n % 2)
            result *= base;
        base *= base;
    }
    return result;
}

struct optimizer_step optimizer_step_of(const struct optimizer_options *o, uint64_t step,
                                        float grad_scale)
{
    bool sgd = o->kind == OPTIMIZER_SGD, apart = o->kind == OPTIMIZER_ADAMW;
    double fresh1 = sgd ? 1.0 - o->dampening : 1.0 - o->beta1;
    return (struct optimizer_step){
        .kind = o->kind,
        .first = step == 1,
        .momentum = o->momentum > 0.0,
        .nesterov = o->nesterov,
        .grad_scale = grad_scale,
        .decay = apart ? 0.0f : (float)o->weight_decay,
        .keep = apart ? (float)(1.0 - o->rate * o->weight_decay) : 1.0f,
        .rate = (float)(sgd ? o->rate : o->rate / (1.0 - power(o->beta1, step))),
        .old1 = sgd ? (float)o->momentum : 1.0f - (float)fresh1,
        .fresh1 = (float)fresh1,
        .old2 = (float)o->beta2,
        .fresh2 = (float)(1.0 - o->beta2),
        .root = (float)sqrt(1.0 - power(o->beta2, step)),
        .eps = (float)o->eps,
    };
}
