/* accumulate.c - gradients over microbatches whose weight was cast before its scale moved.
 *
 * The script of Transformer Engine's issue 1047, with gradients: a 768 x 768 layer, microbatches of
 * 1024 tokens, first_microbatch yes and then no, under delayed scaling. The weight is cast once, with
 * the scale of that moment; each request moves the scales, and the bytes stay. There, later outputs
 * and gradients were read with the new factor and wrong by the ratio of the two.
 *
 * Each microbatch is a forward and a backward, and after four of them the optimizer steps. Outputs,
 * gradients of inputs, and the weight's gradient are compared with float64 products of the weights
 * that the layer has, in some of their rows. The columns are: what the request did with the weight,
 * the factor that its bytes carry, the one that the site would use now, the relative errors of y and
 * dx, and the error of y had the bytes been read with the site's factor. It fails if an error passes
 * 0.1.
 *
 *     cc accumulate.c -o accumulate $(pkg-config --cflags --libs libfp8d) -lm
 *     ./accumulate [SOCKET]
 */
#include <fp8d.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "accumulate-example"
#define LAYER "linear"
#define FEATURES 768
#define TOKENS 1024
#define STEPS 3
#define MICROBATCHES 4
#define CHECKED 8      /* rows of a matrix that are compared */
#define ERROR_MAX 0.1  /* of any row checked, relative: FP8 has 2 to 4 significant bits */
#define CONTEXT 1

/* Matrices, row-major. */
struct work {
    struct fp8d *c;
    uint64_t state;
    float w[FEATURES * FEATURES]; /* as the service has it: [out, in] */
    float unit[FEATURES * FEATURES];
    float x[TOKENS * FEATURES], dy[TOKENS * FEATURES];
    float y[TOKENS * FEATURES], dx[TOKENS * FEATURES];
    double dw[CHECKED * FEATURES]; /* the reference, of the step so far */
    double worst;
};

static int fail(const char *what, const struct fp8d_error *err)
{
    fprintf(stderr, "accumulate: %s: %s (%s)\n", what, err->text, fp8d_code_name(err->code));
    return 1;
}

static struct fp8d_tensor matrix(const float *data, uint64_t rows)
{
    return (struct fp8d_tensor){.dtype = FP8D_F32,
                                .rank = 2,
                                .dims = {rows, FEATURES},
                                .data = data,
                                .size = rows * FEATURES * sizeof *data};
}

/* Uniform from -size to size; the same numbers in every run. */
static void draw(struct work *k, float *to, size_t n, double size)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t h = k->state += 0x9e3779b97f4a7c15u;
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
        h = (h ^ h >> 27) * 0x94d049bb133111ebu;
        to[i] = (float)(size * ((double)((h ^ h >> 31) >> 11) * 0x1p-52 - 1));
    }
}

static int create(struct work *k)
{
    struct fp8d_error err;
    draw(k, k->w, FEATURES * FEATURES, 1 / sqrt(FEATURES));
    for (int i = 0; i < FEATURES; i++)
        k->unit[i * FEATURES + i] = 1;
    struct fp8d_layer_spec layer = {.name = LAYER, .weight = matrix(k->w, FEATURES)};
    struct fp8d_create_model q = {.model = MODEL,
                                  .recipe = {.kind = FP8D_RECIPE_DELAYED},
                                  .layers = &layer,
                                  .count = 1};
    struct fp8d_optimizer sgd = {.kind = FP8D_OPTIMIZER_SGD, .rate = 1e-4};
    if (fp8d_create_model(k->c, &q, NULL, NULL, &err))
        return fail("create", &err);
    if (fp8d_set_optimizer(k->c, MODEL, &sgd, NULL, 0, NULL, NULL, NULL, &err))
        return fail("set optimizer", &err);
    return 0;
}

/* Unit vectors through the layer in high precision are its weights, exactly, transposed. */
static int read_weights(struct work *k)
{
    struct fp8d_error err;
    struct fp8d_forward q = {.model = MODEL,
                             .layer = LAYER,
                             .mode = FP8D_MODE_CALIBRATE,
                             .input = matrix(k->unit, FEATURES),
                             .output = {k->y, FEATURES * FEATURES * sizeof *k->y}};
    if (fp8d_forward(k->c, &q, NULL, NULL, &err))
        return fail("reading the weights", &err);
    for (int o = 0; o < FEATURES; o++)
        for (int i = 0; i < FEATURES; i++)
            k->w[o * FEATURES + i] = k->y[i * FEATURES + o];
    if (fp8d_finish_calibration(k->c, MODEL, FP8D_CALIBRATION_ABORT, NULL, NULL, NULL, &err))
        return fail("ending the calibration", &err);
    return 0;
}

/* The factor that a cast of the weight would use now; 0 after a failure. */
static double scale_inv_now(struct work *k)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    double found = 0;
    if (fp8d_query_scaling(k->c, MODEL, LAYER, false, NULL, &r, &err)) {
        fail("scaling", &err);
        return 0;
    }
    const struct fp8d_scaling *s = fp8d_result_scaling(r);
    for (size_t i = 0; s->count && i < s->layers[0].count; i++)
        if (!strcmp(s->layers[0].sites[i].name, "weight"))
            found = (double)s->layers[0].sites[i].scale_inv;
    fp8d_result_free(r);
    return found;
}

/* --- float64 --- */

struct error {
    double squares, norm;
};

static void error_add(struct error *e, double got, double want)
{
    e->squares += (got - want) * (got - want);
    e->norm += want * want;
}

/* NaN where anything is not a number. */
static double error_of(struct work *k, const struct error *e)
{
    double relative = sqrt(e->squares / e->norm);
    if (!(relative <= k->worst))
        k->worst = relative;
    return relative;
}

