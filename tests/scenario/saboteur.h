/* saboteur.h - a backend of which one call fails: for tests, of the one backend of a desk.
 *
 * Between saboteur_open and saboteur_close the backend's operations count down to the one that is
 * to fail, with INTERNAL and SABOTAGED in the sentence: a call that enqueues, one that takes memory
 * of the device, or a note. A note that fails on a GPU is that of an operation which was dropped,
 * and what follows it is left out; for the CPU, where nothing fails, both are done here.
 */
#ifndef FP8D_TESTS_SCENARIO_SABOTEUR_H
#define FP8D_TESTS_SCENARIO_SABOTEUR_H

#include "kernels/backend.h"

enum saboteur_what { SABOTEUR_CALLS, SABOTEUR_ALLOCS, SABOTEUR_NOTES, SABOTEUR_KINDS };

void saboteur_open(struct backend *b);
void saboteur_close(struct backend *b);

/* The call after `at` good ones fails; -1: none does. */
void saboteur_arm(enum saboteur_what what, int at);
bool saboteur_fired(void); /* since it was armed */

/* What the sentence of a failure of that kind says. */
const char *saboteur_words(enum saboteur_what what);
void saboteur_leave_out_with(int code); /* on the CPU: what such notes report; ABORTED at first */
const char *saboteur_left_out(void);    /* what that of what follows a note says: ABORTED */

#endif
