#include "kernels/recipe.h"

#include <stdio.h>

const char *site_name(enum site_kind kind)
{
    static const char *const names[SITE_KINDS] = {"input", "weight", "output", "grad_output",
                                                  "grad_input"};
    return (unsigned)kind < SITE_KINDS ? names[kind] : "?";
}

int recipe_check(const struct recipe *r, struct fault *f)
{
    if (r->kind != RECIPE_DELAYED && r->kind != RECIPE_CURRENT)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "recipe.kind is %d, needed 1 (delayed) or 2 (current)", (int)r->kind);
    if (r->format != RECIPE_HYBRID && r->format != RECIPE_E4M3)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "recipe.fp8_format is %d, needed 1 (hybrid) or 2 (e4m3)", (int)r->format);
    if (r->algo != AMAX_MAX && r->algo != AMAX_MOST_RECENT)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "recipe.amax_algo is %d, needed 1 (max) or 2 (most_recent)", (int)r->algo);
    if (r->history_len < 1 || r->history_len > RECIPE_HISTORY_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "recipe.amax_history_len is %u, needed 1 to %u",
                         r->history_len, RECIPE_HISTORY_MAX);
    if (r->margin < 0 || r->margin > RECIPE_MARGIN_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "recipe.margin is %d, needed 0 to %d",
                         r->margin, RECIPE_MARGIN_MAX);
    if (r->fprop != ACCUMULATION_FAST && r->fprop != ACCUMULATION_PRECISE)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "recipe.fprop_accumulation is %d, needed 1 (fast) or 2 (precise)",
                         (int)r->fprop);
    return 0;
}

const char *recipe_text(const struct recipe *r, char *out, unsigned size)
{
    (void)snprintf(out, size, "%s, %s, history %u, %s, margin %d, %s accumulation",
                   r->kind == RECIPE_DELAYED ? "delayed" : "current",
                   r->format == RECIPE_HYBRID ? "hybrid" : "e4m3", r->history_len,
                   r->algo == AMAX_MAX ? "max" : "most_recent", r->margin,
                   r->fprop == ACCUMULATION_FAST ? "fast" : "precise");
    return out;
}

bool recipe_differs_in_sums_alone(const struct recipe *a, const struct recipe *b)
{
    return a->fprop != b->fprop && a->kind == b->kind && a->format == b->format &&
           a->algo == b->algo && a->history_len == b->history_len && a->margin == b->margin;
}

enum dtype recipe_dtype(const struct recipe *r, enum site_kind kind)
{
    bool grad = kind == SITE_GRAD_OUTPUT || kind == SITE_GRAD_INPUT;
    return grad && r->format == RECIPE_HYBRID ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
}