/* y = x W^T, every TOKENS / CHECKED-th row, each output times `factor`. */
static struct error check_y(const struct work *k, double factor)
{
    struct error e = {0};
    for (int t = 0; t < TOKENS; t += TOKENS / CHECKED)
        for (int o = 0; o < FEATURES; o++) {
            double sum = 0;
            for (int i = 0; i < FEATURES; i++)
                sum += (double)k->x[t * FEATURES + i] * (double)k->w[o * FEATURES + i];
            error_add(&e, factor * (double)k->y[t * FEATURES + o], sum);
        }
    return e;
}

/* dx = dy W, the same rows. */
static struct error check_dx(const struct work *k)
{
    struct error e = {0};
    for (int t = 0; t < TOKENS; t += TOKENS / CHECKED) {
        double sum[FEATURES] = {0};
        for (int o = 0; o < FEATURES; o++)
            for (int i = 0; i < FEATURES; i++)
                sum[i] += (double)k->dy[t * FEATURES + o] * (double)k->w[o * FEATURES + i];
        for (int i = 0; i < FEATURES; i++)
            error_add(&e, (double)k->dx[t * FEATURES + i], sum[i]);
    }
    return e;
}

/* dW += dy^T x, of the first CHECKED output features. */
static void add_dw(struct work *k)
{
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < CHECKED; o++)
            for (int i = 0; i < FEATURES; i++)
                k->dw[o * FEATURES + i] +=
                    (double)k->dy[t * FEATURES + o] * (double)k->x[t * FEATURES + i];
}

/* --- the run --- */

static int forward(struct work *k, bool first, bool *reused, double *carried)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fp8d_forward q = {.model = MODEL,
                             .layer = LAYER,
                             .mode = FP8D_MODE_TRAIN,
                             .first_microbatch = first ? FP8D_FIRST_YES : FP8D_FIRST_NO,
                             .input = matrix(k->x, TOKENS),
                             .context_id = CONTEXT,
                             .output = {k->y, sizeof k->y}};
    if (fp8d_forward(k->c, &q, NULL, &r, &err))
        return fail("forward", &err);
    *reused = fp8d_result_forward(r)->weight_copy == FP8D_WEIGHT_REUSED;
    *carried = (double)fp8d_result_forward(r)->weight.scale_inv;
    fp8d_result_free(r);
    return 0;
}

static int microbatch(struct work *k, int step, int n)
{
    struct fp8d_error err;
    bool reused;
    double carried;
    draw(k, k->x, TOKENS * FEATURES, 1);
    draw(k, k->dy, TOKENS * FEATURES, 1);
    if (forward(k, n == 0, &reused, &carried))
        return 1;
    double now = scale_inv_now(k);
    struct fp8d_backward b = {.context_id = CONTEXT,
                              .grad_output = matrix(k->dy, TOKENS),
                              .grad_input = {k->dx, sizeof k->dx}};
    if (fp8d_backward(k->c, &b, NULL, NULL, &err))
        return fail("backward", &err);
    add_dw(k);
    struct error y = check_y(k, 1), dx = check_dx(k), bug = check_y(k, now / carried);
    printf("%4d %10d  %-6s  %12.6g  %12.6g  %8.4f  %8.4f  %8.4f\n", step, n + 1,
           reused ? "reused" : "cast", carried, now, error_of(k, &y), error_of(k, &dx),
           sqrt(bug.squares / bug.norm));
    return 0;
}

static int check_gradient(struct work *k, int step)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct error e = {0};
    if (fp8d_get_gradient(k->c, MODEL, LAYER, FP8D_GRADIENT_WEIGHT, NULL, NULL, &r, &err))
        return fail("gradient", &err);
    const struct fp8d_gradient *g = fp8d_result_gradient(r);
    const float *dw = g->tensor.data;
    for (int i = 0; i < CHECKED * FEATURES; i++)
        error_add(&e, (double)dw[i], k->dw[i]);
    printf("%4d  weight gradient of %" PRIu64 " microbatches: error %.4f\n", step,
           g->contributions, error_of(k, &e));
    fp8d_result_free(r);
    return 0;
}

static int step(struct work *k, int number)
{
    struct fp8d_error err;
    struct fp8d_step q = {.model = MODEL, .step = (uint64_t)number};
    if (read_weights(k))
        return 1;
    memset(k->dw, 0, sizeof k->dw);
    for (int n = 0; n < MICROBATCHES; n++)
        if (microbatch(k, number, n))
            return 1;
    if (check_gradient(k, number))
        return 1;
    return fp8d_step(k->c, &q, NULL, NULL, &err) ? fail("step", &err) : 0;
}

static int run(struct work *k)
{
    struct fp8d_error err;
    int rc = create(k);
    if (rc)
        return rc;
    printf("step microbatch  weight  scale_inv of  scale_inv of   error y  error dx   error y\n"
           "                          the bytes  the site now                      with site's\n");
    for (int n = 1; !rc && n <= STEPS; n++)
        rc = step(k, n);
    if (fp8d_drop_model(k->c, MODEL, NULL, NULL, NULL, &err))
        rc = fail("drop", &err);
    if (!rc)
        printf("largest error %.4f, needed at most %.1f\n", k->worst, ERROR_MAX);
    return rc || !(k->worst <= ERROR_MAX); /* a NaN is not */
}

int main(int argc, char **argv)
{
    struct fp8d_error err;
    struct work *k = calloc(1, sizeof *k);
    if (!k)
        return 1;
    if (fp8d_connect(argc > 1 ? argv[1] : NULL, NULL, &k->c, &err)) {
        free(k);
        return fail("connect", &err);
    }
    int rc = run(k);
    fp8d_close(k->c);
    free(k);
    return rc;
}
