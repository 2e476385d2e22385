/* calibration.h - the end of a calibration: scales from the maxima that calibrate requests saw.
 * Rule: docs/numerics.md section 3. Engine thread. */
#ifndef FP8D_DAEMON_ENGINE_CALIBRATION_H
#define FP8D_DAEMON_ENGINE_CALIBRATION_H

#include "daemon/engine/model.h"

struct calibration_counts {
    uint32_t set;   /* sites whose scale was set (finish), or whose maximum was dropped (abort) */
    uint32_t unset; /* sites that no request reached, or that saw only zeros */
};

typedef void (*calibration_done_cb)(void *arg, const struct fault *f,
                                    const struct calibration_counts *counts);

/* FP8D_EFAILED_PRECONDITION if nothing was calibrated, if a scope is open, or under recipe
 * `current`. 0: `done` will be called. */
int calibration_finish(struct model *m, calibration_done_cb done, void *arg, struct fault *f);
int calibration_abort(struct model *m, struct calibration_counts *counts, struct fault *f);

#endif
