/* bench_training - what training costs beyond the device's time, over one connection.
 *
 *   bench_training FP8D-PROGRAM [cpu|cuda]     one JSON object a line
 *
 * A layer is trained without a wait: forward, backward, step, forward, ..., of which `depth` are
 * sent ahead; input, output, gradients stay at the service. A request's overhead is the time from
 * the reply before it to its own, less the median time of its kind by the device's clock
 * (compute_ns): what the service and the socket add while the next requests are there already. The
 * clock is read in a run of its own before, since to read it costs time, too. Medians; at depth 1
 * the way there and back is in it.
 */
#include "tests/bench/daemon_process.h"

#include "client/fp8d.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define X 1 /* resident tensors, of [tokens, side] */
#define Y 2
#define DY 3
#define DX 4
#define DEPTH_MAX 8
#define KINDS 3
#define STEPS 300
#define WARM 5 /* steps before those that count */
#define COUNT ((STEPS + WARM) * KINDS)

static const char *const kinds[KINDS] = {"forward", "backward", "step"};

static struct daemon_process server;
static struct fp8d *client;
static uint64_t side = 4096, tokens = 4096;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_training: %s: %s\n", what, why);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* BF16 numbers of both signs below 1/32. */
static struct fp8d_tensor numbers(uint64_t rows, uint16_t **data)
{
    *data = malloc(rows * side * sizeof **data);
    if (!*data)
        die("memory", "none");
    for (uint64_t i = 0; i < rows * side; i++)
        (*data)[i] = (uint16_t)(0x3c00u | ((i + 1) * 0x9e3779b97f4a7c15u >> 48 & 0x80ffu));
    return (struct fp8d_tensor){.dtype = FP8D_BF16,
                                .rank = 2,
                                .dims = {rows, side},
                                .data = *data,
                                .size = rows * side * sizeof **data};
}

static void make(void)
{
    struct fp8d_error err;
    struct fp8d_optimizer adam = {.kind = FP8D_OPTIMIZER_ADAM, .rate = 1e-6};
    uint16_t *data;
    struct fp8d_layer_spec layer = {.name = "l", .weight = numbers(side, &data)};
    struct fp8d_create_model create = {.model = "m", .layers = &layer, .count = 1};
    if (fp8d_create_model(client, &create, NULL, NULL, &err))
        die("create", err.text);
    free(data);
    if (fp8d_set_optimizer(client, "m", &adam, NULL, 0, NULL, NULL, NULL, &err))
        die("optimizer", err.text);
    struct fp8d_tensor t = numbers(tokens, &data);
    if (fp8d_put_tensor(client, X, &t, NULL, NULL, &err) ||
        fp8d_put_tensor(client, DY, &t, NULL, NULL, &err))
        die("put", err.text);
    free(data);
}

/* The n-th request: steps count on from run to run. */
static uint64_t submit(unsigned n, uint64_t step, bool timed)
{
    struct fp8d_error err;
    uint64_t id = 0;
    int rc;
    if (n % KINDS == 0) {
        struct fp8d_forward f = {.model = "m",
                                 .layer = "l",
                                 .mode = FP8D_MODE_TRAIN,
                                 .input = {.tensor_id = X},
                                 .output_id = Y,
                                 .replace_output = true,
                                 .context_id = 1 + n,
                                 .time_compute = timed};
        rc = fp8d_submit_forward(client, &f, NULL, &id, &err);
    } else if (n % KINDS == 1) {
        struct fp8d_backward b = {.context_id = n,
                                  .grad_output = {.tensor_id = DY},
                                  .grad_input_id = DX,
                                  .replace_grad_input = true,
                                  .time_compute = timed};
        rc = fp8d_submit_backward(client, &b, NULL, &id, &err);
    } else {
        struct fp8d_step s = {.model = "m", .step = step, .time_compute = timed};
        rc = fp8d_submit_step(client, &s, NULL, &id, &err);
    }
    if (rc)
        die(kinds[n % KINDS], err.text);
    return id;
}

/* Microseconds by the device's clock. */
static double wait_for(unsigned n, uint64_t id)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_wait(client, id, &r, &err))
        die(kinds[n % KINDS], err.text);
    uint64_t ns = n % KINDS == 0   ? fp8d_result_forward(r)->compute_ns
                  : n % KINDS == 1 ? fp8d_result_backward(r)->compute_ns
                                   : fp8d_result_step(r)->compute_ns;
    fp8d_result_free(r);
    return (double)ns * 1e-3;
}

static void print(const char *kind, unsigned depth, double us, double device, bool aim)
{
    printf("{\"name\":\"training_overhead_%s_depth_%u_p50\",\"value\":%.4g,\"unit\":\"us\","
           "\"baseline\":\"%.4g us by the device's clock\"",
           kind, depth, us, device);
    if (aim)
        printf(",\"aim\":\"at most\",\"aim_value\":20");
    printf("}\n");
    fflush(stdout);
}

/* One run of `count` requests: microseconds from reply to reply, and by the device's clock. */
static void run(unsigned depth, uint64_t *step, bool timed, double *us, double *device)
{
    unsigned sent = 0;
    uint64_t ids[DEPTH_MAX];
    double before = 0;
    for (unsigned done = 0; done < COUNT; done++) {
        for (; sent < COUNT && sent < done + depth; sent++)
            ids[sent % DEPTH_MAX] = submit(sent, *step + sent / KINDS, timed);
        device[done] = wait_for(done, ids[done % DEPTH_MAX]);
        double now = clock_ms() * 1e3;
        us[done] = now - before;
        before = now;
    }
    *step += COUNT / KINDS;
}

/* The median over the requests of a kind. */
static double median_of(const double *all, unsigned kind)
{
    double of[STEPS];
    for (unsigned i = 0; i < STEPS; i++)
        of[i] = all[(i + WARM) * KINDS + kind];
    qsort(of, STEPS, sizeof *of, by_value);
    return of[STEPS / 2];
}

static void bench(unsigned depth, uint64_t *step)
{
    double *us = calloc((size_t)COUNT * 3, sizeof *us), *device = us + COUNT;
    if (!us)
        die("memory", "none");
    run(depth, step, true, us, device);
    run(depth, step, false, us, device + COUNT);
    for (unsigned k = 0; k < KINDS; k++) {
        double own = median_of(device, k);
        print(kinds[k], depth, median_of(us, k) - own, own, depth > 1);
    }
    free(us);
}

int main(int argc, char **argv)
{
    static const unsigned depths[] = {1, 2, 4, 8};
    const char *args[] = {"--backend", argc > 2 ? argv[2] : "cpu", NULL};
    struct fp8d_error err;
    uint64_t step = 1;
    if (argc < 2)
        die("usage", "bench_training FP8D-PROGRAM [cpu|cuda]");
    if (strcmp(args[1], "cpu") == 0) {
        side = 256;
        tokens = 64;
    }
    if (daemon_start(&server, argv[1], args))
        return 1;
    if (fp8d_connect(server.socket, NULL, &client, &err))
        die("connect", err.text);
    make();
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++)
        bench(depths[i], &step);
    fp8d_close(client);
    int status = daemon_stop(&server);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
