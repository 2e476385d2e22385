/* fp8ctl step: one step of a model's optimizer. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/names.h"
#include "client/ctl/reals.h"

#include <inttypes.h>
#include <stdio.h>

static json_t *problems_json(struct ctl *ctl, const struct fp8d_step_result *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->count; i++) {
        json_t *o = json_object();
        json_put(ctl, o, "layer", json_text(s->problems[i].layer));
        json_put(ctl, o, "tensor", json_text(s->problems[i].tensor));
        json_put(ctl, o, "nonfinite", json_u64(s->problems[i].nonfinite));
        json_push(ctl, list, o);
    }
    return list;
}

static int step_json(struct ctl *ctl, const struct fp8d_step *q, const struct fp8d_result *r)
{
    const struct fp8d_step_result *s = fp8d_result_step(r);
    bool repeated = s->outcome == FP8D_STEP_REPEATED;
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(q->model));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "step", json_u64(q->step));
    json_put(ctl, o, "outcome", json_string(step_outcome_name(s->outcome)));
    json_put(ctl, o, "layers", json_u64(s->layers));
    json_put(ctl, o, "grad_norm", repeated ? json_null() : json_f64(s->grad_norm));
    json_put(ctl, o, "clip", repeated ? json_null() : json_f64(s->clip));
    json_put(ctl, o, "problems", problems_json(ctl, s));
    json_put(ctl, o, "problems_total", json_u64(s->problems_total));
    json_put(ctl, o, "updates", json_u64(s->updates));
    json_put(ctl, o, "next_step", json_u64(s->step));
    return json_end(ctl, o);
}

static void print_problems(const struct fp8d_step_result *s)
{
    char layer[CTL_TEXT], tensor[CTL_TEXT];
    for (size_t i = 0; i < s->count; i++)
        printf("problem  %s, %s: %" PRIu64 " element%s not finite\n",
               ctl_text(layer, s->problems[i].layer), ctl_text(tensor, s->problems[i].tensor),
               s->problems[i].nonfinite, s->problems[i].nonfinite == 1 ? " is" : "s are");
    if (s->problems_total > s->count)
        printf("problem  ... and %zu more\n", s->problems_total - s->count);
}

static int step_print(const struct fp8d_step *q, const struct fp8d_step_result *s)
{
    printf("step     %" PRIu64 " ", q->step);
    if (s->outcome == FP8D_STEP_APPLIED)
        printf("applied: %u layer%s\n", s->layers, s->layers == 1 ? "" : "s");
    else if (s->outcome == FP8D_STEP_SKIPPED)
        printf("SKIPPED: gradients are not finite in %u place%s, and forgotten; no weight moved\n",
               s->problems_total, s->problems_total == 1 ? "" : "s");
    else
        printf("repeated: it was taken before, nothing was done now\n");
    print_problems(s);
    if (s->outcome != FP8D_STEP_REPEATED)
        printf("norm     %.9g", s->grad_norm);
    if (s->outcome == FP8D_STEP_APPLIED && s->clip < 1)
        printf(", gradients clipped by %.9g", s->clip);
    printf("%supdates  %" PRIu64 ", next step %" PRIu64 "\n",
           s->outcome != FP8D_STEP_REPEATED ? "\n" : "", s->updates, s->step);
    return CTL_OK;
}

int cmd_step(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fp8d_step q = {.model = a->argument[0], .step = args_number(a, "step")};
    const struct real reals[] = {
        {"loss-scale", &q.loss_scale, REAL_ABOVE_0},
        {"max-norm", &q.max_norm, REAL_FROM_0},
        {NULL, NULL, REAL_FROM_0},
    };
    if (!q.step)
        return ctl_usage(ctl, "step needs --step N, the number that the last step printed as next");
    if (!reals_take(ctl, a, reals))
        return CTL_USAGE;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_step(ctl->c, &q, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    rc = ctl->json ? step_json(ctl, &q, r) : step_print(&q, fp8d_result_step(r));
    fp8d_result_free(r);
    return rc;
}
