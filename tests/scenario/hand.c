#include "tests/scenario/hand.h"

#include "tests/oracle/gemm_input.h"
#include "tests/scenario/bound.h"

#include <math.h>

/* --- inputs --- */

static double unit(uint64_t seed, uint64_t i)
{
    return (double)(gemm_stream(seed, i) >> 40) * 0x1p-24;
}

float *hand_uniform(uint64_t seed, size_t n)
{
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)unit(seed, i);
    return x;
}

/* Box and Muller. */
float *hand_normal(uint64_t seed, size_t n, double spread)
{
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) {
        double radius = sqrt(-2.0 * log(1.0 - unit(seed, 2 * i)));
        x[i] = (float)(spread * radius * cos(2.0 * M_PI * unit(seed, 2 * i + 1)));
    }
    return x;
}

/* --- the layer --- */

void hand_open(struct hand *h, size_t out, size_t in, const struct oracle_recipe *r,
               unsigned threads)
{
    uint32_t len = (uint32_t)r->history_len;
    memset(h, 0, sizeof *h);
    rig_open(&h->rig, CPU_LEVEL_AUTO, threads, false);
    h->oracle = oracle_layer_new(out, in, r);
    h->recipe = *r;
    h->out = out;
    h->in = in;
    h->w = rig_tensor(&h->rig, DTYPE_F32, out, in, NULL);
    h->state = rig_buffer(&h->rig, 2 * (scaler_bytes(len) + 64 + sizeof(struct cast_report)), NULL);
    char *at = h->state->host;
    for (int s = 0; s < 2; s++, at += scaler_bytes(len)) {
        h->site[s] = (struct scaler *)(void *)at;
        scaler_init(h->site[s], len);
    }
    h->report[0] = (struct cast_report *)(void *)at;
    h->report[1] = h->report[0] + 1;
    h->scope[0] = (struct amax_slot *)(void *)(h->report[0] + 2);
    h->scope[1] = h->scope[0] + 1;
    memset(h->scope[0], 0, 2 * sizeof *h->scope[0]);
}

void hand_close(struct hand *h)
{
    qtensor_unref(h->copy);
    buffer_unref(h->w.buf);
    buffer_unref(h->state);
    rig_close(&h->rig);
    oracle_layer_free(h->oracle);
}

void hand_set_weight(struct hand *h, const float *w)
{
    memcpy(h->w.buf->host, w, h->out * h->in * sizeof *w);
    h->version++;
    oracle_set_weight(h->oracle, w);
}

void hand_load(struct hand *h, const float *w, float input_scale_inv, float weight_scale_inv)
{
    const float factor[2] = {input_scale_inv, weight_scale_inv};
    memcpy(h->w.buf->host, w, h->out * h->in * sizeof *w);
    h->version++;
    qtensor_unref(h->copy);
    h->copy = NULL;
    for (int s = 0; s < 2; s++) {
        scaler_reset(h->site[s]);
        if (factor[s] != 0)
            scaler_adopt(h->site[s], factor[s]);
    }
    oracle_load(h->oracle, w, input_scale_inv, weight_scale_inv);
}

static enum dtype format(const struct hand *h, int site)
{
    bool e5m2 = site == ORACLE_INPUT ? h->recipe.input_e5m2 : h->recipe.weight_e5m2;
    return e5m2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3;
}

static struct qtensor *cast(struct hand *h, int site, enum oracle_mode mode,
                            const struct tensor *src)
{
    struct qtensor *t = NULL;
    struct cast c = {.src = *src,
                     .fmt = format(h, site),
                     .mode = h->recipe.current      ? CAST_TENSOR
                             : mode == ORACLE_TRAIN ? CAST_SITE
                                                    : CAST_SITE_OR_TENSOR,
                     .margin = h->recipe.margin,
                     .site = h->site[site],
                     .report = h->report[site]};
    ck_assert_msg(!qtensor_cast(h->rig.q, NULL, &c, "hand", &t, &h->rig.f), "%s", h->rig.f.text);
    return t;
}

/* The weight of a train forward; the slot that its site must see, or NULL. */
static struct qtensor *train_weight(struct hand *h, enum oracle_flag flag,
                                    const struct amax_slot **slot, enum oracle_copy *done)
{
    bool current = h->copy && h->copy_version == h->version;
    bool same =
        current && (h->recipe.current || h->copy_report.scale == h->site[ORACLE_WEIGHT]->scale);
    *slot = &h->copy_report.slot;
    *done = ORACLE_COPY_REUSED;
    if (current && flag == ORACLE_FALSE)
        *slot = NULL;
    else if (flag != ORACLE_UNSET || !same) {
        qtensor_unref(h->copy);
        h->copy = cast(h, ORACLE_WEIGHT, ORACLE_TRAIN, &h->w);
        rig_wait(&h->rig);
        h->copy_report = *h->report[ORACLE_WEIGHT];
        h->copy_version = h->version;
        *done = flag == ORACLE_FALSE ? ORACLE_COPY_REMADE : ORACLE_COPY_CAST;
    }
    return qtensor_ref(h->copy);
}

static struct qtensor *eval_weight(struct hand *h, enum oracle_copy *done)
{
    struct qtensor *own = cast(h, ORACLE_WEIGHT, ORACLE_EVAL, &h->w);
    rig_wait(&h->rig);
    *done = ORACLE_COPY_EVAL;
    if (!h->copy || h->copy_version != h->version ||
        h->copy_report.scale != h->report[ORACLE_WEIGHT]->scale)
        return own;
    qtensor_unref(own);
    *done = ORACLE_COPY_REUSED;
    return qtensor_ref(h->copy);
}

