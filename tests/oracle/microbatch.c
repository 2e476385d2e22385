#include "tests/oracle/microbatch.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An FP8 tensor as numbers: decoded values, and the factor that belongs to them. */
struct cast8 {
    float *value;
    float scale, factor;
    double amax;
    uint64_t nonfinite, saturated, flushed;
};

struct oracle_layer {
    size_t out, in;
    struct oracle_recipe recipe;
    float *w, *bias;
    uint64_t version;
    struct cast8 copy;     /* the training copy */
    uint64_t copy_version; /* 0: none */
    struct scaler_ref *site[2];
    bool in_scope;
    struct cast8 seen[2]; /* counts of the open scope; no values */
    double calibrated[2]; /* max |x| over calibrate requests */
    struct cut *cuts;     /* the caller's, or NULL */
};

static void *need(void *p)
{
    if (!p)
        abort();
    return p;
}

/* --- casts --- */

static double fp8_top(bool e5m2)
{
    return e5m2 ? 57344.0 : 448.0;
}

double oracle_fp8(double v, bool e5m2)
{
    int mant = e5m2 ? 2 : 3, least = e5m2 ? -16 : -9, exp;
    double mag = fabs(v);
    if (isnan(v))
        return v;
    if (mag >= fp8_top(e5m2))
        return copysign(fp8_top(e5m2), v);
    (void)frexp(mag, &exp);
    int unit = exp - 1 - mant > least ? exp - 1 - mant : least;
    double rounded = ldexp(nearbyint(ldexp(mag, -unit)), unit);
    return copysign(fmin(rounded, fp8_top(e5m2)), v);
}

static float own_scale(double amax, bool e5m2, int margin)
{
    if (amax == 0)
        return 1.0f;
    double scale = ldexp(fp8_top(e5m2), -margin) / amax;
    return (float)fmin(fmax(scale, FLT_MIN), FLT_MAX);
}

static double amax_of(const float *x, size_t n)
{
    double amax = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            amax = fmax(amax, fabs((double)x[i]));
    return amax;
}

/* x * scale needs 48 bits: exact in double, rounded once to float32. */
static struct cast8 cast_with(const float *x, size_t n, bool e5m2, float scale, float factor)
{
    struct cast8 c = {.scale = scale, .factor = factor, .amax = amax_of(x, n)};
    c.value = need(malloc(n * sizeof *c.value));
    for (size_t i = 0; i < n; i++) {
        double v = (double)(float)((double)x[i] * (double)scale);
        bool high = e5m2 ? fabs(v) >= 61440.0 : fabs(v) > 464.0;
        c.value[i] = (float)oracle_fp8(v, e5m2);
        c.nonfinite += isfinite(x[i]) ? 0 : 1;
        c.saturated += isfinite(x[i]) && high;
        c.flushed += x[i] != 0 && c.value[i] == 0;
    }
    return c;
}

static bool site_e5m2(const struct oracle_layer *l, enum oracle_site site)
{
    return site == ORACLE_INPUT ? l->recipe.input_e5m2 : l->recipe.weight_e5m2;
}

/* Delayed training casts with the site's scale; eval does, if it is set; all else with its own. */
static struct cast8 cast_at(const struct oracle_layer *l, enum oracle_site site,
                            enum oracle_mode mode, const float *x, size_t n)
{
    const struct scaler_ref *s = l->site[site];
    bool e5m2 = site_e5m2(l, site);
    if (!l->recipe.current && (mode == ORACLE_TRAIN || s->set))
        return cast_with(x, n, e5m2, s->scale, s->scale_inv);
    float scale = own_scale(amax_of(x, n), e5m2, l->recipe.margin);
    return cast_with(x, n, e5m2, scale, (float)(1.0 / (double)scale));
}

/* --- products --- */

#define ROWS 4
#define COLS 8

/* x[tokens, k] * wt[k, out], both as double, in an order that vectorises by itself. */
static void product(const double *x, const double *wt, size_t tokens, size_t out, size_t k,
                    double *y)
{
    for (size_t t = 0; t < tokens; t += ROWS)
        for (size_t o = 0; o < out; o += COLS) {
            size_t rows = tokens - t < ROWS ? tokens - t : ROWS;
            size_t cols = out - o < COLS ? out - o : COLS;
            double sum[ROWS][COLS] = {{0}};
            for (size_t i = 0; i < k; i++)
                for (size_t r = 0; r < rows; r++)
                    for (size_t c = 0; c < cols; c++)
                        sum[r][c] += x[(t + r) * k + i] * wt[i * out + o + c];
            for (size_t r = 0; r < rows; r++)
                for (size_t c = 0; c < cols; c++)
                    y[(t + r) * out + o + c] = sum[r][c];
        }
}

