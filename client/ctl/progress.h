/* progress.h - a line on stderr that shows how far a load or a save is. */
#ifndef FP8D_CLIENT_CTL_PROGRESS_H
#define FP8D_CLIENT_CTL_PROGRESS_H

#include "base/status.h"
#include "client/fp8d.h"

#include <stdbool.h>

/* Zeroed: nothing is drawn. */
struct progress {
    bool drawn;
};

/* What draws, with a struct progress as its argument; NULL where stderr is no terminal. */
fp8d_progress_cb progress_cb(void);
void progress_end(struct progress *p); /* wipe the line */

#endif
