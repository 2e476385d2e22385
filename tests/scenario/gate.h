/* gate.h - file writes that wait: a save that is under way for as long as a test wants.
 * Process-wide. */
#ifndef FP8D_TESTS_SCENARIO_GATE_H
#define FP8D_TESTS_SCENARIO_GATE_H

#include "daemon/engine/engine.h"

/* For desk_new: the files of the host, behind the gate, which is open. */
struct engine_options gate_options(void);

void gate_close(void); /* who writes waits from now on */
void gate_open(void);
void gate_wait(void); /* until somebody waits at it */

#endif
