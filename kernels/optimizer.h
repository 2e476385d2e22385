/* optimizer.h - what one step of an optimizer does to one element: pure functions, one text for
 * host and device.
 *
 * The rules are those of torch.optim.SGD, Adam and AdamW (amsgrad and maximize off), in their order
 * of operations (docs/numerics.md 9): every operation is float32, rounded to nearest, subnormals
 * kept, no product is fused with a sum. Numbers that are the same for all elements are computed
 * once, on the host, in float64 and rounded to float32. So master and moments have the same bits on
 * every backend. Nothing here allocates or has state.
 */
#ifndef FP8D_KERNELS_OPTIMIZER_H
#define FP8D_KERNELS_OPTIMIZER_H

#include "base/fault.h"
#include "kernels/recipe.h"

#include <math.h>

/* Numbers are those of the wire. */
enum optimizer_kind {
    OPTIMIZER_SGD = 1,
    OPTIMIZER_ADAM = 2,  /* weight decay is added to the gradient */
    OPTIMIZER_ADAMW = 3, /* weight decay shrinks the weight, apart from the gradient */
};

struct optimizer_options {
    enum optimizer_kind kind;
    double rate;         /* learning rate, 0 to FLT_MAX, as are momentum, eps and weight_decay */
    double momentum;     /* SGD; 0: none */
    double dampening;    /* SGD, 0 to 1 */
    bool nesterov;       /* SGD; needs a momentum, and no dampening */
    double beta1, beta2; /* Adam, AdamW; 0 to below 1 */
    double eps;          /* Adam, AdamW */
    double weight_decay;
};

/* PyTorch's defaults of a kind (1e-3 for every rate). */
struct optimizer_options optimizer_default(enum optimizer_kind kind);

/* FP8D_EINVALID_ARGUMENT with field, value found and value needed. All fields are looked at,
 * whatever the kind: those that it does not use are 0 in optimizer_default. */
int optimizer_check(const struct optimizer_options *o, struct fault *f);

/* How many float32 a weight keeps beside its master: 0 or 1 (SGD), or 2. */
unsigned optimizer_moments(const struct optimizer_options *o);

/* What is the same for all elements of one step. */
struct optimizer_step {
    enum optimizer_kind kind;
    bool first, momentum, nesterov;
    float grad_scale;
    float decay;        /* added to the gradient, times the weight; 0: nothing is added */
    float keep;         /* AdamW: 1 - rate * weight_decay */
    float rate;         /* SGD; Adam, AdamW: rate / (1 - beta1^step) */
    float old1, fresh1; /* SGD: momentum, 1 - dampening; else 1 - fresh1, 1 - beta1 */
    float old2, fresh2; /* beta2, 1 - beta2 */
    float root, eps;    /* sqrt(1 - beta2^step) */
};

/* Options that optimizer_check took; step from 1. Pure, and the same on every host: powers are made
 * by squaring, since pow of C libraries is not. */
struct optimizer_step optimizer_step_of(const struct optimizer_options *o, uint64_t step,
                                        float grad_scale);

/* Master and moments of one element; those a kind does not have are left alone. */
struct optimizer_element {
    float master, m, v;
};

/* Correctly rounded, as IEEE 754 has it. */
FP8_HD float optimizer_sqrt(float x)
{
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x); /* whatever -prec-sqrt says */
#else
    return sqrtf(x);
#endif
}

/* A NaN as fp8d writes it (backend.h). */
FP8_HD float optimizer_quiet(float x)
{
    uint32_t bits = fp8_float_bits(x);
    return fp8_bits_float((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits);
}

FP8_HD struct optimizer_element optimizer_sgd(const struct optimizer_step *s,
                                              struct optimizer_element e, float grad)
{
    float g = grad * s->grad_scale;
    if (s->decay != 0.0f)
        g = g + s->decay * e.master;
    if (s->momentum) {
        float m = s->first ? g : e.m * s->old1 + s->fresh1 * g;
        g = s->nesterov ? g + s->old1 * m : m;
        e.m = optimizer_quiet(m);
    }
    e.master = optimizer_quiet(e.master - s->rate * g);
    return e;
}

/* torch.lerp(m, g, fresh): from the end that is nearer. */
FP8_HD float optimizer_lerp(const struct optimizer_step *s, float m, float g)
{
    return s->fresh1 < 0.5f ? m + s->fresh1 * (g - m) : g - (g - m) * s->old1;
}

FP8_HD struct optimizer_element optimizer_adam(const struct optimizer_step *s,
                                               struct optimizer_element e, float grad)
{
    float g = grad * s->grad_scale;
    if (s->decay != 0.0f)
        g = g + s->decay * e.master;
    float m = optimizer_lerp(s, e.m, g);
    float v = e.v * s->old2 + s->fresh2 * g * g;
    float under = recipe_div(optimizer_sqrt(v), s->root) + s->eps;
    e.master = optimizer_quiet(e.master * s->keep - recipe_div(s->rate * m, under));
    e.m = optimizer_quiet(m);
    e.v = optimizer_quiet(v);
    return e;
}

FP8_HD struct optimizer_element optimizer_move(const struct optimizer_step *s,
                                               struct optimizer_element e, float grad)
{
    return s->kind == OPTIMIZER_SGD ? optimizer_sgd(s, e, grad) : optimizer_adam(s, e, grad);
}

#endif