static void update(struct hand *h)
{
    struct apply_site at[2];
    for (int s = 0; s < 2; s++)
        at[s] = (struct apply_site){.site = h->site[s], .slot = h->scope[s], .fmt = format(h, s)};
    struct apply a = {.sites = at,
                      .count = 2,
                      .algo = h->recipe.most_recent ? AMAX_MOST_RECENT : AMAX_MAX,
                      .margin = h->recipe.margin};
    if (!h->recipe.current)
        ck_assert_msg(!backend_apply(h->rig.q, &a, &h->rig.f), "%s", h->rig.f.text);
}

void hand_scope_begin(struct hand *h)
{
    h->in_scope = true;
    oracle_scope_begin(h->oracle);
}

void hand_scope_end(struct hand *h)
{
    h->in_scope = false;
    update(h);
    rig_wait(&h->rig);
    memset(h->scope[0], 0, 2 * sizeof *h->scope[0]);
    oracle_scope_end(h->oracle);
}

static float measure(struct hand *h, const struct tensor *t)
{
    ck_assert_msg(!backend_measure(h->rig.q, t, h->report[0], &h->rig.f), "%s", h->rig.f.text);
    rig_wait(&h->rig);
    return h->report[0]->slot.amax;
}

static enum oracle_copy calibrate(struct hand *h, const struct tensor *x, const struct tensor *y)
{
    struct gemm_high g = {.a = *x, .b = h->w, .out = *y};
    float input = measure(h, x), weight = measure(h, &h->w);
    h->calibrated[0] = fmaxf(h->calibrated[0], input);
    h->calibrated[1] = fmaxf(h->calibrated[1], weight);
    ck_assert_msg(!backend_gemm_high(h->rig.q, &g, &h->rig.f), "%s", h->rig.f.text);
    rig_wait(&h->rig);
    return ORACLE_COPY_NONE;
}

void hand_calibration_finish(struct hand *h)
{
    for (int s = 0; s < 2; s++) {
        scaler_calibrate(h->site[s], format(h, s), h->recipe.margin, h->calibrated[s]);
        h->calibrated[s] = 0;
    }
    oracle_calibration_finish(h->oracle);
}

static enum oracle_copy run(struct hand *h, enum oracle_mode mode, enum oracle_flag flag,
                            const struct tensor *x, const struct tensor *y)
{
    const struct amax_slot *slot = NULL;
    enum oracle_copy done;
    struct qtensor *w =
        mode == ORACLE_TRAIN ? train_weight(h, flag, &slot, &done) : eval_weight(h, &done);
    struct qtensor *in = cast(h, ORACLE_INPUT, mode, x);
    rig_wait(&h->rig);
    if (mode == ORACLE_TRAIN) {
        slot_merge(h->scope[ORACLE_INPUT], &h->report[ORACLE_INPUT]->slot);
        if (slot)
            slot_merge(h->scope[ORACLE_WEIGHT], slot);
        if (!h->in_scope) /* before the product, which must not see the new scales */
            update(h);
    }
    struct gemm g = {.a = in, .b = w, .out = *y};
    ck_assert_msg(!backend_gemm(h->rig.q, &g, &h->rig.f), "%s", h->rig.f.text);
    rig_wait(&h->rig);
    if (!h->in_scope)
        memset(h->scope[0], 0, 2 * sizeof *h->scope[0]);
    qtensor_unref(in);
    qtensor_unref(w);
    return done;
}

/* --- comparison --- */

static void states_agree(const struct hand *h)
{
    for (int s = 0; s < 2; s++) {
        const struct scaler *got = h->site[s];
        const struct scaler_ref *want = oracle_state(h->oracle, (enum oracle_site)s);
        ck_assert_msg(got->scale == want->scale && got->scale_inv == want->scale_inv,
                      "site %d: scale %a, needed %a", s, (double)got->scale, (double)want->scale);
        ck_assert(got->updates == want->updates && got->skipped_updates == want->skipped);
        ck_assert(got->saturated == want->saturated && got->flushed == want->flushed);
        for (uint32_t i = 0; i < got->len; i++)
            if ((double)got->history[i] != scaler_ref_row(want, i))
                ck_abort_msg("site %d, row %u is %a", s, i, (double)got->history[i]);
    }
}

/* A NaN stays. */
static void larger(double *most, double x)
{
    if (x > *most || isnan(x))
        *most = x;
}

struct hand_result hand_forward(struct hand *h, enum oracle_mode mode, enum oracle_flag flag,
                                const float *x, size_t tokens)
{
    struct hand_result r = {0};
    struct tensor in = rig_tensor(&h->rig, DTYPE_F32, tokens, h->in, x);
    struct tensor out = rig_tensor(&h->rig, DTYPE_F32, tokens, h->out, NULL);
    struct bound want = bound_new(h->in, tokens * h->out);
    double *high = malloc(tokens * h->out * sizeof *high);
    ck_assert_ptr_nonnull(high);
    want.high = mode == ORACLE_CALIBRATE;
    enum oracle_copy done =
        mode == ORACLE_CALIBRATE ? calibrate(h, &in, &out) : run(h, mode, flag, &in, &out);
    oracle_cuts(h->oracle, rig_cuda() ? want.cut : NULL);
    r.copy = oracle_forward(h->oracle, mode, flag, x, tokens, want.want);
    oracle_cuts(h->oracle, NULL);
    oracle_high(h->oracle, x, tokens, high);
    bound_check(&want, out.buf->host);
    for (size_t i = 0; i < tokens * h->out; i++)
        larger(&r.against_high, fabs((double)((const float *)out.buf->host)[i] - high[i]));
    ck_assert_int_eq(done, r.copy);
    states_agree(h);
    bound_free(&want);
    free(high);
    buffer_unref(in.buf);
    buffer_unref(out.buf);
    return r;
}
