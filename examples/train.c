/* train.c - a network of two FP8 layers, trained by the service.
 *
 * It learns sixteen sine waves: for a number u between -1 and 1, given in sixteen soft bins, the
 * sines of 3 u with sixteen phases. The layers `up` and `down` are the service's: their weights,
 * FP8 copies, scales, gradients, and what Adam keeps. The tanh between them, the loss and its
 * gradient are computed here.
 *
 * Each step sends four microbatches of 64 tokens in a scope, whose end moves the scales, and then
 * takes the optimizer's step, which casts the new weights with these scales. The weights never
 * travel. Loss is the mean squared error over the 256 tokens of a step; every 20 steps it is
 * printed, and at the end the program fails unless it fell below a twentieth of the first.
 *
 *     cc train.c -o train $(pkg-config --cflags --libs libfp8d) -lm
 *     ./train [SOCKET]
 */
#include <fp8d.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define MODEL "train-example"
#define BINS 16
#define HIDDEN 64
#define WAVES 16
#define TOKENS 64
#define MICROBATCHES 4
#define STEPS 200
#define SHOWN 20  /* steps from one printed loss to the next */
#define GOAL 0.01 /* of the first loss */
#define RATE 0.01
#define UP_CONTEXT 1
#define DOWN_CONTEXT 2

struct batch {
    float x[TOKENS * BINS], want[TOKENS * WAVES];
    float hidden[TOKENS * HIDDEN]; /* behind tanh */
};

static int fail(const char *what, const struct fp8d_error *err)
{
    fprintf(stderr, "train: %s: %s (%s)\n", what, err->text, fp8d_code_name(err->code));
    return 1;
}

static struct fp8d_tensor matrix(const float *data, uint64_t rows, uint64_t cols)
{
    return (struct fp8d_tensor){.dtype = FP8D_F32,
                                .rank = 2,
                                .dims = {rows, cols},
                                .data = data,
                                .size = rows * cols * sizeof *data};
}

static struct fp8d_buffer room(float *data, uint64_t rows, uint64_t cols)
{
    return (struct fp8d_buffer){data, rows * cols * sizeof *data};
}

/* -1 to 1; the same numbers in every run. */
static double draw(uint64_t *state)
{
    uint64_t h = *state += 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return (double)((h ^ h >> 31) >> 11) * 0x1p-52 - 1;
}

/* Weights as torch.nn.Linear draws them: uniform, within 1 / sqrt(in). */
static int create(struct fp8d *c, uint64_t *state)
{
    static float up[HIDDEN * BINS], down[WAVES * HIDDEN], zero[HIDDEN];
    struct fp8d_error err;
    for (int i = 0; i < HIDDEN * BINS; i++)
        up[i] = (float)(draw(state) / sqrt(BINS));
    for (int i = 0; i < WAVES * HIDDEN; i++)
        down[i] = (float)(draw(state) / sqrt(HIDDEN));
    struct fp8d_tensor up_bias = {
        .dtype = FP8D_F32, .rank = 1, .dims = {HIDDEN}, .data = zero, .size = sizeof zero};
    struct fp8d_tensor down_bias = {
        .dtype = FP8D_F32, .rank = 1, .dims = {WAVES}, .data = zero, .size = WAVES * sizeof *zero};
    struct fp8d_layer_spec layers[2] = {{"up", matrix(up, HIDDEN, BINS), &up_bias},
                                        {"down", matrix(down, WAVES, HIDDEN), &down_bias}};
    struct fp8d_create_model q = {.model = MODEL, .layers = layers, .count = 2};
    return fp8d_create_model(c, &q, NULL, NULL, &err) ? fail("create", &err) : 0;
}

static void fill(struct batch *b, uint64_t *state)
{
    for (int t = 0; t < TOKENS; t++) {
        double u = draw(state);
        for (int i = 0; i < BINS; i++) {
            double d = (u - (2.0 * i / (BINS - 1) - 1)) * BINS / 4;
            b->x[t * BINS + i] = (float)exp(-d * d);
        }
        for (int i = 0; i < WAVES; i++)
            b->want[t * WAVES + i] = (float)sin(3 * u + 0.4 * i);
    }
}

static int forward(struct fp8d *c, const char *layer, uint64_t context, struct fp8d_tensor x,
                   struct fp8d_buffer y)
{
    struct fp8d_error err;
    struct fp8d_forward q = {.model = MODEL,
                             .layer = layer,
                             .mode = FP8D_MODE_TRAIN,
                             .input = x,
                             .context_id = context,
                             .output = y};
    return fp8d_forward(c, &q, NULL, NULL, &err) ? fail("forward", &err) : 0;
}