static void product_cuts(const struct oracle_layer *l, const float *x, const float *w,
                         size_t tokens, double factor)
{
    double least_x = cut_least(l->recipe.input_e5m2), least_w = cut_least(l->recipe.weight_e5m2);
    for (size_t i = 0; i < tokens * l->out; i++) {
        const float *row = x + i / l->out * l->in;
        l->cuts[i] = cut_of(row, w + i % l->out * l->in, l->in, least_x, least_w);
        cut_scale(&l->cuts[i], factor);
    }
}

/* y = (x * w^T) * factor + bias. */
static void linear(const struct oracle_layer *l, const float *x, const float *w, size_t tokens,
                   double factor, double *y)
{
    size_t k = l->in, out = l->out;
    double *wide = need(calloc(tokens * k + 1, sizeof *wide));
    double *turned = need(calloc(out * k + 1, sizeof *turned));
    for (size_t i = 0; i < tokens * k; i++)
        wide[i] = (double)x[i];
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < k; i++)
            turned[i * out + o] = (double)w[o * k + i];
    product(wide, turned, tokens, out, k, y);
    for (size_t i = 0; i < tokens * out; i++)
        y[i] = y[i] * factor + (l->bias ? (double)l->bias[i % out] : 0.0);
    if (l->cuts)
        product_cuts(l, x, w, tokens, factor);
    free(wide);
    free(turned);
}

void oracle_cuts(struct oracle_layer *l, struct cut *c)
{
    l->cuts = c;
}

void oracle_high(const struct oracle_layer *l, const float *x, size_t tokens, double *y)
{
    linear(l, x, l->w, tokens, 1.0, y);
}

/* --- the layer --- */

static void copy_drop(struct oracle_layer *l)
{
    free(l->copy.value);
    l->copy = (struct cast8){0};
    l->copy_version = 0;
}

struct oracle_layer *oracle_layer_new(size_t out, size_t in, const struct oracle_recipe *r)
{
    struct oracle_layer *l = need(calloc(1, sizeof *l));
    l->out = out;
    l->in = in;
    l->recipe = *r;
    l->w = need(calloc(out * in, sizeof *l->w));
    l->version = 1;
    for (int s = 0; s < 2; s++)
        l->site[s] = scaler_ref_new(fp8_top(site_e5m2(l, (enum oracle_site)s)), r->history_len);
    return l;
}

void oracle_layer_free(struct oracle_layer *l)
{
    if (!l)
        return;
    copy_drop(l);
    scaler_ref_free(l->site[0]);
    scaler_ref_free(l->site[1]);
    free(l->w);
    free(l->bias);
    free(l);
}

void oracle_set_weight(struct oracle_layer *l, const float *w)
{
    memcpy(l->w, w, l->out * l->in * sizeof *w);
    l->version++;
}

void oracle_set_bias(struct oracle_layer *l, const float *bias)
{
    free(l->bias);
    l->bias = bias ? need(malloc(l->out * sizeof *bias)) : NULL;
    if (bias)
        memcpy(l->bias, bias, l->out * sizeof *bias);
}

void oracle_load(struct oracle_layer *l, const float *w, float input_scale_inv,
                 float weight_scale_inv)
{
    const float factor[2] = {input_scale_inv, weight_scale_inv};
    oracle_set_weight(l, w);
    copy_drop(l);
    oracle_calibration_abort(l);
    for (int s = 0; s < 2; s++) {
        scaler_ref_reset(l->site[s]);
        if (factor[s] != 0)
            scaler_ref_adopt(l->site[s], factor[s]);
    }
}

/* --- forward --- */

static void feed(struct oracle_layer *l, enum oracle_site site, const struct cast8 *c)
{
    struct cast8 *seen = &l->seen[site];
    seen->amax = fmax(seen->amax, c->amax);
    seen->nonfinite += c->nonfinite;
    seen->saturated += c->saturated;
    seen->flushed += c->flushed;
}

