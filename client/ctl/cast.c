#include "client/ctl/cast.h"

#include "client/ctl/names.h"
#include "client/ctl/table.h"

#include <inttypes.h>
#include <stdio.h>

static void cast_row(struct table *t, const char *name, const struct fp8d_cast *c)
{
    char scale[32], inv[32], amax[32];
    table_row(t);
    table_cell(t, "%s", name);
    table_cell(t, "%s", fp8_name(c->dtype));
    table_cell(t, "%s", float_text(c->scale, scale));
    table_cell(t, "%s", float_text(c->scale_inv, inv));
    table_cell(t, "%s", float_text(c->amax, amax));
    table_cell(t, "%" PRIu64, c->saturated);
    table_cell(t, "%" PRIu64, c->flushed);
    table_cell(t, "%" PRIu64, c->nonfinite);
    table_cell(t, "%s", c->uncalibrated ? "uncalibrated" : "");
}

static const char *const columns[] = {"CAST",       "FORMAT",   ">SCALE",     ">SCALE_INV", ">AMAX",
                                      ">SATURATED", ">FLUSHED", ">NONFINITE", "SITE",       NULL};

int cast_print(const struct ctl *ctl, const struct fp8d_cast *input, const struct fp8d_cast *weight)
{
    struct table t;
    if (!input && !weight)
        return CTL_OK;
    table_begin(&t, columns);
    if (input)
        cast_row(&t, "input", input);
    if (weight)
        cast_row(&t, "weight", weight);
    return table_done(ctl, &t);
}

int cast_print_grad(const struct ctl *ctl, const struct fp8d_cast *grad_output)
{
    struct table t;
    table_begin(&t, columns);
    cast_row(&t, "grad_output", grad_output);
    return table_done(ctl, &t);
}
