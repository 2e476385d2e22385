/* bench_daemon - what the service costs: start, round trips, bulk copies, answers while it computes,
 * memory of a load. Each figure stands beside a baseline measured in the same run, interleaved.
 *
 *   bench_daemon FP8D-PROGRAM [cpu|cuda]     one JSON object a line
 *
 * On cuda only what the backend changes: start, copies to and from the GPU's memory, and forwards
 * whose input and output come and go with them.
 */
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "tests/bench/daemon_process.h"
#include "tests/bench/raw_peer.h"

#include "client/fp8d.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BULK RAW_BULK

/* aim: "at most" or "at least"; of the ratio, or of the value where there is no baseline. NULL: none. */
static void say_aim(const char *name, double value, const char *unit, const char *baseline,
                    double ratio, const char *aim, double bound)
{
    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"", name, value, unit);
    if (baseline)
        printf(",\"ratio\":%.4g,\"baseline\":\"%s\"", ratio, baseline);
    if (aim)
        printf(",\"aim\":\"%s\",\"%s\":%g", aim, baseline ? "aim_ratio" : "aim_value", bound);
    printf("}\n");
    fflush(stdout);
}

static void say(const char *name, double value, const char *unit, const char *baseline,
                double ratio)
{
    say_aim(name, value, unit, baseline, ratio, NULL, 0);
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_daemon: %s: %s\n", what, why);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static struct fp8d *connect_to(const struct daemon_process *d)
{
    struct fp8d_error err;
    struct fp8d *c;
    if (fp8d_connect(d->socket, NULL, &c, &err))
        die("connect", err.text);
    return c;
}

/* --- start --- */

static void bench_ready(const char *program, const char *backend, double most_ms)
{
    const char *args[] = {"--backend", backend, NULL};
    char name[64];
    double ms[9];
    for (size_t i = 0; i < 9; i++) {
        struct daemon_process d;
        if (daemon_start(&d, program, args))
            exit(1);
        ms[i] = d.ready_ms;
        daemon_stop(&d);
    }
    (void)snprintf(name, sizeof name, "start_to_ready_%s", backend);
    say_aim(name, median(ms, 9), "ms", NULL, 0, "at most", most_ms);
}

/* --- ping --- */

#define PINGS 8000

static void bench_ping(struct fp8d *c, int raw)
{
    static double ours[PINGS], theirs[PINGS];
    struct fp8d_error err;
    for (size_t i = 0; i < PINGS; i++) {
        double a = clock_ms();
        if (fp8d_ping(c, NULL, NULL, &err))
            die("ping", err.text);
        double b = clock_ms();
        raw_echo(raw);
        ours[i] = (b - a) * 1e3;
        theirs[i] = (clock_ms() - b) * 1e3;
    }
    double us = median(ours, PINGS);
    double base = median(theirs, PINGS);
    say_aim("ping_p50", us, "us", "raw socket ping-pong of 40 bytes between two processes, p50",
            us / base, "at most", 1.5);
    say("ping_p99", ours[PINGS * 99 / 100], "us", "raw p99",
        ours[PINGS * 99 / 100] / theirs[PINGS * 99 / 100]);
    say("ping_raw_p50", base, "us", NULL, 0);
}

/* --- bulk --- */

#define ROUNDS 9

static void bench_bulk(struct fp8d *c, int raw)
{
    double put[ROUNDS], get[ROUNDS], their_put[ROUNDS], their_get[ROUNDS];
    struct fp8d_error err;
    char *buf = mmap(NULL, BULK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(buf, 1, BULK);
    struct fp8d_tensor t = {
        .dtype = FP8D_F32, .rank = 2, .dims = {4096, 4096}, .data = buf, .size = BULK};
    struct fp8d_buffer out = {buf, BULK};
    for (size_t i = 0; i < ROUNDS; i++) {
        double a = clock_ms();
        if (fp8d_put_tensor(c, 1, &t, NULL, NULL, &err))
            die("put", err.text);
        double b = clock_ms();
        raw_put(raw, buf);
        double d = clock_ms();
        if (fp8d_get_tensor(c, 1, &out, NULL, NULL, &err))
            die("get", err.text);
        double e = clock_ms();
        raw_get(raw, buf);
        double g = clock_ms();
        put[i] = b - a;
        their_put[i] = d - b;
        get[i] = e - d;
        their_get[i] = g - e;
        if (fp8d_free_tensor(c, 1, NULL, NULL, &err))
            die("free", err.text);
    }
    double rate = (double)BULK / 1e6;
    double p = median(put, ROUNDS);
    double rp = median(their_put, ROUNDS);
    double q = median(get, ROUNDS);
    double rq = median(their_get, ROUNDS);
    say_aim("put_tensor_64MiB", rate / p, "GB/s", "raw socket copy of 64 MiB, same direction",
            rp / p, "at least", 0.8);
    say_aim("get_tensor_64MiB", rate / q, "GB/s", "raw socket copy of 64 MiB, same direction",
            rq / q, "at least", 0.8);
    munmap(buf, BULK);
}

/* --- a checkpoint of one big layer, and what loading it takes --- */

static void make_checkpoint(const char *path, uint64_t out, uint64_t in)
{
    struct fault f = {0};
    struct safetensors_plan plan;
    struct safetensors_tensor t = {
        .name = "big.weight", .dtype = DTYPE_F32, .rank = 2, .dims = {out, in}, .bytes = out * in * 4};
    if (safetensors_plan(&t, 1, NULL, 0, &plan, &f))
        die("plan", f.text);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    float *row = malloc(in * 4);
    for (uint64_t i = 0; i < in; i++)
        row[i] = (float)(int)(i * 2654435761u % 2001 - 1000) / 40000.0f;
    if (fd < 0 || io_write_full(&io_posix, fd, plan.head, plan.head_bytes, 0, &f))
        die(path, "cannot be written");
    for (uint64_t r = 0; r < out; r++)
        if (io_write_full(&io_posix, fd, row, in * 4, t.offset + r * in * 4, &f))
            die(path, f.text);
    free(row);
    close(fd);
    safetensors_plan_fini(&plan);
}

static void bench_load(struct daemon_process *d, struct fp8d *c, const char *path, uint64_t bytes)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    uint64_t before = daemon_memory(d, "VmRSS");
    if (fp8d_load_file(c, "big", path, NULL, NULL, NULL, &r, &err))
        die("load", err.text);
    const struct fp8d_load_report *rep = fp8d_result_load(r);
    double peak = (double)(daemon_memory(d, "VmHWM") - before);
    say("load_rate", (double)rep->bytes_read / 1e3 / (double)rep->read_us, "GB/s", NULL, 0);
    say_aim("load_peak_beyond_resident", (peak - (double)bytes) / 1048576.0, "MiB",
            "64 MiB plus 10x the header", (peak - (double)bytes) / (64.0 * 1048576), "at most", 1);
    fp8d_result_free(r);
}

/* --- a question while a long GEMM runs --- */

static void bench_answer(struct daemon_process *d, struct fp8d *c, uint64_t tokens, uint64_t in)
{
    struct fp8d_error err;
    struct fp8d *other = connect_to(d);
    float *x = malloc(tokens * in * 4);
    double ms[15];
    for (uint64_t i = 0; i < tokens * in; i++)
        x[i] = (float)(i % 1000) / 1000.0f;
    struct fp8d_forward f = {
        .model = "big",
        .layer = "big",
        .input = {.dtype = FP8D_F32, .rank = 2, .dims = {tokens, in}, .data = x,
                  .size = tokens * in * 4},
    };
    uint64_t id;
    double begin = clock_ms();
    if (fp8d_submit_forward(c, &f, NULL, &id, &err))
        die("forward", err.text);
    for (size_t i = 0; i < 15; i++) {
        double a = clock_ms();
        struct fp8d_result *r;
        if (fp8d_query_scaling(other, "big", NULL, false, NULL, &r, &err))
            die("scaling", err.text);
        ms[i] = clock_ms() - a;
        fp8d_result_free(r);
        usleep(20000);
    }
    double asked = clock_ms() - begin;
    struct fp8d_result *r;
    if (fp8d_wait(c, id, &r, &err))
        die("forward", err.text);
    fp8d_result_free(r);
    double took = clock_ms() - begin;
    say_aim("answer_while_computing_p50", median(ms, 15), "ms", NULL, 0, "at most", 50);
    say("answer_while_computing_max", ms[14], "ms", NULL, 0);
    say("the_compute_meanwhile", took, "ms", "all questions were asked within this part of it",
        asked / took);
    free(x);
    fp8d_close(other);
}

/* --- forwards that bring 64 MiB and take 64 MiB, several under way --- */

#define SIDE 4096u
#define ROWS (BULK / 2 / SIDE)
#define DEPTH 4u
#define FORWARDS 8u

/* BF16 numbers of both signs below 1/32. */
static void *random_bf16(size_t bytes)
{
    uint16_t *v = malloc(bytes);
    if (!v)
        die("inline", "no memory");
    for (uint64_t i = 0; i < bytes / 2; i++)
        v[i] = (uint16_t)(0x3c00u | ((i + 1) * 0x9e3779b97f4a7c15u >> 48 & 0x80ffu));
    return v;
}

static void make_square(struct fp8d *c, void *weight)
{
    struct fp8d_error err;
    struct fp8d_layer_spec layer = {.name = "l",
                                    .weight = {.dtype = FP8D_BF16,
                                               .rank = 2,
                                               .dims = {SIDE, SIDE},
                                               .data = weight,
                                               .size = (uint64_t)SIDE * SIDE * 2}};
    struct fp8d_create_model create = {.model = "square", .layers = &layer, .count = 1};
    if (fp8d_create_model(c, &create, NULL, NULL, &err))
        die("create", err.text);
}

static void forwards(struct fp8d *c, void *x, void *const y[DEPTH])
{
    struct fp8d_error err;
    uint64_t id[DEPTH];
    for (unsigned i = 0; i < FORWARDS + DEPTH; i++) {
        unsigned k = i % DEPTH;
        if (i >= DEPTH && fp8d_wait(c, id[k], NULL, &err))
            die("wait", err.text);
        struct fp8d_forward f = {.model = "square",
                                 .layer = "l",
                                 .input = {.dtype = FP8D_BF16,
                                           .rank = 2,
                                           .dims = {ROWS, SIDE},
                                           .data = x,
                                           .size = BULK},
                                 .output = {y[k], BULK}};
        if (i < FORWARDS && fp8d_submit_forward(c, &f, NULL, &id[k], &err))
            die("forward", err.text);
    }
}

static void bench_inline(struct fp8d *c, int raw)
{
    double ms[ROUNDS], raw_ms[ROUNDS];
    void *y[DEPTH], *x = random_bf16(BULK);
    for (unsigned i = 0; i < DEPTH; i++)
        y[i] = random_bf16(BULK);
    make_square(c, x); /* x is long enough for the weight */
    forwards(c, x, y);
    for (size_t i = 0; i < ROUNDS; i++) {
        double a = clock_ms();
        forwards(c, x, y);
        double b = clock_ms();
        raw_both(raw, x, y[0], FORWARDS);
        ms[i] = b - a;
        raw_ms[i] = clock_ms() - b;
    }
    double took = median(ms, ROUNDS), theirs = median(raw_ms, ROUNDS);
    say_aim("forward_64MiB_in_64MiB_out", 2.0 * FORWARDS * (double)BULK / 1e6 / took, "GB/s",
            "raw socket copy of 64 MiB there and 64 MiB back, both at once", theirs / took,
            "at least", 0.8);
    for (unsigned i = 0; i < DEPTH; i++)
        free(y[i]);
    free(x);
}

/* --- all of it --- */

static void run_cpu(struct daemon_process *d, struct fp8d *c, int raw)
{
    char path[128];
    bench_ping(c, raw);
    (void)snprintf(path, sizeof path, "%s/big.safetensors", d->dir);
    make_checkpoint(path, 8192, 8192);
    bench_load(d, c, path, (uint64_t)8192 * 8192 * 4);
    unlink(path);
    bench_bulk(c, raw);
    bench_answer(d, c, 512, 8192);
}

static void run_cuda(struct fp8d *c, int raw)
{
    bench_ping(c, raw);
    bench_bulk(c, raw);
    bench_inline(c, raw);
}

int main(int argc, char **argv)
{
    const char *args[] = {"--backend", argc > 2 ? argv[2] : "cpu", NULL};
    struct daemon_process d;
    if (argc < 2)
        die("usage", "bench_daemon FP8D-PROGRAM [cpu|cuda]");
    bool cuda = strcmp(args[1], "cuda") == 0;
    int raw = raw_start();
    bench_ready(argv[1], args[1], cuda ? 1500 : 100);
    if (!cuda)
        bench_ready(argv[1], "auto", 100);
    if (daemon_start(&d, argv[1], args))
        return 1;
    struct fp8d *c = connect_to(&d);
    if (cuda)
        run_cuda(c, raw);
    else
        run_cpu(&d, c, raw);
    fp8d_close(c);
    close(raw);
    int status = daemon_stop(&d);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
