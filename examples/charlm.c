/* charlm.c - a character-level language model, its linear layers in FP8 at the service or in
 * float32 here.
 *
 * It learns to tell the next character of a text from the 16 before it: an embedding of 8 numbers a
 * character, a layer `up` to 256 features, tanh, a layer `down` to 96 characters, softmax.
 * Embedding, tanh, softmax and the loss are computed here. With `fp8d` the two layers are the
 * service's: FP8 products, scales, gradients and Adam; with `float32` they are computed here as
 * well, by the same rules. Both begin with the same weights and see the same characters, so that
 * the two curves can be laid over each other.
 *
 * Prints the loss of every step (cross-entropy in nats a character, mean over the 256 of a step),
 * and last the mean over those of the last 20 steps that this run took.
 *
 * With a CHECKPOINT, a prefix of paths, it saves every 10 steps, and begins from the last save
 * there is: run it again after whatever ended it, and the losses go on as if nothing had happened.
 * A step whose reply was lost with the connection is sent again; its number makes the service take
 * it once.
 *
 *     cc -I. examples/charlm*.c -o charlm $(pkg-config --cflags --libs libfp8d) -lm
 *     ./charlm TEXT STEPS fp8d|float32 [SOCKET [CHECKPOINT]]
 */
#include "examples/charlm_checkpoint.h"
#include "examples/charlm_float32.h"

#include <fp8d.h>

#include <errno.h>
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
#define LAST 20  /* steps of the mean that is printed last */
#define EVERY 10 /* steps between two saves */

struct net {
    struct fp8d *c;                  /* NULL: float32 */
    const char *socket, *checkpoint; /* or NULL */
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
        spec[i] =
            (struct fp8d_layer_spec){l[i]->name, matrix(l[i]->w.p, l[i]->out, l[i]->in), &bias[i]};
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
        return here_forward(l, TOKENS, x, y);
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
    if (!k->c) {
        here_backward(l, TOKENS, x, dy, dx);
        return 0;
    }
    return fp8d_backward(k->c, &q, NULL, NULL, &err) ? fail("backward", &err) : 0;
}

/* If the connection is lost, nobody knows whether the step was taken: the same number again is
 * taken once. A service that was started anew has no model, and refuses. */
static int step_once(struct net *k, const struct fp8d_step *q)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int code = fp8d_step(k->c, q, NULL, NULL, &err);
    if (code != FP8D_ECLOSED && code != -EPIPE && code != -ECONNRESET)
        return code ? fail("step", &err) : 0;
    fp8d_close(k->c);
    k->c = NULL;
    if (fp8d_connect(k->socket, NULL, &k->c, &err) || fp8d_step(k->c, q, NULL, &r, &err))
        return fail("step, again", &err);
    bool repeated = fp8d_result_step(r)->outcome == FP8D_STEP_REPEATED;
    fprintf(stderr, "charlm: step %" PRIu64 " sent again: %s\n", q->step,
            repeated ? "it was taken before" : "taken now");
    fp8d_result_free(r);
    return 0;
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
    return step_once(k, &q);
}

/* --- the model --- */

static void fill(struct net *k)
{
    for (int t = 0; t < TOKENS; t++) {
        size_t at = (size_t)(draw(&k->state) * (double)(k->length - WINDOW - 1));
        memcpy(k->seen[t], k->text + at, WINDOW);
        k->next[t] = k->text[at + WINDOW];
        for (int i = 0; i < WINDOW; i++)
            memcpy(k->x + t * INPUT + i * EMBEDDING, k->embedding.p + k->seen[t][i] * EMBEDDING,
                   EMBEDDING * sizeof(float));
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

static int save(struct net *k, int number)
{
    char path[CHECKPOINT_PATH];
    struct fp8d_error err;
    if (checkpoint_write(k->checkpoint, number, k->state, k->embedding.p, 4 * k->embedding.n))
        return 1;
    checkpoint_model(path, k->checkpoint, number);
    if (fp8d_save_file(k->c, MODEL, path, NULL, NULL, NULL, NULL, &err))
        return fail("save", &err);
    printf("saved %d\n", number);
    checkpoint_remove(k->checkpoint, number - EVERY);
    return 0;
}

/* The model and the client as they were after that step. */
static int resume(struct net *k, int number)
{
    char path[CHECKPOINT_PATH];
    struct fp8d_error err;
    if (checkpoint_read(k->checkpoint, number, &k->state, k->embedding.p, 4 * k->embedding.n))
        return 1;
    checkpoint_model(path, k->checkpoint, number);
    if (fp8d_load_file(k->c, MODEL, path, NULL, NULL, NULL, NULL, &err))
        return fail("load", &err);
    checkpoint_remove(k->checkpoint, number - EVERY); /* if the last run ended before it did */
    printf("resumed after %d\n", number);
    return 0;
}

static int train(struct net *k, int done, int steps)
{
    double loss = 0, last = 0;
    int counted = 0;
    for (int n = done + 1; n <= steps; n++) {
        if (step(k, n, &loss))
            return 1;
        printf(k->checkpoint ? "step %4d  loss %.17g\n" : "step %4d  loss %.5f\n", n, loss);
        if (k->checkpoint && n % EVERY == 0 && save(k, n))
            return 1;
        last += n > steps - LAST ? loss : 0;
        counted += n > steps - LAST;
    }
    if (counted)
        printf("mean of the last %d: %.5f\n", counted, last / counted);
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
        return train(k, 0, steps);
    k->socket = argc > 4 ? argv[4] : NULL;
    k->checkpoint = argc > 5 ? argv[5] : NULL;
    if (fp8d_connect(k->socket, NULL, &k->c, &err))
        return fail("connect", &err);
    int done = k->checkpoint ? checkpoint_newest(k->checkpoint) : 0;
    if (k->checkpoint && !done) /* of a run that ended before its first save */
        (void)fp8d_drop_model(k->c, MODEL, NULL, NULL, NULL, &err);
    int rc = done ? resume(k, done) : create(k);
    if (!rc) {
        rc = train(k, done, steps);
        if (k->c && (!rc || !k->checkpoint) && fp8d_drop_model(k->c, MODEL, NULL, NULL, NULL, &err))
            rc = fail("drop", &err);
    }
    fp8d_close(k->c);
    return rc;
}

int main(int argc, char **argv)
{
    struct net *k = calloc(1, sizeof *k);
    int rc = 1;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (argc < 4 || (strcmp(argv[3], "fp8d") != 0 && strcmp(argv[3], "float32") != 0))
        fprintf(stderr, "usage: charlm TEXT STEPS fp8d|float32 [SOCKET [CHECKPOINT]]\n");
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
