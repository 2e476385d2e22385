/* fault.h - the human sentence of an error.
 *
 * A fault is filled where the cause is known, prefixed on the way up, logged once at the top and
 * sent to the client. It is plain memory of the caller; any thread, one at a time. Functions that
 * can fail take a `struct fault *` (never NULL) and return its code.
 */
#ifndef FP8D_BASE_FAULT_H
#define FP8D_BASE_FAULT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define FAULT_TEXT_MAX 1024

/* Where in its life a request failed; sent to the client. */
enum fault_stage {
    STAGE_UNSPECIFIED = 0,
    STAGE_RECEIVE = 1,
    STAGE_DECODE = 2,
    STAGE_QUEUE = 3,
    STAGE_COPY = 4,
    STAGE_COMPUTE = 5,
    STAGE_FILE = 6,
};

struct fault {
    int code;                  /* 0, or a negative status */
    enum fault_stage stage;    /* STAGE_UNSPECIFIED until somebody sets it */
    bool again;                /* what failed has changed nothing, and could begin once more */
    uint32_t retry_after_ms;   /* for RESOURCE_EXHAUSTED: when to try again; 0 means no hint */
    char text[FAULT_TEXT_MAX]; /* one sentence, UTF-8, no control characters, no final newline */
};

/* Set code and sentence; cut at FAULT_TEXT_MAX - 1 bytes, control characters replaced by '?'.
 * Returns code, so that `return fault_set(...)` reads well. The stage is kept. */
int fault_set(struct fault *f, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before the sentence. Returns the code. */
int fault_wrap(struct fault *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Set the stage if none is set yet. Returns the code. */
int fault_at(struct fault *f, enum fault_stage stage);

/* "receive", "decode", ...; "" for STAGE_UNSPECIFIED. Never NULL. */
const char *fault_stage_name(enum fault_stage stage);

#endif
