#include "client/ctl/ctl.h"
#include "client/ctl/names.h"

#include <stdio.h>

void recipe_from_args(const struct args *a, struct fp8d_recipe *out)
{
    *out = (struct fp8d_recipe){
        .kind = (enum fp8d_recipe_kind)args_choice(a, "recipe"),
        .format = (enum fp8d_format)args_choice(a, "fp8-format"),
        .amax_algo = (enum fp8d_amax_algo)args_choice(a, "amax-algo"),
        .amax_history_len = args_number(a, "amax-history-len"),
        .margin = args_number(a, "margin"),
        .margin_set = args_has(a, "margin"),
        .fprop_accumulation = (enum fp8d_accumulation)args_choice(a, "accumulation"),
    };
}

bool recipe_asked(const struct args *a)
{
    return args_has(a, "recipe") || args_has(a, "fp8-format") || args_has(a, "amax-algo") ||
           args_has(a, "amax-history-len") || args_has(a, "margin") || args_has(a, "accumulation");
}

const char *recipe_text(const struct fp8d_recipe *r, char buf[CTL_TEXT])
{
    if (r->kind == FP8D_RECIPE_CURRENT)
        (void)snprintf(buf, CTL_TEXT, "current %s margin %u %s", format_name(r->format), r->margin,
                       accumulation_name(r->fprop_accumulation));
    else
        (void)snprintf(buf, CTL_TEXT, "delayed %s history %u %s margin %u %s",
                       format_name(r->format), r->amax_history_len, amax_algo_name(r->amax_algo),
                       r->margin, accumulation_name(r->fprop_accumulation));
    return buf;
}
