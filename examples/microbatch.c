/* microbatch.c - a bug that cannot happen here.
 *
 * In training with gradient accumulation the weight is cast to FP8 once, in the first microbatch,
 * and the bytes are reused by the others (first_microbatch: yes, no, no). In Transformer Engine
 * (issue 1047) the scale of the weight moved meanwhile, and the old bytes were read with the new
 * factor: nothing failed, but every later result was wrong by the ratio of the two.
 *
 * fp8d keeps FP8 bytes only together with the factor that made them. This program runs three steps
 * of three microbatches. In the second and third step all say "no": the bytes of the first are
 * reused although the scale has moved. It prints the factor the bytes carry, the factor the site
 * would use now, the error against high precision, and the error had the bytes been read with the
 * latter.
 *
 *     cc microbatch.c -o microbatch $(pkg-config --cflags --libs libfp8d) -lm
 *     ./microbatch data/minilm-layer.safetensors [SOCKET]
 */
#include <fp8d.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "microbatch"
#define ROWS 16
#define STEPS 3
#define MICROBATCHES 3

struct run {
    struct fp8d *c;
    const char *layer;
    struct fp8d_tensor x;
    const float *reference; /* y in high precision */
    size_t count;           /* of its elements */
};

static int fail(const char *what, const struct fp8d_error *err)
{
    fprintf(stderr, "microbatch: %s: %s (%s)\n", what, err->text, fp8d_code_name(err->code));
    return 1;
}

/* ||factor * y - reference|| / ||reference|| */
static double error_of(const struct run *run, const float *y, double factor)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < run->count; i++) {
        double d = factor * (double)y[i] - (double)run->reference[i];
        error += d * d;
        norm += (double)run->reference[i] * (double)run->reference[i];
    }
    return norm > 0 ? sqrt(error / norm) : 0;
}

static int forward(const struct run *run, enum fp8d_mode mode, enum fp8d_first_microbatch first,
                   struct fp8d_result **r)
{
    struct fp8d_error err;
    struct fp8d_forward q = {
        .model = MODEL,
        .layer = run->layer,
        .mode = mode,
        .first_microbatch = first,
        .input = run->x,
        .output_dtype = FP8D_F32,
    };
    return fp8d_forward(run->c, &q, NULL, r, &err) ? fail("forward", &err) : 0;
}

/* The factor a cast of the weight would use now; 0 after a failure. */
static double scale_inv_now(const struct run *run)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    double found = 0;
    if (fp8d_query_scaling(run->c, MODEL, run->layer, false, NULL, &r, &err)) {
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

static int microbatch(const struct run *run, int step, int i)
{
    struct fp8d_result *r;
    bool first = step == 0 && i == 0;
    if (forward(run, FP8D_MODE_TRAIN, first ? FP8D_FIRST_YES : FP8D_FIRST_NO, &r))
        return 1;
    const struct fp8d_forward_result *y = fp8d_result_forward(r);
    double carried = (double)y->weight.scale_inv, now = scale_inv_now(run);
    printf("%4d %10d  %-5s  %-6s  %12.6g  %12.6g  %8.4f  %8.4f\n", step + 1, i + 1,
           first ? "yes" : "no", y->weight_copy == FP8D_WEIGHT_REUSED ? "reused" : "cast", carried,
           now, error_of(run, y->output.data, 1), error_of(run, y->output.data, now / carried));
    fp8d_result_free(r);
    return 0;
}

/* A scope brackets the microbatches of a step: scales move at its end, never inside. */
static int step(const struct run *run, int n)
{
    struct fp8d_error err;
    uint64_t scope = (uint64_t)n + 1;
    if (fp8d_begin_scope(run->c, scope, MODEL, NULL, NULL, NULL, &err))
        return fail("begin scope", &err);
    for (int i = 0; i < MICROBATCHES; i++)
        if (microbatch(run, n, i))
            return 1;
    return fp8d_end_scope(run->c, scope, false, NULL, NULL, &err) ? fail("end scope", &err) : 0;
}

/* High precision comes from a calibrate forward, whose maxima are dropped again. */
static int steps(struct run *run)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = 0;
    if (forward(run, FP8D_MODE_CALIBRATE, FP8D_FIRST_UNSET, &r))
        return 1;
    run->reference = fp8d_result_forward(r)->output.data;
    run->count = fp8d_result_forward(r)->output.size / sizeof(float);
    if (fp8d_finish_calibration(run->c, MODEL, FP8D_CALIBRATION_ABORT, NULL, NULL, NULL, &err))
        rc = fail("calibration", &err);
    printf("step microbatch  first  weight  scale_inv of  scale_inv of     error     error\n"
           "                               the bytes     the site now  carried   site's\n");
    for (int i = 0; !rc && i < STEPS; i++)
        rc = step(run, i);
    fp8d_result_free(r);
    return rc;
}

static int run_layer(struct fp8d *c, const struct fp8d_layer *layer)
{
    size_t count = ROWS * layer->in_features;
    float *x = malloc(count * sizeof *x);
    if (!x)
        return 1;
    for (size_t i = 0; i < count; i++)
        x[i] = sinf((float)i * 0.37f);
    struct run run = {
        .c = c,
        .layer = layer->name,
        .x = {.dtype = FP8D_F32,
              .rank = 2,
              .dims = {ROWS, layer->in_features},
              .data = x,
              .size = count * sizeof *x},
    };
    int rc = steps(&run);
    free(x);
    return rc;
}

static int run_model(struct fp8d *c, const char *path)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_load_file(c, MODEL, path, NULL, NULL, NULL, NULL, &err))
        return fail("load", &err);
    if (fp8d_describe_model(c, MODEL, NULL, &r, &err))
        return fail("describe", &err);
    const struct fp8d_description *d = fp8d_result_description(r);
    int rc = d->count ? run_layer(c, &d->layers[0]) : 1;
    fp8d_result_free(r);
    if (fp8d_drop_model(c, MODEL, NULL, NULL, NULL, &err))
        rc = fail("unload", &err);
    return rc;
}

int main(int argc, char **argv)
{
    struct fp8d_error err;
    struct fp8d *c;
    if (argc < 2) {
        fputs("usage: microbatch FILE.safetensors [SOCKET]\n", stderr);
        return 2;
    }
    if (fp8d_connect(argc > 2 ? argv[2] : NULL, NULL, &c, &err))
        return fail("connect", &err);
    int rc = run_model(c, argv[1]);
    fp8d_close(c);
    return rc;
}
