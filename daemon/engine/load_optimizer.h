/* load_optimizer.h - the part of a load that is the state of training: options and counts of the
 * optimizer, masters, moments, gradients (state_optimizer.h). The steps of a load in their order,
 * each beside that of load_state.h, load_reserve.h and load_fill.h. Loader thread. */
#ifndef FP8D_DAEMON_ENGINE_LOAD_OPTIMIZER_H
#define FP8D_DAEMON_ENGINE_LOAD_OPTIMIZER_H

#include "daemon/engine/load.h"

/* From the header: ld->optimizer, and whether the tensors are those that such an optimizer keeps.
 * With the option no_optimizer the claim's layers have none of it afterwards. */
int load_optimizer_header(struct load *ld, struct fault *f);

/* Memory of layer i, which load_reserve has filled. */
int load_optimizer_reserve(struct load *ld, size_t i, struct fault *f);

/* Small values: the layer's own options, a gradient's counters, the weight's origin. */
int load_optimizer_values(struct load *ld, size_t i, struct fault *f);

/* Masters, moments, gradients. */
int load_optimizer_fill(struct load *ld, size_t i, struct queue *q, struct fault *f);

/* What went on, and what did not: lines of the report. */
void load_optimizer_note(struct load *ld);

#endif
