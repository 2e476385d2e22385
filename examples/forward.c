/* forward.c - load a safetensors file and run one forward through its first layer.
 *
 *     cc forward.c -o forward $(pkg-config --cflags --libs libfp8d)
 *     ./forward data/minilm-layer.safetensors [SOCKET]
 */
#include <fp8d.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "example"
#define ROWS 4 /* tokens */

static int fail(const char *what, const struct fp8d_error *err)
{
    fprintf(stderr, "forward: %s: %s (%s)\n", what, err->text, fp8d_code_name(err->code));
    return 1;
}

static void print_progress(void *arg, const struct fp8d_progress *p)
{
    (void)arg;
    fprintf(stderr, "%s: %" PRIu64 " of %" PRIu64 " bytes\n", p->stage, p->bytes_done,
            p->bytes_total);
}

/* The file is opened here, with the rights of this process; the server gets the open file. */
static int load(struct fp8d *c, const char *path)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fp8d_load_options options = {.recipe = {.kind = FP8D_RECIPE_DELAYED}};
    if (fp8d_load_file(c, MODEL, path, &options, print_progress, NULL, &r, &err))
        return fail("load", &err);
    const struct fp8d_load_report *report = fp8d_result_load(r);
    printf("loaded %u layers, %" PRIu64 " parameters\n", report->layers, report->parameters);
    for (size_t i = 0; i < report->notes_count; i++)
        printf("note: %s\n", report->notes[i]);
    fp8d_result_free(r);
    return 0;
}

static void print_output(const struct fp8d_result *r)
{
    const struct fp8d_forward_result *y = fp8d_result_forward(r);
    const float *row = y->output.data;
    printf("y[%" PRIu64 ", %" PRIu64 "] = %g %g %g %g ...\n", y->output.dims[0], y->output.dims[1],
           (double)row[0], (double)row[1], (double)row[2], (double)row[3]);

    /* What the casts to FP8 did: nothing here happens in silence. */
    if (y->has_input)
        printf("input:  scale %g%s, %" PRIu64 " saturated, %" PRIu64 " flushed to zero\n",
               (double)y->input.scale, y->input.uncalibrated ? " (uncalibrated)" : "",
               y->input.saturated, y->input.flushed);
    if (y->has_weight)
        printf("weight: scale %g, the bytes carry scale_inv %g\n", (double)y->weight.scale,
               (double)y->weight.scale_inv);
}

static int forward(struct fp8d *c, const struct fp8d_layer *layer)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    size_t count = ROWS * layer->in_features;
    float *x = malloc(count * sizeof *x);
    if (!x)
        return 1;
    for (size_t i = 0; i < count; i++)
        x[i] = (float)((int)(i % 17) - 8) / 8.0f;
    struct fp8d_forward q = {
        .model = MODEL,
        .layer = layer->name,
        .input = {.dtype = FP8D_F32,
                  .rank = 2,
                  .dims = {ROWS, layer->in_features},
                  .data = x,
                  .size = count * sizeof *x},
    };
    int rc = fp8d_forward(c, &q, NULL, &r, &err);
    free(x);
    if (rc)
        return fail("forward", &err);
    print_output(r);
    fp8d_result_free(r);
    return 0;
}

static int first_layer(struct fp8d *c)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_describe_model(c, MODEL, NULL, &r, &err))
        return fail("describe", &err);
    const struct fp8d_description *d = fp8d_result_description(r);
    int rc = 1;
    if (d->count) {
        printf("layer %s: %" PRIu64 " -> %" PRIu64 "\n", d->layers[0].name,
               d->layers[0].in_features, d->layers[0].out_features);
        rc = forward(c, &d->layers[0]);
    }
    fp8d_result_free(r);
    return rc;
}

int main(int argc, char **argv)
{
    struct fp8d_error err;
    struct fp8d *c;
    if (argc < 2) {
        fputs("usage: forward FILE.safetensors [SOCKET]\n", stderr);
        return 2;
    }
    if (fp8d_connect(argc > 2 ? argv[2] : NULL, NULL, &c, &err))
        return fail("connect", &err);
    int rc = load(c, argv[1]);
    if (!rc)
        rc = first_layer(c);
    if (!rc && fp8d_drop_model(c, MODEL, NULL, NULL, NULL, &err))
        rc = fail("unload", &err);
    fp8d_close(c);
    return rc;
}
