#include "tests/scenario/live.h"

#include "tests/unit/served.h"

#include <stdlib.h>
#include <string.h>

/* --- fixture --- */

struct desk *D;
struct ask A, B;
float *X;
static float *W;
Fp8d__V1__Recipe live_wish;
const char *const live_sites[3] = {"input", "weight", "grad_output"};

void live_start(void)
{
    D = desk_new(NULL, 0);
    A = ask_open(D, 1);
    B = ask_open(D, 2);
    W = draw_normal(1, OUT * IN, 0.1);
    X = draw_normal(2, TOKENS * IN, 2.0);
    fp8d__v1__recipe__init(&live_wish);
}

void live_stop(void)
{
    ask_close(&A);
    ask_close(&B);
    desk_free(D);
    free(W);
    free(X);
}

/* One layer "l" of W; with `state`: all three sites set and counted, a calibration unfinished. */
struct blob live_file(bool state)
{
    struct stash s = {0};
    static const float history[L] = {0, 0, 1, 2, 3, 4};
    const struct stash_site set = {.scale = 64.0f,
                                   .scale_inv = 0.015625f,
                                   .amax_last = 4.0f,
                                   .calibration_amax = 9.0f,
                                   .counters = {1, 0, 4, 3, 2, 5, 6, 1},
                                   .history = history};
    stash_put(&s, "l.weight", DTYPE_F32, 2, OUT, IN, W);
    if (state)
        stash_put_model(&s, 1, false, true, L);
    for (unsigned i = 0; state && i < 3; i++)
        stash_put_site(&s, "l", live_sites[i], L, &set);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    return b;
}

void live_load_by(struct ask *a, const char *model, bool state)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    struct blob b = live_file(state);
    r.amax_history_len = L;
    o.recipe = &r;
    ck_assert_msg(stash_load(a, model, &b, &o, NULL) == 0, "%s", a->text);
    blob_free(&b);
}

void live_load(const char *model, bool state)
{
    live_load_by(&A, model, state);
}

/* --- helpers: requests --- */

unsigned live_call(struct ask *a, uint16_t type, const ProtobufCMessage *m,
                   struct desk_frame **frame)
{
    if (!a->later)
        return desk_call(D, a->conn, type, m, NULL, 0, frame, a->text);
    a->sent = desk_send(D, a->conn, type, m, NULL, 0, NULL, 0);
    return ASK_LATER;
}

unsigned live_act(struct ask *a, const char *model, Fp8d__V1__ScalingAction action, unsigned *count)
{
    Fp8d__V1__SetScalingRequest m = FP8D__V1__SET_SCALING_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = str(model);
    m.action = action;
    unsigned code = live_call(a, REQUEST_SET_SCALING, &m.base, &frame);
    if (frame && count) {
        Fp8d__V1__SetScalingReply *r =
            fp8d__v1__set_scaling_reply__unpack(NULL, frame->meta_len, frame->meta);
        *count = r->sites;
        fp8d__v1__set_scaling_reply__free_unpacked(r, NULL);
    }
    desk_frame_free(frame);
    return code;
}

unsigned live_reset(struct ask *a, const char *model)
{
    return live_act(a, model, FP8D__V1__SCALING_ACTION__SCALING_ACTION_RESET, NULL);
}

void live_freeze(const char *model, bool on)
{
    ck_assert_uint_eq(live_act(&A, model,
                               on ? FP8D__V1__SCALING_ACTION__SCALING_ACTION_FREEZE
                                  : FP8D__V1__SCALING_ACTION__SCALING_ACTION_UNFREEZE,
                               NULL),
                      ASK_OK);
}

