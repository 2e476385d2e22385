#include "tests/oracle/optimizer_ref.h"

#include <math.h>

/* torch.optim.SGD: b_t = mu b_(t-1) + (1 - tau) g_t, b_1 = g_1. */
static double sgd(const struct optimizer_ref *o, struct optimizer_ref_state *s, double param,
                  double grad)
{
    if (o->momentum != 0.0) {
        if (s->step > 1)
            s->buf = o->momentum * s->buf + (1.0 - o->dampening) * grad;
        else
            s->buf = grad;
        if (o->nesterov)
            grad = grad + o->momentum * s->buf;
        else
            grad = s->buf;
    }
    return param - o->lr * grad;
}

/* torch.optim.Adam: m^ = m / (1 - b1^t), v^ = v / (1 - b2^t), lr m^ / (sqrt(v^) + eps). */
static double adam(const struct optimizer_ref *o, struct optimizer_ref_state *s, double param,
                   double grad)
{
    double t = (double)s->step;
    s->exp_avg = o->beta1 * s->exp_avg + (1.0 - o->beta1) * grad;
    s->exp_avg_sq = o->beta2 * s->exp_avg_sq + (1.0 - o->beta2) * grad * grad;
    double m_hat = s->exp_avg / (1.0 - pow(o->beta1, t));
    double v_hat = s->exp_avg_sq / (1.0 - pow(o->beta2, t));
    return param - o->lr * m_hat / (sqrt(v_hat) + o->eps);
}

double optimizer_ref_step(const struct optimizer_ref *o, struct optimizer_ref_state *s,
                          double param, double grad)
{
    s->step++;
    if (o->kind == REF_ADAMW)
        param = param - o->lr * o->weight_decay * param;
    else
        grad = grad + o->weight_decay * param;
    return o->kind == REF_SGD ? sgd(o, s, param, grad) : adam(o, s, param, grad);
}