/* The table of section 2, train rows. A reused copy under `unset` feeds what its cast had seen. */
static enum oracle_copy train_copy(struct oracle_layer *l, enum oracle_flag flag)
{
    bool version = l->copy_version == l->version;
    bool scale = l->recipe.current || l->copy.scale == l->site[ORACLE_WEIGHT]->scale;
    if (version && flag == ORACLE_FALSE)
        return ORACLE_COPY_REUSED;
    enum oracle_copy done = ORACLE_COPY_REUSED;
    if (flag != ORACLE_UNSET || !version || !scale) {
        copy_drop(l);
        l->copy = cast_at(l, ORACLE_WEIGHT, ORACLE_TRAIN, l->w, l->out * l->in);
        l->copy_version = l->version;
        done = flag == ORACLE_FALSE ? ORACLE_COPY_REMADE : ORACLE_COPY_CAST;
    }
    feed(l, ORACLE_WEIGHT, &l->copy);
    return done;
}

static enum oracle_copy train(struct oracle_layer *l, enum oracle_flag flag, const float *x,
                              size_t tokens, double *y)
{
    struct cast8 in = cast_at(l, ORACLE_INPUT, ORACLE_TRAIN, x, tokens * l->in);
    enum oracle_copy done = train_copy(l, flag);
    feed(l, ORACLE_INPUT, &in);
    linear(l, in.value, l->copy.value, tokens, (double)in.factor * (double)l->copy.factor, y);
    free(in.value);
    if (!l->in_scope)
        oracle_scope_end(l);
    return done;
}

/* The training copy serves eval if it is what eval would make: same version, same scale. */
static enum oracle_copy eval(const struct oracle_layer *l, const float *x, size_t tokens, double *y)
{
    struct cast8 in = cast_at(l, ORACLE_INPUT, ORACLE_EVAL, x, tokens * l->in);
    struct cast8 own = cast_at(l, ORACLE_WEIGHT, ORACLE_EVAL, l->w, l->out * l->in);
    bool same = l->copy_version == l->version && l->copy.scale == own.scale;
    const struct cast8 *w = same ? &l->copy : &own;
    linear(l, in.value, w->value, tokens, (double)in.factor * (double)w->factor, y);
    free(in.value);
    free(own.value);
    return same ? ORACLE_COPY_REUSED : ORACLE_COPY_EVAL;
}

enum oracle_copy oracle_forward(struct oracle_layer *l, enum oracle_mode mode,
                                enum oracle_flag flag, const float *x, size_t tokens, double *y)
{
    if (mode == ORACLE_TRAIN)
        return train(l, flag, x, tokens, y);
    if (mode == ORACLE_EVAL)
        return eval(l, x, tokens, y);
    double *most = l->calibrated;
    most[ORACLE_INPUT] = fmax(most[ORACLE_INPUT], amax_of(x, tokens * l->in));
    most[ORACLE_WEIGHT] = fmax(most[ORACLE_WEIGHT], amax_of(l->w, l->out * l->in));
    oracle_high(l, x, tokens, y);
    return ORACLE_COPY_NONE;
}

void oracle_scope_begin(struct oracle_layer *l)
{
    l->in_scope = true;
}

void oracle_scope_end(struct oracle_layer *l)
{
    for (int s = 0; s < 2 && !l->recipe.current; s++) {
        const struct cast8 *c = &l->seen[s];
        scaler_ref_collect(l->site[s], c->amax, c->nonfinite, c->saturated, c->flushed);
        scaler_ref_apply(l->site[s], l->recipe.most_recent, l->recipe.margin, false);
    }
    oracle_scope_drop(l);
}

void oracle_scope_drop(struct oracle_layer *l)
{
    memset(l->seen, 0, sizeof l->seen);
    l->in_scope = false;
}

void oracle_calibration_finish(struct oracle_layer *l)
{
    for (int s = 0; s < 2; s++)
        scaler_ref_calibrate(l->site[s], l->calibrated[s], l->recipe.margin);
    oracle_calibration_abort(l);
}

void oracle_calibration_abort(struct oracle_layer *l)
{
    l->calibrated[ORACLE_INPUT] = l->calibrated[ORACLE_WEIGHT] = 0;
}

const struct scaler_ref *oracle_state(const struct oracle_layer *l, enum oracle_site site)
{
    return l->site[site];
}

float oracle_copy_factor(const struct oracle_layer *l)
{
    return l->copy_version ? l->copy.factor : 0.0f;
}
