/* Speed of the CUDA backend's kernels, by the clock of the device: casts against a copy, forwards
 * against the best raw GEMM plus their bytes at the speed of a copy, and against PyTorch's (see
 * torch_peer.h); completion and host time.
 * Random data, buffers in turn beyond the L2, rounds over all variants, medians. One JSON object a
 * line, keys as tests/bench/run says. Without a GPU: nothing.
 *
 *     bench_gpu [ROUNDS [PART...]]     casts, steps, forwards, training, host; all without one
 *     bench_gpu --device     only what it runs on, on standard output
 */
#include "tests/bench/gpu_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ARENA ((uint64_t)24 << 30)
#define BLOCKER_BYTES ((size_t)1 << 30) /* about 0.3 ms to write */

struct gpu_bench bench = {.rounds = 9};

void must(int rc)
{
    if (!rc)
        return;
    (void)fprintf(stderr, "bench_gpu: %s\n", bench.fault.text);
    exit(1);
}

double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* --- figures --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *v, unsigned n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void print_begin(const char *name, double value, const char *unit)
{
    (void)printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"runs\": %u", name, value,
                 unit, bench.runs);
}

static void print_end(void)
{
    (void)printf("}\n");
    (void)fflush(stdout);
}

void print_value(const char *name, double value, const char *unit, const char *aim, double at)
{
    print_begin(name, value, unit);
    if (aim)
        (void)printf(", \"aim\": \"%s\", \"aim_value\": %.3f", aim, at);
    print_end();
}

void print_ratio(const char *name, double value, double baseline, const char *unit, double aim)
{
    print_begin(name, value, unit);
    if (baseline > 0)
        (void)printf(", \"baseline\": %.2f, \"ratio\": %.4f", baseline, value / baseline);
    else
        (void)printf(", \"baseline\": \"no torch\"");
    if (baseline > 0 && aim > 0)
        (void)printf(", \"aim\": \"at most\", \"aim_ratio\": %.2f", aim);
    print_end();
}

