/* charlm.c - a character-level language model, its linear layers in FP8 at the service or in float32
 * here.
 *
 * It learns to tell the next character of a text from the 16 before it: an embedding of 8 numbers a
 * character, a layer `up` to 256 features, tanh, a layer `down` to 96 characters, softmax. Embedding,
 * tanh, softmax and the loss are computed here. With `fp8d` the two layers are the service's: FP8
 * products, scales, gradients and Adam; with `float32` they are computed here as well, by the same
 * rules. Both begin with the same weights and see the same characters, so that the two curves can be
 * laid over each other.
 *
 * Prints the loss of every step (cross-entropy in nats a character, mean over the 256 of a step), and
 * last the mean over the last 20 steps.
 *
 *     cc charlm.c -o charlm $(pkg-config --cflags --libs libfp8d) -lm
 *     ./charlm TEXT STEPS fp8d|float32 [SOCKET]
 */
#include <fp8d.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "charlm-example"
#define CHARACTERS 96 /* ' ' to '~', and one for all others */
#define WINDOW 16
#define EMBEDDING 8
#define INPUT (WINDOW * EMBEDDING)
#define HIDDEN 256
#define TOKENS 256
#define TEXT_MAX (1 << 20)
#define LAST 20 /* steps of the mean that is printed last */
#define RATE 0.003f

/* Parameters that are moved here. */
struct adam {
    float *p, *g, *m, *v;
    size_t n;
};

/* y = x W^T + b, all row-major; with `fp8d` w and b are what the service begins with. */
struct linear {
    const char *name;
    uint64_t context;
    int out, in;
    struct adam w, b;
};

struct net {
    struct fp8d *c; /* NULL: float32 */
    struct linear up, down;
    struct adam embedding; /* [CHARACTERS, EMBEDDING] */
    unsigned char *text;   /* as numbers below CHARACTERS */
    size_t length;
    uint64_t state;
    unsigned char seen[TOKENS][WINDOW], next[TOKENS];
    float x[TOKENS * INPUT], hidden[TOKENS * HIDDEN], logits[TOKENS * CHARACTERS];
    float dh[TOKENS * HIDDEN], dx[TOKENS * INPUT];
};