/* Sends `live_wish`; `reply` (may be NULL) is the caller's. */
unsigned live_ask_recipe(struct ask *a, const char *model, Fp8d__V1__SetRecipeReply **reply)
{
    Fp8d__V1__SetRecipeRequest m = FP8D__V1__SET_RECIPE_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    m.model = str(model);
    m.recipe = &live_wish;
    unsigned code = live_call(a, REQUEST_SET_RECIPE, &m.base, &frame);
    if (frame && reply)
        *reply = fp8d__v1__set_recipe_reply__unpack(NULL, frame->meta_len, frame->meta);
    desk_frame_free(frame);
    return code;
}

/* Sends `live_wish`, which must be taken, and clears it. */
void live_recipe(const char *model)
{
    ck_assert_msg(live_ask_recipe(&A, model, NULL) == 0, "%s", A.text);
    fp8d__v1__recipe__init(&live_wish);
}

struct desk_forward live_forward(struct ask *a, const char *model, Fp8d__V1__Mode mode,
                                 Fp8d__V1__FirstMicrobatch first, const float *x, float *y)
{
    struct desk_forward f = {.model = model,
                             .layer = "l",
                             .mode = mode,
                             .first = first,
                             .x = x,
                             .tokens = TOKENS,
                             .in = IN,
                             .out = OUT,
                             .y = y};
    ck_assert_msg(desk_forward(D, a->conn, &f, a->text) == 0, "%s", a->text);
    return f;
}

/* A train forward of an input whose amax is `amax`, exactly; the scale it was cast with. */
float live_train(const char *model, float amax)
{
    float x[TOKENS * IN] = {0};
    x[IN + 5] = -amax;
    return live_forward(&A, model, TRAIN, 0, x, NULL).input_scale;
}

void live_open_context(uint64_t id)
{
    struct ask_forward r = {
        .model = "m", .layer = "l", .mode = TRAIN, .context_id = id, .x = ask_f32(X, TOKENS, IN)};
    ck_assert_msg(ask_forward(&A, &r) == 0, "%s", A.text);
    ask_forward_free(&r);
}

/* --- helpers: state --- */

/* Model, recipe and all sites as bytes. */
bool live_same(struct desk_frame *a, struct desk_frame *b)
{
    bool same = a->meta_len == b->meta_len && !memcmp(a->meta, b->meta, a->meta_len);
    desk_frame_free(a);
    desk_frame_free(b);
    return same;
}

/* The history, newest first, is these `n` values. */
void live_check_history(const char *model, const char *site, const float *want, size_t n)
{
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, model);
    const Fp8d__V1__SiteState *s = ask_site(q, "l", site);
    ck_assert_msg(s->n_history == n, "%zu rows, needed %zu", s->n_history, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(s->history[i] == want[i], "row %zu is %g, needed %g", i,
                      (double)s->history[i], (double)want[i]);
    ck_assert_uint_eq(q->recipe->amax_history_len, n + 1);
    ck_assert(s->collecting == 0.0f);
    ask_state_free(q);
}

float live_scale(const char *model, const char *site)
{
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, model);
    float v = ask_site(q, "l", site)->scale;
    ask_state_free(q);
    return v;
}

void live_check_virgin(const Fp8d__V1__SiteState *s, size_t rows)
{
    ck_assert(!s->set && s->scale == 1.0f && s->scale_inv == 1.0f && s->amax_last == 0.0f);
    ck_assert(s->collecting == 0.0f && s->calibration_amax == 0.0f && s->scale_inv_in_use == 0.0f);
    ck_assert(!s->updates && !s->skipped_updates && !s->saturated && !s->flushed && !s->nonfinite);
    ck_assert(!s->uncalibrated_casts);
    ck_assert_uint_eq(s->n_history, rows);
    for (size_t i = 0; i < rows; i++)
        ck_assert(s->history[i] == 0.0f);
}

unsigned live_change(struct ask *a, int i)
{
    if (!i)
        return live_reset(a, "m");
    if (i == 2) {
        live_wish.fprop_accumulation = FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_PRECISE;
    } else {
        live_wish.amax_history_len = 3;
        live_wish.fp8_format = FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
    }
    return live_ask_recipe(a, "m", NULL);
}