static int backward(struct fp8d *c, uint64_t context, struct fp8d_tensor dy, struct fp8d_buffer dx)
{
    struct fp8d_error err;
    struct fp8d_backward q = {
        .context_id = context, .grad_output = dy, .grad_input = dx, .no_grad_input = !dx.data};
    return fp8d_backward(c, &q, NULL, NULL, &err) ? fail("backward", &err) : 0;
}

/* Adds to the layers' gradients, and to the sum of squared errors. */
static int microbatch(struct fp8d *c, struct batch *b, double *squares)
{
    float y[TOKENS * WAVES], dh[TOKENS * HIDDEN];
    if (forward(c, "up", UP_CONTEXT, matrix(b->x, TOKENS, BINS), room(b->hidden, TOKENS, HIDDEN)))
        return 1;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        b->hidden[i] = tanhf(b->hidden[i]);
    if (forward(c, "down", DOWN_CONTEXT, matrix(b->hidden, TOKENS, HIDDEN), room(y, TOKENS, WAVES)))
        return 1;
    for (int i = 0; i < TOKENS * WAVES; i++) {
        float d = y[i] - b->want[i];
        *squares += (double)d * (double)d;
        y[i] = 2 * d / (MICROBATCHES * TOKENS * WAVES);
    }
    if (backward(c, DOWN_CONTEXT, matrix(y, TOKENS, WAVES), room(dh, TOKENS, HIDDEN)))
        return 1;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        dh[i] *= 1 - b->hidden[i] * b->hidden[i];
    return backward(c, UP_CONTEXT, matrix(dh, TOKENS, HIDDEN), (struct fp8d_buffer){0});
}

/* A reply that got lost would not matter: the same number again is never taken twice. */
static int take_step(struct fp8d *c, uint64_t number)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fp8d_step q = {.model = MODEL, .step = number, .max_norm = 1};
    if (fp8d_step(c, &q, NULL, &r, &err))
        return fail("step", &err);
    const struct fp8d_step_result *s = fp8d_result_step(r);
    if (s->outcome == FP8D_STEP_SKIPPED)
        printf("step %" PRIu64 " was skipped: its gradients are not finite\n", number);
    fp8d_result_free(r);
    return 0;
}

static int step(struct fp8d *c, uint64_t number, uint64_t *state, double *loss)
{
    struct fp8d_error err;
    struct batch b;
    double squares = 0;
    if (fp8d_begin_scope(c, number, MODEL, NULL, NULL, NULL, &err))
        return fail("begin scope", &err);
    for (int i = 0; i < MICROBATCHES; i++) {
        fill(&b, state);
        if (microbatch(c, &b, &squares))
            return 1;
    }
    if (fp8d_end_scope(c, number, false, NULL, NULL, &err))
        return fail("end scope", &err);
    *loss = squares / (MICROBATCHES * TOKENS * WAVES);
    return take_step(c, number);
}

static int train(struct fp8d *c, uint64_t *state)
{
    struct fp8d_error err;
    struct fp8d_optimizer adam = {.kind = FP8D_OPTIMIZER_ADAM, .rate = RATE};
    double first = 0, loss = 0;
    if (fp8d_set_optimizer(c, MODEL, &adam, NULL, 0, NULL, NULL, NULL, &err))
        return fail("set optimizer", &err);
    for (uint64_t n = 1; n <= STEPS; n++) {
        if (step(c, n, state, &loss))
            return 1;
        if (n == 1)
            first = loss;
        if (n == 1 || n % SHOWN == 0)
            printf("step %3" PRIu64 "  loss %.5f\n", n, loss);
    }
    printf("%.4f of the first, needed below %.2f\n", loss / first, GOAL);
    return loss < GOAL * first ? 0 : 1; /* a NaN is not */
}

int main(int argc, char **argv)
{
    struct fp8d_error err;
    struct fp8d *c;
    uint64_t state = 1;
    if (fp8d_connect(argc > 1 ? argv[1] : NULL, NULL, &c, &err))
        return fail("connect", &err);
    int rc = create(c, &state);
    if (!rc) {
        rc = train(c, &state);
        if (fp8d_drop_model(c, MODEL, NULL, NULL, NULL, &err))
            rc = fail("drop", &err);
    }
    fp8d_close(c);
    return rc;
}