static int fail(const char *what, const struct fp8d_error *err)
{
    fprintf(stderr, "charlm: %s: %s (%s)\n", what, err->text, fp8d_code_name(err->code));
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

/* --- what is computed here --- */

static int adam_new(struct adam *a, size_t n, double size, uint64_t *state)
{
    *a = (struct adam){.p = calloc(4 * n, sizeof *a->p), .n = n};
    if (!a->p)
        return 1;
    a->g = a->p + n;
    a->m = a->g + n;
    a->v = a->m + n;
    for (size_t i = 0; i < n && size > 0; i++)
        a->p[i] = (float)(size * (2 * draw(state) - 1));
    return 0;
}

/* torch.optim.Adam with its defaults; the gradient is forgotten. */
static void adam_step(struct adam *a, int number)
{
    float first = 1 - powf(0.9f, (float)number), second = sqrtf(1 - powf(0.999f, (float)number));
    for (size_t i = 0; i < a->n; i++) {
        a->m[i] += 0.1f * (a->g[i] - a->m[i]);
        a->v[i] = 0.999f * a->v[i] + 0.001f * a->g[i] * a->g[i];
        a->p[i] -= RATE / first * a->m[i] / (sqrtf(a->v[i]) / second + 1e-8f);
        a->g[i] = 0;
    }
}

static int here_forward(const struct linear *l, const float *x, float *y)
{
    float *wt = malloc(l->w.n * sizeof *wt);
    if (!wt)
        return 1;
    for (int o = 0; o < l->out; o++)
        for (int i = 0; i < l->in; i++)
            wt[i * l->out + o] = l->w.p[o * l->in + i];
    for (int t = 0; t < TOKENS; t++) {
        float *row = y + t * l->out;
        memcpy(row, l->b.p, (size_t)l->out * sizeof *row);
        for (int i = 0; i < l->in; i++)
            for (int o = 0; o < l->out; o++)
                row[o] += x[t * l->in + i] * wt[i * l->out + o];
    }
    free(wt);
    return 0;
}

static int here_backward(const struct linear *l, const float *x, const float *dy, float *dx)
{
    memset(dx, 0, (size_t)TOKENS * (size_t)l->in * sizeof *dx);
    for (int t = 0; t < TOKENS; t++)
        for (int o = 0; o < l->out; o++) {
            float d = dy[t * l->out + o];
            l->b.g[o] += d;
            for (int i = 0; i < l->in; i++) {
                dx[t * l->in + i] += d * l->w.p[o * l->in + i];
                l->w.g[o * l->in + i] += d * x[t * l->in + i];
            }
        }
    return 0;
}

/* --- what the service computes --- */

static struct fp8d_tensor matrix(const float *data, int rows, int cols)
{
    return (struct fp8d_tensor){.dtype = FP8D_F32,
                                .rank = 2,
                                .dims = {(uint64_t)rows, (uint64_t)cols},
                                .data = data,
                                .size = (size_t)rows * (size_t)cols * sizeof *data};
}

static int create(struct net *k)
{
    struct fp8d_error err;
    struct linear *l[2] = {&k->up, &k->down};
    struct fp8d_layer_spec spec[2];
    struct fp8d_tensor bias[2];
    struct fp8d_optimizer adam = {.kind = FP8D_OPTIMIZER_ADAM, .rate = (double)RATE};
    for (int i = 0; i < 2; i++) {
        bias[i] = (struct fp8d_tensor){.dtype = FP8D_F32,
                                       .rank = 1,
                                       .dims = {l[i]->b.n},
                                       .data = l[i]->b.p,
                                       .size = l[i]->b.n * sizeof(float)};
        spec[i] = (struct fp8d_layer_spec){l[i]->name, matrix(l[i]->w.p, l[i]->out, l[i]->in),
                                           &bias[i]};
    }
    struct fp8d_create_model q = {.model = MODEL, .layers = spec, .count = 2};
    if (fp8d_create_model(k->c, &q, NULL, NULL, &err))
        return fail("create", &err);
    if (fp8d_set_optimizer(k->c, MODEL, &adam, NULL, 0, NULL, NULL, NULL, &err))
        return fail("set optimizer", &err);
    return 0;
}

static int forward(struct net *k, const struct linear *l, const float *x, float *y)
{
    struct fp8d_error err;
    struct fp8d_forward q = {
        .model = MODEL,
        .layer = l->name,
        .mode = FP8D_MODE_TRAIN,
        .input = matrix(x, TOKENS, l->in),
        .context_id = l->context,
        .output = {y, (size_t)TOKENS * (size_t)l->out * sizeof *y},
    };
    if (!k->c)
        return here_forward(l, x, y);
    return fp8d_forward(k->c, &q, NULL, NULL, &err) ? fail("forward", &err) : 0;
}

static int backward(struct net *k, const struct linear *l, const float *x, const float *dy,
                    float *dx)
{
    struct fp8d_error err;
    struct fp8d_backward q = {
        .context_id = l->context,
        .grad_output = matrix(dy, TOKENS, l->out),
        .grad_input = {dx, (size_t)TOKENS * (size_t)l->in * sizeof *dx},
    };
    if (!k->c)
        return here_backward(l, x, dy, dx);
    return fp8d_backward(k->c, &q, NULL, NULL, &err) ? fail("backward", &err) : 0;
}

/* The end of the scope moves the scales, and the step casts the new weights with them. */
static int linears_step(struct net *k, int number)
{
    struct fp8d_error err;
    struct fp8d_step q = {.model = MODEL, .step = (uint64_t)number};
    if (!k->c) {
        struct adam *all[] = {&k->up.w, &k->up.b, &k->down.w, &k->down.b};
        for (int i = 0; i < 4; i++)
            adam_step(all[i], number);
        return 0;
    }
    if (fp8d_end_scope(k->c, (uint64_t)number, false, NULL, NULL, &err))
        return fail("end scope", &err);
    return fp8d_step(k->c, &q, NULL, NULL, &err) ? fail("step", &err) : 0;
}

/* --- the model --- */

static void fill(struct net *k)
{
    for (int t = 0; t < TOKENS; t++) {
        size_t at = (size_t)(draw(&k->state) * (double)(k->length - WINDOW - 1));
        memcpy(k->seen[t], k->text + at, WINDOW);
        k->next[t] = k->text[at + WINDOW];
        for (int i = 0; i < WINDOW; i++)
            memcpy(k->x + t * INPUT + i * EMBEDDING,
                   k->embedding.p + k->seen[t][i] * EMBEDDING, EMBEDDING * sizeof(float));
    }
}

/* Logits become their gradient. */
static double cross_entropy(struct net *k)
{
    double loss = 0;
    for (int t = 0; t < TOKENS; t++) {
        float *y = k->logits + t * CHARACTERS;
        double sum = 0, most = -HUGE_VAL;
        for (int i = 0; i < CHARACTERS; i++)
            most = (double)y[i] > most ? (double)y[i] : most;
        for (int i = 0; i < CHARACTERS; i++)
            sum += exp((double)y[i] - most);
        loss += log(sum) + most - (double)y[k->next[t]];
        for (int i = 0; i < CHARACTERS; i++)
            y[i] = (float)((exp((double)y[i] - most) / sum - (i == k->next[t])) / TOKENS);
    }
    return loss / TOKENS;
}

static int step(struct net *k, int number, double *loss)
{
    struct fp8d_error err;
    fill(k);
    if (k->c && fp8d_begin_scope(k->c, (uint64_t)number, MODEL, NULL, NULL, NULL, &err))
        return fail("begin scope", &err);
    if (forward(k, &k->up, k->x, k->hidden))
        return 1;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        k->hidden[i] = tanhf(k->hidden[i]);
    if (forward(k, &k->down, k->hidden, k->logits))
        return 1;
    *loss = cross_entropy(k);
    if (backward(k, &k->down, k->hidden, k->logits, k->dh))
        return 1;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        k->dh[i] *= 1 - k->hidden[i] * k->hidden[i];
    if (backward(k, &k->up, k->x, k->dh, k->dx) || linears_step(k, number))
        return 1;
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < INPUT; i++)
            k->embedding.g[k->seen[t][i / EMBEDDING] * EMBEDDING + i % EMBEDDING] +=
                k->dx[t * INPUT + i];
    adam_step(&k->embedding, number);
    return 0;
}

