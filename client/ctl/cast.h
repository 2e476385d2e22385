/* cast.h - what casts did, as a table. */
#ifndef FP8D_CLIENT_CTL_CAST_H
#define FP8D_CLIENT_CTL_CAST_H

#include "client/ctl/ctl.h"

/* One row for each of input and weight that was cast; an exit code. */
int cast_print(const struct ctl *ctl, const struct fp8d_cast *input,
               const struct fp8d_cast *weight);

/* The same of a backward's cast. */
int cast_print_grad(const struct ctl *ctl, const struct fp8d_cast *grad_output);

#endif
