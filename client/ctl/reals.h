/* reals.h - options whose values are real numbers. */
#ifndef FP8D_CLIENT_CTL_REALS_H
#define FP8D_CLIENT_CTL_REALS_H

#include "client/ctl/ctl.h"

enum real_range {
    REAL_FROM_0,  /* 0 and above */
    REAL_ABOVE_0, /* where the wire's 0 means a default */
    REAL_TO_1,    /* 0 to 1 */
    REAL_BELOW_1, /* above 0, below 1 */
};

struct real {
    const char *name; /* of the option */
    double *to;       /* left alone where it is not given */
    enum real_range range;
};

/* Decimal digits with or without point and exponent; finite. Not in words, not hexadecimal. */
bool real_parse(const char *text, double *out);

/* Take all that are given; the list ends with a row without a name. False after a usage error. */
bool reals_take(const struct ctl *ctl, const struct args *a, const struct real *list);

#endif