static int train(struct net *k, int steps)
{
    double loss = 0, last = 0;
    for (int n = 1; n <= steps; n++) {
        if (step(k, n, &loss))
            return 1;
        printf("step %4d  loss %.5f\n", n, loss);
        last += n > steps - LAST ? loss : 0;
    }
    printf("mean of the last %d: %.5f\n", LAST, last / LAST);
    return isfinite(last) ? 0 : 1;
}

/* --- start --- */

static int read_text(struct net *k, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in || !(k->text = malloc(TEXT_MAX))) {
        perror(path);
        return 1;
    }
    k->length = fread(k->text, 1, TEXT_MAX, in);
    fclose(in);
    for (size_t i = 0; i < k->length; i++)
        k->text[i] = k->text[i] < ' ' || k->text[i] > '~' ? CHARACTERS - 1
                                                          : (unsigned char)(k->text[i] - ' ');
    if (k->length > 2 * WINDOW)
        return 0;
    fprintf(stderr, "charlm: %s has %zu bytes, needed more than %d\n", path, k->length, 2 * WINDOW);
    return 1;
}

static int linear_new(struct linear *l, const char *name, uint64_t context, int out, int in,
                      uint64_t *state)
{
    *l = (struct linear){.name = name, .context = context, .out = out, .in = in};
    return adam_new(&l->w, (size_t)out * (size_t)in, 1 / sqrt(in), state) ||
           adam_new(&l->b, (size_t)out, 0, state);
}

static int run(struct net *k, int argc, char **argv)
{
    struct fp8d_error err;
    int steps = atoi(argv[2]);
    if (steps < LAST) {
        fprintf(stderr, "charlm: STEPS is %s, needed at least %d\n", argv[2], LAST);
        return 1;
    }
    if (read_text(k, argv[1]) || linear_new(&k->up, "up", 1, HIDDEN, INPUT, &k->state) ||
        linear_new(&k->down, "down", 2, CHARACTERS, HIDDEN, &k->state) ||
        adam_new(&k->embedding, CHARACTERS * EMBEDDING, 1, &k->state))
        return 1;
    if (!strcmp(argv[3], "float32"))
        return train(k, steps);
    if (fp8d_connect(argc > 4 ? argv[4] : NULL, NULL, &k->c, &err))
        return fail("connect", &err);
    int rc = create(k);
    if (!rc) {
        rc = train(k, steps);
        if (fp8d_drop_model(k->c, MODEL, NULL, NULL, NULL, &err))
            rc = fail("drop", &err);
    }
    fp8d_close(k->c);
    return rc;
}

int main(int argc, char **argv)
{
    struct net *k = calloc(1, sizeof *k);
    int rc = 1;
    if (argc < 4 || (strcmp(argv[3], "fp8d") != 0 && strcmp(argv[3], "float32") != 0))
        fprintf(stderr, "usage: charlm TEXT STEPS fp8d|float32 [SOCKET]\n");
    else if (k)
        rc = run(k, argc, argv);
    if (k) {
        free(k->text);
        free(k->up.w.p);
        free(k->up.b.p);
        free(k->down.w.p);
        free(k->down.b.p);
        free(k->embedding.p);
    }
    free(k);
    return rc;
}
