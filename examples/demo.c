/* demo.c - the second half of `./dev demo`: sends real activations through a loaded layer and prints
 * how far each linear's output is from the stored float64 reference.
 *
 *   demo SOCKET MODEL ACTIVATIONS REFERENCE scale1|calibrated
 *
 * scale1: a train forward of a layer that has no scale yet multiplies by 1, as Transformer Engine
 * does in its first step. It runs in a scope that is discarded, so it leaves no trace in the scaling
 * state. calibrated: shows all activations in calibrate mode, sets the scales, then runs eval.
 *
 * Not an installed program: it reads safetensors with the project's own reader.
 */
#include "base/mem.h"
#include "ckpt/safetensors.h"

#include "client/fp8d.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct file {
    int fd;
    struct safetensors *header;
};

struct demo {
    struct fp8d *c;
    const char *model;
    struct file activations, reference;
};

static int die(const char *what, const char *why)
{
    fprintf(stderr, "demo: %s: %s\n", what, why);
    return 1;
}

static int file_open(struct file *file, const char *path)
{
    struct fault f = {0};
    struct io_stat st;
    file->fd = io_open_read(&io_posix, path, &st, &f);
    if (file->fd < 0 || safetensors_read(&io_posix, file->fd, &st, NULL, &file->header, &f))
        return die(path, f.text);
    return 0;
}

/* The bytes of a tensor on the heap; NULL after a message. */
static void *file_tensor(const struct file *file, const struct safetensors_tensor *t)
{
    struct fault f = {0};
    void *data = mem_alloc(t->bytes);
    if (data && !io_read_full(&io_posix, file->fd, data, t->bytes, t->offset, &f))
        return data;
    mem_free(data);
    (void)die(t->name, data ? f.text : "out of memory");
    return NULL;
}

/* The input of a linear is stored under its own name, or once for its siblings under the parent's. */
static const struct safetensors_tensor *input_of(const struct demo *d, const char *linear)
{
    char name[1100];
    (void)snprintf(name, sizeof name, "%s.input", linear);
    const struct safetensors_tensor *t = safetensors_find(d->activations.header, name);
    const char *dot = strrchr(linear, '.');
    if (t || !dot)
        return t;
    (void)snprintf(name, sizeof name, "%.*s.input", (int)(dot - linear), linear);
    return safetensors_find(d->activations.header, name);
}

static int run(struct demo *d, const char *linear, enum fp8d_mode mode, struct fp8d_result **out)
{
    const struct safetensors_tensor *t = input_of(d, linear);
    struct fp8d_error err;
    if (!t)
        return die(linear, "has no stored input");
    void *data = file_tensor(&d->activations, t);
    if (!data)
        return 1;
    struct fp8d_forward f = {
        .model = d->model,
        .layer = linear,
        .mode = mode,
        .input = {.dtype = FP8D_F32, .rank = 2, .dims = {t->dims[0], t->dims[1]}, .data = data,
                  .size = t->bytes},
    };
    int rc = fp8d_forward(d->c, &f, NULL, out, &err);
    mem_free(data);
    return rc ? die(linear, err.text) : 0;
}

/* Largest and relative (Frobenius) error against the float64 reference. */
static int print_error(struct demo *d, const char *linear, const struct safetensors_tensor *want,
                       const struct fp8d_result *r)
{
    const struct fp8d_forward_result *fr = fp8d_result_forward(r);
    const float *y = fr->output.data;
    double *ref = file_tensor(&d->reference, want);
    double worst = 0;
    double diff2 = 0;
    double ref2 = 0;
    if (!ref)
        return 1;
    for (uint64_t i = 0; i < want->bytes / sizeof *ref; i++) {
        double e = fabs((double)y[i] - ref[i]);
        worst = e > worst ? e : worst;
        diff2 += e * e;
        ref2 += ref[i] * ref[i];
    }
    mem_free(ref);
    printf("  %-44s %10.4g %12.4g %9.3f %% %8llu %8llu\n", linear, (double)fr->input.scale, worst,
           100 * sqrt(diff2 / ref2), (unsigned long long)fr->input.saturated,
           (unsigned long long)fr->input.flushed);
    return 0;
}

/* Every linear that the reference file has an output for. */
static int each_linear(struct demo *d, enum fp8d_mode mode)
{
    for (size_t i = 0; i < d->reference.header->count; i++) {
        const struct safetensors_tensor *want = &d->reference.header->tensors[i];
        char linear[512];
        struct fp8d_result *r;
        (void)snprintf(linear, sizeof linear, "%.*s",
                       (int)(strlen(want->name) - strlen(".output")), want->name);
        if (run(d, linear, mode, &r))
            return 1;
        int rc = mode == FP8D_MODE_CALIBRATE ? 0 : print_error(d, linear, want, r);
        fp8d_result_free(r);
        if (rc)
            return rc;
    }
    return 0;
}

static void print_head(void)
{
    printf("  %-44s %10s %12s %11s %8s %8s\n", "linear", "scale", "max error", "rel. error",
           "saturat.", "flushed");
}

static int scale_one(struct demo *d)
{
    struct fp8d_error err;
    if (fp8d_begin_scope(d->c, 1, d->model, NULL, NULL, NULL, &err))
        return die("begin scope", err.text);
    print_head();
    int rc = each_linear(d, FP8D_MODE_TRAIN);
    if (fp8d_end_scope(d->c, 1, true, NULL, NULL, &err))
        return die("end scope", err.text);
    return rc;
}

static int calibrated(struct demo *d)
{
    struct fp8d_error err;
    if (each_linear(d, FP8D_MODE_CALIBRATE))
        return 1;
    if (fp8d_finish_calibration(d->c, d->model, FP8D_CALIBRATION_FINISH, NULL, NULL, NULL, &err))
        return die("finish calibration", err.text);
    print_head();
    return each_linear(d, FP8D_MODE_EVAL);
}

int main(int argc, char **argv)
{
    struct demo d = {0};
    struct fp8d_error err;
    if (argc != 6)
        return die("usage", "demo SOCKET MODEL ACTIVATIONS REFERENCE scale1|calibrated"), 2;
    d.model = argv[2];
    if (file_open(&d.activations, argv[3]) || file_open(&d.reference, argv[4]))
        return 1;
    if (fp8d_connect(argv[1], NULL, &d.c, &err))
        return die(argv[1], err.text);
    int rc = strcmp(argv[5], "scale1") == 0 ? scale_one(&d) : calibrated(&d);
    fp8d_close(d.c);
    safetensors_free(d.activations.header);
    safetensors_free(d.reference.header);
    return rc;
}
