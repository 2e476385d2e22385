/* calibrated.c - a second bug that cannot happen here.
 *
 * A model is trained, its scales are calibrated, it is saved, and loaded with its weights as FP8
 * (primary_fp8). In Transformer Engine (pull request 771) the first such load was wrong and a second
 * one right: weights were restored before the scaling state, and so quantised with the scales of the
 * module that was there before. Nothing failed; the model was merely bad.
 *
 * A load in fp8d takes over all scaling state before it quantises anything. This program trains one
 * 16 x 16 layer for 1000 steps of Adam on inputs as large as 100 000, under delayed scaling with
 * format hybrid; calibrates with 1000 further inputs and finishes that; saves; and loads the file
 * into FP8 weights with an amax history of 32, once and once again. The two give the same bits, with
 * the scales of the file, or the program fails.
 *
 *     cc calibrated.c -o calibrated $(pkg-config --cflags --libs libfp8d) -lm
 *     ./calibrated FILE [SOCKET]       FILE is written
 */
#include <fp8d.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRAINED "calibrated-trained"
#define LOADED "calibrated-loaded"
#define LAYER "linear"
#define FEATURES 16
#define TOKENS 16
#define ELEMENTS (TOKENS * FEATURES)
#define LARGEST 100000.0
#define STEPS 1000
#define CALIBRATIONS 1000
#define HISTORY 32
#define ERROR_MAX 0.05 /* of the FP8 model against high precision */

static int fail(const char *what, const struct fp8d_error *err)
{
    fprintf(stderr, "calibrated: %s: %s (%s)\n", what, err->text, fp8d_code_name(err->code));
    return 1;
}

/* 0 to 1; the same numbers in every run. */
static double draw(uint64_t *state)
{
    uint64_t h = *state += 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return (double)((h ^ h >> 31) >> 11) * 0x1p-53;
}

static void fill(float *x, uint64_t *state)
{
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = (float)(draw(state) * LARGEST);
}

static struct fp8d_tensor matrix(const float *data)
{
    return (struct fp8d_tensor){.dtype = FP8D_F32,
                                .rank = 2,
                                .dims = {TOKENS, FEATURES},
                                .data = data,
                                .size = ELEMENTS * sizeof *data};
}

/* Weights of BF16, uniform within 1 / sqrt(in). */
static int create(struct fp8d *c, uint64_t *state)
{
    uint16_t w[FEATURES * FEATURES];
    struct fp8d_error err;
    for (int i = 0; i < FEATURES * FEATURES; i++) {
        float x = (float)((2 * draw(state) - 1) / sqrt(FEATURES));
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        w[i] = (uint16_t)(bits >> 16); /* cut off: any weights will do */
    }
    struct fp8d_layer_spec layer = {.name = LAYER,
                                    .weight = {.dtype = FP8D_BF16,
                                               .rank = 2,
                                               .dims = {FEATURES, FEATURES},
                                               .data = w,
                                               .size = sizeof w}};
    struct fp8d_create_model q = {
        .model = TRAINED,
        .recipe = {.kind = FP8D_RECIPE_DELAYED, .format = FP8D_FORMAT_HYBRID},
        .layers = &layer,
        .count = 1,
    };
    return fp8d_create_model(c, &q, NULL, NULL, &err) ? fail("create", &err) : 0;
}

/* `cast` (may be NULL) is what the weight that was multiplied carries. */
static int forward(struct fp8d *c, const char *model, enum fp8d_mode mode, const float *x, float *y,
                   struct fp8d_cast *cast)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fp8d_forward q = {.model = model,
                             .layer = LAYER,
                             .mode = mode,
                             .input = matrix(x),
                             .context_id = mode == FP8D_MODE_TRAIN,
                             .output = {y, ELEMENTS * sizeof *y}};
    if (fp8d_forward(c, &q, NULL, &r, &err))
        return fail("forward", &err);
    if (cast)
        *cast = fp8d_result_forward(r)->weight;
    fp8d_result_free(r);
    return 0;
}

/* One step towards outputs drawn like the inputs: the mean squared error and its gradient. */
static int step(struct fp8d *c, uint64_t number, uint64_t *state)
{
    float x[ELEMENTS], y[ELEMENTS], want[ELEMENTS];
    struct fp8d_error err;
    struct fp8d_step q = {.model = TRAINED, .step = number};
    fill(x, state);
    fill(want, state);
    if (forward(c, TRAINED, FP8D_MODE_TRAIN, x, y, NULL))
        return 1;
    for (int i = 0; i < ELEMENTS; i++)
        y[i] = 2 * (y[i] - want[i]) / ELEMENTS;
    struct fp8d_backward b = {.context_id = 1, .grad_output = matrix(y), .no_grad_input = true};
    if (fp8d_backward(c, &b, NULL, NULL, &err))
        return fail("backward", &err);
    return fp8d_step(c, &q, NULL, NULL, &err) ? fail("step", &err) : 0;
}