double burst(cudaStream_t s, run_cb run, void *arg, unsigned count)
{
    static cudaEvent_t begin, end;
    static void *blocker;
    static unsigned set;
    float ms = 0;
    if (!blocker) {
        peer_must((int)cudaMalloc(&blocker, BLOCKER_BYTES), "cudaMalloc");
        peer_must((int)cudaEventCreate(&begin) | (int)cudaEventCreate(&end), "cudaEventCreate");
    }
    peer_must((int)cudaMemsetAsync(blocker, (int)set, BLOCKER_BYTES, s), "cudaMemsetAsync");
    peer_must((int)cudaEventRecord(begin, s), "cudaEventRecord");
    for (unsigned i = 0; i < count; i++)
        run(arg, set++);
    drain(bench.queue);
    drain(bench.queue_first);
    peer_must((int)cudaEventRecord(end, s), "cudaEventRecord");
    peer_must((int)cudaEventSynchronize(end), "cudaEventSynchronize");
    peer_must((int)cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    return 1000.0 * (double)ms / count;
}

/* --- inputs --- */

static uint64_t hash(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Sum of four uniform numbers in [-1, 1): near to normal. */
static float normal(uint64_t i)
{
    uint64_t h = hash(i);
    float x = 0;
    for (int j = 0; j < 4; j++)
        x += (float)(h >> 16 * j & 0xffff) * 0x1p-15f - 1.0f;
    return x;
}

static const uint16_t *random_bf16(void)
{
    static uint16_t *data;
    if (data)
        return data;
    data = malloc(CODES * sizeof *data);
    if (!data)
        exit(1);
    for (uint64_t i = 0; i < CODES; i++)
        data[i] = bf16_encode(normal(i));
    return data;
}

const uint8_t *random_codes(void)
{
    static uint8_t *data;
    if (data)
        return data;
    data = malloc(CODES);
    if (!data)
        exit(1);
    for (uint64_t i = 0; i < CODES; i++)
        data[i] = fp8_encode(64.0f * normal(i), DTYPE_F8_E4M3);
    return data;
}

struct buffer *random_buffer(struct backend *b, enum dtype t, uint64_t bytes)
{
    struct buffer *buf = NULL;
    bool codes = dtype_is_fp8(t);
    const void *from = codes ? (const void *)random_codes() : (const void *)random_bf16();
    uint64_t step = codes ? CODES : 2 * CODES;
    must(buffer_new(b, NULL, BUFFER_DEVICE, bytes, "bench", &buf, &bench.fault));
    for (uint64_t at = 0; at < bytes; at += step)
        peer_must((int)cudaMemcpy((char *)buf->data + at, from,
                                  bytes - at < step ? bytes - at : step, cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    return buf;
}

/* --- the copy that casts are held to --- */

static void copy_run(void *arg, unsigned set)
{
    char *p = arg;
    size_t half = (size_t)1 << 30;
    peer_must((int)cudaMemcpyAsync(p + (set % 2) * half, p + 2 * half, half,
                                   cudaMemcpyDeviceToDevice, stream_of(bench.queue)),
              "cudaMemcpyAsync");
}

static void bench_copy(void)
{
    double us[ROUNDS_MAX];
    struct buffer *buf = random_buffer(bench.timed, DTYPE_BF16, (uint64_t)3 << 30);
    for (unsigned r = 0; r < bench.rounds; r++)
        us[r] = burst(stream_of(bench.queue), copy_run, buf->data, 4);
    bench.copy_rate = 2.0 * 0x1p30 / median(us, bench.rounds);
    bench.runs = 4 * bench.rounds;
    print_value("copy_1GiB", bench.copy_rate * 1e-6, "TB/s", NULL, 0);
    buffer_unref(buf);
}

static struct backend *open_backend(bool reproducible)
{
    struct module_options o = {.memory = ARENA, .reproducible = reproducible};
    struct backend *b = NULL;
    must(module_open_cuda(getenv("FP8D_TEST_BACKEND_DIR"), &o, NULL, &b, &bench.fault));
    return b;
}

static void open_all(void)
{
    bench.timed = open_backend(false);
    bench.first = open_backend(true);
    must(queue_open(bench.timed, "bench", &bench.queue, &bench.fault));
    must(queue_open(bench.first, "bench1", &bench.queue_first, &bench.fault));
}

static void close_all(void)
{
    torch_stop(&bench.torch);
    queue_close(bench.queue);
    queue_close(bench.queue_first);
    backend_close(bench.timed);
    backend_close(bench.first);
}

static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"casts", bench_casts},       {"steps", bench_steps}, {"forwards", bench_forwards},
    {"training", bench_training}, {"host", bench_host},
};
#define PARTS (sizeof parts / sizeof parts[0])

static bool is_part(const char *name)
{
    for (size_t i = 0; i < PARTS; i++)
        if (!strcmp(parts[i].name, name))
            return true;
    return false;
}

/* Those that are named, or all; the copy comes first, others are held to it. */
static void run(char **names, int count)
{
    struct backend_info info;
    backend_info(bench.timed, &info);
    (void)fprintf(stderr, "bench_gpu: %s\n", info.device);
    bench_copy();
    for (size_t i = 0; i < PARTS; i++) {
        bool wanted = !count;
        for (int k = 0; k < count; k++)
            wanted = wanted || !strcmp(names[k], parts[i].name);
        if (wanted)
            parts[i].run();
    }
}

static int say_device(void)
{
    struct backend_info info;
    if (module_probe_driver(0, &bench.fault))
        return 1;
    bench.timed = open_backend(false);
    backend_info(bench.timed, &info);
    (void)puts(info.device);
    backend_close(bench.timed);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--device") == 0)
        return say_device();
    if (argc > 1)
        bench.rounds = (unsigned)strtoul(argv[1], NULL, 10);
    bool good = bench.rounds >= 1 && bench.rounds <= ROUNDS_MAX;
    for (int i = 2; i < argc; i++)
        good = good && is_part(argv[i]);
    if (!good) {
        (void)fprintf(stderr,
                      "usage: bench_gpu [ROUNDS [PART...]], 1 to %d, of casts, steps, forwards, "
                      "training, host; bench_gpu --device\n",
                      ROUNDS_MAX);
        return 2;
    }
    torch_start(&bench.torch);
    if (module_probe_driver(0, &bench.fault)) {
        (void)fprintf(stderr, "bench_gpu: nothing to measure: %s\n", bench.fault.text);
        torch_stop(&bench.torch);
        return 0;
    }
    open_all();
    run(argv + 2, argc > 2 ? argc - 2 : 0);
    close_all();
    return 0;
}
