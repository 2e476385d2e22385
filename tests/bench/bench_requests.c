/* bench_requests - what a forward costs over the socket, with tensors that stay in the service.
 *
 *   bench_requests FP8D-PROGRAM [cpu|cuda]     one JSON object a line
 *
 * Latency: one client, one request at a time, from the call to its return, by a client that sleeps
 * until the reply comes and one that looks for it (spin_us); beside them, in turn, PyTorch in
 * process (torch_peer.h), eager, a call and a wait for it. Throughput: 8 connections, each with 4
 * requests under way, by as many threads.
 */
#include "tests/bench/daemon_process.h"
#include "tests/bench/torch_peer.h"

#include "client/fp8d.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SIDE 4096u
#define X 1 /* resident tensors: the input, the output, and the weight while the model is made */
#define Y 2
#define W 3
#define CLIENTS 8
#define DEPTH 4

#define ROUNDS 10 /* between a client's requests and PyTorch's calls */

/* How a client waits: asleep, or looking for the answer, as PyTorch's wait for the device does. */
#define WAYS 2
static const struct {
    const char *name;
    uint32_t spin_us;
} ways[WAYS] = {{"", 0}, {"_spinning", 200}};

static struct daemon_process server;
static struct torch_peer torch;
static size_t calls;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_requests: %s: %s\n", what, why);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct fp8d *connect_here(uint32_t spin_us)
{
    struct fp8d_options o = {.spin_us = spin_us};
    struct fp8d_error err;
    struct fp8d *c;
    if (fp8d_connect(server.socket, &o, &c, &err))
        die("connect", err.text);
    return c;
}

/* BF16 numbers of both signs below 1/32, as weights and as inputs. */
static void put(struct fp8d *c, uint64_t id, uint64_t rows)
{
    struct fp8d_error err;
    uint16_t *v = malloc(rows * SIDE * 2);
    for (uint64_t i = 0; i < rows * SIDE; i++) {
        uint64_t r = (i + 1) * 0x9e3779b97f4a7c15u;
        v[i] = (uint16_t)(0x3c00u | (r >> 48 & 0x80ffu));
    }
    struct fp8d_tensor t = {
        .dtype = FP8D_BF16, .rank = 2, .dims = {rows, SIDE}, .data = v, .size = rows * SIDE * 2};
    if (fp8d_put_tensor(c, id, &t, NULL, NULL, &err))
        die("put", err.text);
    free(v);
}

static void make_model(struct fp8d *c)
{
    struct fp8d_error err;
    put(c, W, SIDE);
    struct fp8d_layer_spec layer = {.name = "l", .weight = {.tensor_id = W}};
    struct fp8d_create_model create = {.model = "m", .layers = &layer, .count = 1};
    if (fp8d_create_model(c, &create, NULL, NULL, &err))
        die("create", err.text);
    if (fp8d_free_tensor(c, W, NULL, NULL, &err))
        die("free", err.text);
}

static struct fp8d_forward forward_of(uint64_t output_id)
{
    return (struct fp8d_forward){.model = "m",
                                 .layer = "l",
                                 .input = {.tensor_id = X},
                                 .output_id = output_id,
                                 .replace_output = true};
}

/* --- one at a time --- */

static double request(struct fp8d *c)
{
    struct fp8d_error err;
    struct fp8d_forward f = forward_of(Y);
    double begin = clock_ms();
    if (fp8d_forward(c, &f, NULL, NULL, &err))
        die("forward", err.text);
    return (clock_ms() - begin) * 1e3;
}