static int train(struct fp8d *c, uint64_t *state)
{
    struct fp8d_error err;
    struct fp8d_optimizer adam = {.kind = FP8D_OPTIMIZER_ADAM, .rate = 0.001};
    if (fp8d_set_optimizer(c, TRAINED, &adam, NULL, 0, NULL, NULL, NULL, &err))
        return fail("set optimizer", &err);
    for (uint64_t n = 1; n <= STEPS; n++)
        if (step(c, n, state))
            return 1;
    return 0;
}

static int calibrate(struct fp8d *c, uint64_t *state)
{
    struct fp8d_error err;
    float x[ELEMENTS], y[ELEMENTS];
    for (int n = 0; n < CALIBRATIONS; n++) {
        fill(x, state);
        if (forward(c, TRAINED, FP8D_MODE_CALIBRATE, x, y, NULL))
            return 1;
    }
    if (fp8d_finish_calibration(c, TRAINED, FP8D_CALIBRATION_FINISH, NULL, NULL, NULL, &err))
        return fail("finish calibration", &err);
    return 0;
}

static int load(struct fp8d *c, const char *file, const float *x, float *y, struct fp8d_cast *cast)
{
    struct fp8d_error err;
    struct fp8d_load_options o = {.recipe = {.amax_history_len = HISTORY}, .primary_fp8 = true};
    if (fp8d_load_file(c, LOADED, file, &o, NULL, NULL, NULL, &err))
        return fail("load", &err);
    return forward(c, LOADED, FP8D_MODE_EVAL, x, y, cast);
}

/* ||y - reference|| / ||reference|| */
static double error_of(const float *y, const float *reference)
{
    double error = 0, norm = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        double d = (double)y[i] - (double)reference[i];
        error += d * d;
        norm += (double)reference[i] * (double)reference[i];
    }
    return sqrt(error / norm);
}

static bool same_bits(const float *a, const float *b)
{
    for (int i = 0; i < ELEMENTS; i++) {
        uint32_t x, y;
        memcpy(&x, &a[i], sizeof x);
        memcpy(&y, &b[i], sizeof y);
        if (x != y)
            return false;
    }
    return true;
}

static int compare(struct fp8d *c, const char *file, uint64_t *state)
{
    float x[ELEMENTS], reference[ELEMENTS], y[2][ELEMENTS];
    struct fp8d_cast cast[2];
    fill(x, state);
    if (forward(c, TRAINED, FP8D_MODE_CALIBRATE, x, reference, NULL))
        return 1;
    for (int i = 0; i < 2; i++) {
        if (load(c, file, x, y[i], &cast[i]))
            return 1;
        printf("load %d  weight scale_inv %.9g  error %.4f\n", i + 1, (double)cast[i].scale_inv,
               error_of(y[i], reference));
    }
    if (!same_bits(y[0], y[1])) {
        printf("the two loads give different outputs\n");
        return 1;
    }
    printf("the two loads give the same bits\n");
    return error_of(y[0], reference) < ERROR_MAX ? 0 : 1; /* a NaN is not */
}

static int drop(struct fp8d *c, const char *model)
{
    struct fp8d_error err;
    return fp8d_drop_model(c, model, NULL, NULL, NULL, &err) ? fail("drop", &err) : 0;
}

static int script(struct fp8d *c, const char *file, uint64_t *state)
{
    struct fp8d_error err;
    int rc = train(c, state);
    if (!rc)
        rc = calibrate(c, state);
    if (!rc && fp8d_save_file(c, TRAINED, file, NULL, NULL, NULL, NULL, &err))
        rc = fail("save", &err);
    if (!rc) {
        rc = compare(c, file, state);
        rc = drop(c, LOADED) || rc;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct fp8d_error err;
    struct fp8d *c;
    uint64_t state = 1;
    if (argc < 2) {
        fprintf(stderr, "usage: calibrated FILE [SOCKET]\n");
        return 1;
    }
    if (fp8d_connect(argc > 2 ? argv[2] : NULL, NULL, &c, &err))
        return fail("connect", &err);
    int rc = create(c, &state);
    if (!rc) {
        rc = script(c, argv[1], &state);
        rc = drop(c, TRAINED) || rc;
    }
    fp8d_close(c);
    return rc;
}
