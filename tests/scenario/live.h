/* live.h - a desk with two clients, A and B, for changes of a live model's scaling state: one layer
 * "l" [OUT, IN], history L. Every failure of the fixture itself is a failed check. One thread. */
#ifndef FP8D_TESTS_SCENARIO_LIVE_H
#define FP8D_TESTS_SCENARIO_LIVE_H

#include "tests/scenario/stash.h"

#define OUT 32
#define IN 48
#define TOKENS 3
#define L 6 /* rows of history */
#define EVAL FP8D__V1__MODE__MODE_EVAL
#define TRAIN FP8D__V1__MODE__MODE_TRAIN
#define CALIBRATE FP8D__V1__MODE__MODE_CALIBRATE
#define AGAIN FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO
#define RECAST FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_RECAST
#define REUSED FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_REUSED

extern struct desk *D;
extern struct ask A, B;
extern float *X; /* an input, [TOKENS, IN] */
extern Fp8d__V1__Recipe live_wish; /* of the next recipe request; all unset at the start */
extern const char *const live_sites[3];

void live_start(void);
void live_stop(void);

/* With `state`: all three sites set (scale 64, history 4 3 2 1 0) and counted, and a calibration
 * unfinished (amax 9). */
struct blob live_file(bool state);
void live_load(const char *model, bool state);
void live_load_by(struct ask *a, const char *model, bool state);

/* --- requests: the code; `later` of an ask holds --- */

unsigned live_call(struct ask *a, uint16_t type, const ProtobufCMessage *m,
                   struct desk_frame **frame);
unsigned live_act(struct ask *a, const char *model, Fp8d__V1__ScalingAction action,
                  unsigned *count); /* sites; may be NULL */
unsigned live_reset(struct ask *a, const char *model);
void live_freeze(const char *model, bool on);
/* Sends live_wish; `reply` (may be NULL) is the caller's. */
unsigned live_ask_recipe(struct ask *a, const char *model, Fp8d__V1__SetRecipeReply **reply);
void live_recipe(const char *model); /* the same, must be taken; clears live_wish */
/* 0: reset of "m". 1: another length and format. 2: another accumulation. */
unsigned live_change(struct ask *a, int i);

struct desk_forward live_forward(struct ask *a, const char *model, Fp8d__V1__Mode mode,
                                 Fp8d__V1__FirstMicrobatch first, const float *x, float *y);
/* A train forward of an input with exactly this amax; the scale that it was cast with. */
float live_train(const char *model, float amax);
void live_open_context(uint64_t id); /* A's, on "m" */

/* --- state --- */

bool live_same(struct desk_frame *a, struct desk_frame *b); /* metas by their bytes; frees both */
/* The rows of a site's history, newest first, and their number. */
void live_check_history(const char *model, const char *site, const float *want, size_t n);
float live_scale(const char *model, const char *site);
void live_check_virgin(const Fp8d__V1__SiteState *s, size_t rows); /* as never used */

#endif
