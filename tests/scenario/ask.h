/* ask.h - one client of a desk (tests/unit/desk.h): a function per request that the engine serves.
 *
 * Each sends, waits and returns the google.rpc code; the sentence is in `text`. Outputs are filled
 * only when the code is 0. For tests alone; one thread.
 */
#ifndef FP8D_TESTS_SCENARIO_ASK_H
#define FP8D_TESTS_SCENARIO_ASK_H

#include "tests/unit/desk.h"

#include <check.h>

/* google.rpc codes that tests name. */
enum ask_code {
    ASK_OK = 0,
    ASK_CANCELLED = 1,
    ASK_INVALID_ARGUMENT = 3,
    ASK_NOT_FOUND = 5,
    ASK_ALREADY_EXISTS = 6,
    ASK_RESOURCE_EXHAUSTED = 8,
    ASK_FAILED_PRECONDITION = 9,
    ASK_ABORTED = 10,
    ASK_INTERNAL = 13,
    ASK_UNAVAILABLE = 14,
    ASK_LATER = 100, /* not of google.rpc: sent, not waited for */
};

struct ask {
    struct desk *desk;
    uint64_t conn;
    bool later;     /* send only: every function returns ASK_LATER, and ask_take has the answer */
    uint64_t sent;  /* the request's id */
    char text[1024];
};

/* A tensor to send: inline `data`, or the resident tensor `id` (then the rest may be zero). */
struct ask_tensor {
    Fp8d__V1__DType dtype;
    unsigned rank;
    uint64_t dims[8];
    const void *data;
    float factor; /* of FP8 */
    uint64_t id;
};

/* [rows, cols] of F32. */
struct ask_tensor ask_f32(const float *data, uint64_t rows, uint64_t cols);

struct ask_forward {
    const char *model, *layer;
    Fp8d__V1__Mode mode;
    Fp8d__V1__FirstMicrobatch first;
    struct ask_tensor x;
    Fp8d__V1__DType output_dtype;
    uint64_t output_id, context_id;
    bool time_compute, replace_output;
    /* Filled; ask_forward_free lets them go. */
    Fp8d__V1__ForwardReply *reply;
    void *y; /* the output's bytes, if inline */
    uint64_t y_bytes;
};

struct ask ask_open(struct desk *d, uint64_t conn); /* connects */
void ask_close(struct ask *a);
unsigned ask_take(struct ask *a, uint64_t id); /* the code of the reply to a request sent before */

unsigned ask_forward(struct ask *a, struct ask_forward *f);
void ask_forward_free(struct ask_forward *f);

/* `expect` may be NULL: incarnation and weight version. `version` (may be NULL) is the reply's. */
unsigned ask_edit(struct ask *a, const char *model, const char *layer, const struct ask_tensor *w,
                  const struct ask_tensor *bias, const uint64_t expect[2], uint64_t *version);
unsigned ask_put(struct ask *a, uint64_t id, const struct ask_tensor *t);
/* The frame's payload has the bytes; `reply` (may be NULL) is the caller's to free. */
unsigned ask_get(struct ask *a, uint64_t id, struct desk_frame **frame,
                 Fp8d__V1__GetTensorReply **reply);
unsigned ask_free(struct ask *a, uint64_t id);
unsigned ask_scope_begin(struct ask *a, uint64_t id, const char *model);
/* counts (may be NULL): sites updated, sites skipped. */
unsigned ask_scope_end(struct ask *a, uint64_t id, bool discard, unsigned counts[2]);
/* counts (may be NULL): sites set, sites unset. */
unsigned ask_finish(struct ask *a, const char *model, unsigned counts[2]);
unsigned ask_abort(struct ask *a, const char *model, unsigned counts[2]);
unsigned ask_drop_context(struct ask *a, uint64_t id);
unsigned ask_drop_model(struct ask *a, const char *model, const uint64_t expect[2]);
/* `reply` (may be NULL) is the caller's to free. */
unsigned ask_check(struct ask *a, const char *model, const char *layer, const struct ask_tensor *x,
                   Fp8d__V1__CheckNumericsReply **reply);
Fp8d__V1__StatusReply *ask_status(struct ask *a);

/* --- scaling state --- */

/* The whole model with histories; freed by the caller, with fp8d__v1__query_scaling_reply__... */
Fp8d__V1__QueryScalingReply *ask_state(struct ask *a, const char *model);
void ask_state_free(Fp8d__V1__QueryScalingReply *s);
const Fp8d__V1__SiteState *ask_site(const Fp8d__V1__QueryScalingReply *s, const char *layer,
                                    const char *site);

/* Fails the test where the two differ in anything but the informational fields (uncalibrated_casts,
 * calibration_amax, calibrating), and, with `copies` false, in what the training copy is. */
void ask_states_equal(const Fp8d__V1__QueryScalingReply *a, const Fp8d__V1__QueryScalingReply *b,
                      bool copies);

/* --- numbers --- */

/* From a seed: uniform in [0, 1), and normal with mean 0. Heap; the caller frees. */
float *draw_uniform(uint64_t seed, size_t n);
float *draw_normal(uint64_t seed, size_t n, double spread);
uint64_t draw(uint64_t *state, uint64_t below); /* a stream of its own */

#endif
