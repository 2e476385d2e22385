/* bench_daemon - what the service costs: start, round trips, bulk copies, answers while it computes,
 * memory of a load. Each figure stands beside a baseline measured in the same run, interleaved.
 *
 *   bench_daemon FP8D-PROGRAM      one JSON object a line
 */
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "tests/bench/daemon_process.h"

#include "client/fp8d.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BULK ((size_t)64 << 20)

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

static void bench_ready(const char *program, const char *backend)
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
    say_aim(name, median(ms, 9), "ms", NULL, 0, "at most", 100);
}

/* --- a raw peer: a process that echoes small messages or swallows and gives bulk --- */

#define PING_BYTES 40

static void peer_loop(int fd)
{
    char *buf = malloc(BULK);
    char small[PING_BYTES];
    memset(buf, 1, BULK);
    while (recv(fd, small, sizeof small, MSG_WAITALL) == (ssize_t)sizeof small) {
        size_t done = 0;
        ssize_t n = 1;
        while (small[0] == 'p' && done < BULK && (n = recv(fd, buf, BULK - done, 0)) > 0)
            done += (size_t)n;
        while (small[0] == 'g' && done < BULK && (n = send(fd, buf, BULK - done, 0)) > 0)
            done += (size_t)n;
        if (n <= 0 || send(fd, small, sizeof small, 0) < 0)
            break;
    }
    _exit(0);
}

static int peer_start(void)
{
    int sv[2];
    int size = 4 << 20;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
        die("socketpair", "failed");
    for (int i = 0; i < 2; i++)
        setsockopt(sv[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (fork() == 0) {
        close(sv[0]);
        peer_loop(sv[1]);
    }
    close(sv[1]);
    return sv[0];
}

static void raw_round(int fd, char kind, char *buf)
{
    char small[PING_BYTES] = {kind};
    size_t done = 0;
    if (send(fd, small, sizeof small, 0) < 0)
        die("raw", "send");
    for (ssize_t n = 1; kind == 'p' && done < BULK && n > 0; done += (size_t)n)
        n = send(fd, buf, BULK - done, 0);
    for (ssize_t n = 1; kind == 'g' && done < BULK && n > 0; done += (size_t)n)
        n = recv(fd, buf, BULK - done, 0);
    if (recv(fd, small, sizeof small, MSG_WAITALL) != (ssize_t)sizeof small)
        die("raw", "recv");
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
        raw_round(raw, 'e', NULL);
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
    double put[ROUNDS], get[ROUNDS], raw_put[ROUNDS], raw_get[ROUNDS];
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
        raw_round(raw, 'p', buf);
        double d = clock_ms();
        if (fp8d_get_tensor(c, 1, &out, NULL, NULL, &err))
            die("get", err.text);
        double e = clock_ms();
        raw_round(raw, 'g', buf);
        double g = clock_ms();
        put[i] = b - a;
        raw_put[i] = d - b;
        get[i] = e - d;
        raw_get[i] = g - e;
        if (fp8d_free_tensor(c, 1, NULL, NULL, &err))
            die("free", err.text);
    }
    double rate = (double)BULK / 1e6;
    double p = median(put, ROUNDS);
    double rp = median(raw_put, ROUNDS);
    double q = median(get, ROUNDS);
    double rq = median(raw_get, ROUNDS);
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

int main(int argc, char **argv)
{
    const char *args[] = {"--backend", "cpu", NULL};
    struct daemon_process d;
    char path[128];
    if (argc != 2)
        die("usage", "bench_daemon FP8D-PROGRAM");
    int raw = peer_start();
    bench_ready(argv[1], "cpu");
    bench_ready(argv[1], "auto");
    if (daemon_start(&d, argv[1], args))
        return 1;
    struct fp8d *c = connect_to(&d);
    bench_ping(c, raw);
    (void)snprintf(path, sizeof path, "%s/big.safetensors", d.dir);
    make_checkpoint(path, 8192, 8192);
    bench_load(&d, c, path, (uint64_t)8192 * 8192 * 4);
    unlink(path);
    bench_bulk(c, raw);
    bench_answer(&d, c, 512, 8192);
    fp8d_close(c);
    close(raw);
    int status = daemon_stop(&d);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