/* `eager` is sorted; its least is -1 where there is no torch. */
static void print_latency(unsigned long long tokens, const char *how, const double *us,
                          const double eager[ROUNDS])
{
    char t[40];
    (void)snprintf(t, sizeof t, "%llu_tokens%s", tokens, how);
    double p50 = us[calls / 2], theirs = eager[ROUNDS / 2];
    printf("{\"name\":\"request_%s_p50\",\"value\":%.4g,\"unit\":\"us\"}\n"
           "{\"name\":\"request_%s_p99\",\"value\":%.4g,\"unit\":\"us\"}\n",
           t, p50, t, us[calls * 99 / 100]);
    fflush(stdout);
    if (!getenv("FP8D_TORCH_PEERS"))
        return; /* nobody asked for a comparison */
    printf("{\"name\":\"request_%s_vs_torch_eager\",\"value\":%.4g,\"unit\":\"us\"", t, p50);
    if (eager[0] > 0)
        printf(",\"baseline\":%.4g,\"ratio\":%.4g,\"aim\":\"at most\",\"aim_ratio\":0.5}\n", theirs,
               p50 / theirs);
    else
        printf(",\"baseline\":\"no torch\"}\n");
    fflush(stdout);
}

static void latency(struct fp8d *const c[WAYS], uint64_t tokens)
{
    struct fp8d_error err;
    double *us[WAYS], eager[ROUNDS];
    torch_open(&torch, tokens, SIDE, SIDE, "eager");
    for (int w = 0; w < WAYS; w++) {
        us[w] = malloc(calls * sizeof *us[w]);
        put(c[w], X, tokens);
    }
    for (size_t r = 0; r < ROUNDS; r++) {
        for (int w = 0; w < WAYS; w++) {
            for (size_t i = 0; i < calls / 40; i++)
                (void)request(c[w]); /* warm again after another's turn */
            for (size_t i = calls * r / ROUNDS; i < calls * (r + 1) / ROUNDS; i++)
                us[w][i] = request(c[w]);
        }
        eager[r] = torch_run(&torch, "eager");
    }
    qsort(eager, ROUNDS, sizeof *eager, by_value);
    for (int w = 0; w < WAYS; w++) {
        if (fp8d_free_tensor(c[w], X, NULL, NULL, &err))
            die("free", err.text);
        qsort(us[w], calls, sizeof *us[w], by_value);
        print_latency(tokens, ways[w].name, us[w], eager);
        free(us[w]);
    }
}

/* --- many at once --- */

static void *client(void *arg)
{
    struct fp8d_error err;
    struct fp8d *c = connect_here(0);
    uint64_t id[DEPTH] = {0};
    (void)arg;
    put(c, X, 16);
    for (size_t i = 0; i < calls + DEPTH; i++) {
        size_t k = i % DEPTH;
        if (i >= DEPTH && fp8d_wait(c, id[k], NULL, &err))
            die("wait", err.text);
        struct fp8d_forward f = forward_of(100 + k);
        if (i < calls && fp8d_submit_forward(c, &f, NULL, &id[k], &err))
            die("submit", err.text);
    }
    fp8d_close(c);
    return NULL;
}

static void throughput(void)
{
    pthread_t thread[CLIENTS];
    double begin = clock_ms();
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_create(&thread[i], NULL, client, NULL);
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_join(thread[i], NULL);
    double s = (clock_ms() - begin) / 1e3;
    printf(
        "{\"name\":\"forwards_8_connections_depth_4_tokens_16\",\"value\":%.4g,\"unit\":\"1/s\"}\n",
        (double)(CLIENTS * calls) / s);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const uint64_t tokens[] = {1, 16, 256};
    const char *args[] = {"--backend", argc > 2 ? argv[2] : "cpu", NULL};
    if (argc < 2)
        die("usage", "bench_requests FP8D-PROGRAM [cpu|cuda]");
    calls = strcmp(args[1], "cpu") == 0 ? 30 : 2000;
    torch_start(&torch);
    if (daemon_start(&server, argv[1], args))
        return 1;
    struct fp8d *c[WAYS];
    for (int w = 0; w < WAYS; w++)
        c[w] = connect_here(ways[w].spin_us);
    make_model(c[0]);
    for (size_t i = 0; i < 3; i++)
        latency(c, tokens[i]);
    torch_stop(&torch);
    throughput();
    for (int w = 0; w < WAYS; w++)
        fp8d_close(c[w]);
    int status = daemon_stop(&server);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
