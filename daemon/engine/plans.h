/* plans.h - which GEMMs take the library's first answer, and which the fastest of some that it timed.
 *
 * A GPU's library has several algorithms for a product, and their bits differ. The fastest is found by
 * timing, so that it may be another one in the next process: eval may have it, training, calibration
 * and checks go on with the same bits after a restart (docs/numerics.md 6). Pure.
 */
#ifndef FP8D_DAEMON_ENGINE_PLANS_H
#define FP8D_DAEMON_ENGINE_PLANS_H

#include "daemon/engine/weight.h"

/* In the order of the words of the config key `plans`. */
enum plans {
    PLANS_AUTO = 0,         /* reproducible for all but eval */
    PLANS_TIMED = 1,        /* the fastest, for all */
    PLANS_REPRODUCIBLE = 2, /* for all */
};

static inline bool plans_reproducible(enum plans plans, enum forward_mode mode)
{
    return plans == PLANS_AUTO ? mode != MODE_EVAL : plans == PLANS_REPRODUCIBLE;
}

/* "auto", "timed", "reproducible". */
static inline const char *plans_name(enum plans plans)
{
    static const char *const names[] = {"auto", "timed", "reproducible"};
    return names[plans];
}

#endif
