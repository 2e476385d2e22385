#include "client/ctl/reals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool real_parse(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (!*text || *end || text[strspn(text, "0123456789.eE+-")] || !isfinite(v))
        return false;
    *out = v;
    return true;
}

static bool inside(double v, enum real_range range)
{
    bool low = range == REAL_FROM_0 || range == REAL_TO_1 ? v >= 0 : v > 0;
    return low && (range != REAL_TO_1 || v <= 1) && (range != REAL_BELOW_1 || v < 1);
}

bool reals_take(const struct ctl *ctl, const struct args *a, const struct real *list)
{
    static const char *const needed[] = {
        [REAL_FROM_0] = "of at least 0",
        [REAL_ABOVE_0] = "above 0",
        [REAL_TO_1] = "from 0 to 1",
        [REAL_BELOW_1] = "above 0 and below 1",
    };
    char shown[CTL_TEXT];
    for (const struct real *r = list; r->name; r++) {
        const char *text = args_text(a, r->name);
        double v;
        if (!text)
            continue;
        if (!real_parse(text, &v) || !inside(v, r->range)) {
            ctl_usage(ctl, "--%s is '%s', needed a number %s", r->name, ctl_text(shown, text),
                      needed[r->range]);
            return false;
        }
        *r->to = v;
    }
    return true;
}
