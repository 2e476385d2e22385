/* Completion and host time of bench_gpu: from enqueuing a note to its call, and what enqueuing
 * costs the calling thread, each beside what plain CUDA takes. */
#include "tests/bench/gpu_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 2000u

struct fired {
    struct queue_note note; /* first */
    _Atomic int count;
};

static void fired_done(struct queue_note *note, int status)
{
    (void)status;
    ((struct fired *)note)->count++;
}

static void CUDART_CB host_done(void *arg)
{
    (*(_Atomic int *)arg)++;
}

struct work {
    cudaStream_t stream;
    void *memory;
    cudaEvent_t event;
};

static void enqueue(const struct work *w)
{
    peer_must((int)cudaMemsetAsync(w->memory, 1, 4096, w->stream), "cudaMemsetAsync");
}

/* --- from the launch of a small operation to somebody knowing that it is done --- */

static double by_note(const struct work *w)
{
    static struct fired f;
    double start = now_us();
    int before = f.count;
    f.note.done = fired_done;
    enqueue(w);
    queue_notify(bench.queue, &f.note);
    while (f.count == before) {
    }
    return now_us() - start;
}

static double by_sync(const struct work *w)
{
    double start = now_us();
    enqueue(w);
    peer_must((int)cudaStreamSynchronize(w->stream), "cudaStreamSynchronize");
    return now_us() - start;
}

static double by_event(const struct work *w)
{
    double start = now_us();
    enqueue(w);
    peer_must((int)cudaEventRecord(w->event, w->stream), "cudaEventRecord");
    while (cudaEventQuery(w->event) == cudaErrorNotReady) {
    }
    return now_us() - start;
}

static double by_host_function(const struct work *w)
{
    static _Atomic int count;
    int before = count;
    double start = now_us();
    enqueue(w);
    peer_must((int)cudaLaunchHostFunc(w->stream, host_done, &count), "cudaLaunchHostFunc");
    while (count == before) {
    }
    return now_us() - start;
}

static void bench_completion(void)
{
    static double (*const ways[])(const struct work *) = {by_note, by_sync, by_event,
                                                          by_host_function};
    static const char *const names[] = {"complete_note", "complete_stream_sync",
                                        "complete_event_poll", "complete_host_function"};
    struct work w = {.stream = stream_of(bench.queue)};
    peer_must((int)cudaMalloc(&w.memory, 4096), "cudaMalloc");
    peer_must((int)cudaEventCreateWithFlags(&w.event, cudaEventDisableTiming), "cudaEventCreate");
    for (unsigned i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        static double us[TRIES];
        for (unsigned t = 0; t < TRIES; t++)
            us[t] = ways[i](&w);
        print_value(names[i], median(us, TRIES), "us", NULL, 0);
    }
    (void)cudaEventDestroy(w.event);
    (void)cudaFree(w.memory);
}

/* --- what a forward costs the thread that enqueues it --- */

static struct buffer *host_buffer(uint64_t bytes)
{
    struct buffer *b = NULL;
    must(buffer_new(bench.timed, NULL, BUFFER_HOST, bytes, "bench", &b, &bench.fault));
    return b;
}

static void bench_enqueue(uint64_t m, uint64_t n, uint64_t k)
{
    static double cast[TRIES], ours[TRIES], note[TRIES], gemm[TRIES];
    struct peer peer;
    struct buffer *x = random_buffer(bench.timed, DTYPE_BF16, m * k * 2), *y = NULL;
    struct buffer *codes = random_buffer(bench.timed, DTYPE_F8_E4M3, n * k);
    struct buffer *report = host_buffer(256);
    struct qtensor *w = NULL, *xq = NULL;
    struct fired f = {.note = {.done = fired_done}};
    char name[96];
    scaler_init((struct scaler *)(void *)((char *)report->host + 128), 1);
    must(buffer_new(bench.timed, NULL, BUFFER_DEVICE, m * n * 2, "y", &y, &bench.fault));
    must(qtensor_adopt(bench.queue, NULL, DTYPE_F8_E4M3, n, k, codes, 0, 0.01f, "w", &w,
                       &bench.fault));
    peer_open(&peer, m, n, k, 1, random_codes(), CODES, stream_of(bench.queue));
    struct cast c = {.src = {.buf = x, .dtype = DTYPE_BF16, .rows = m, .cols = k},
                     .fmt = DTYPE_F8_E4M3,
                     .mode = CAST_SITE,
                     .site = (struct scaler *)(void *)((char *)report->data + 128),
                     .report = report->data};
    struct gemm g = {.b = w, .out = {.buf = y, .dtype = DTYPE_BF16, .rows = m, .cols = n}};
    for (unsigned t = 0; t < TRIES; t++) {
        int before = f.count;
        double start = now_us();
        must(qtensor_cast(bench.queue, NULL, &c, "x", &xq, &bench.fault));
        g.a = xq;
        double casted = now_us();
        must(backend_gemm(bench.queue, &g, &bench.fault));
        double multiplied = now_us();
        queue_notify(bench.queue, &f.note);
        note[t] = now_us() - multiplied;
        ours[t] = multiplied - casted;
        cast[t] = casted - start;
        while (f.count == before) {
        }
        qtensor_unref(xq);
        start = now_us();
        peer_run(&peer, 0);
        gemm[t] = now_us() - start;
        peer_must((int)cudaStreamSynchronize(peer.stream), "cudaStreamSynchronize");
    }
    (void)snprintf(name, sizeof name, "enqueue_gemm_vs_raw_%lux%lux%lu", m, n, k);
    print_ratio(name, median(ours, TRIES), median(gemm, TRIES), "us", 1.3);
    print_value("enqueue_cast", median(cast, TRIES), "us", NULL, 0);
    print_value("enqueue_note", median(note, TRIES), "us", NULL, 0);
    peer_close(&peer);
    qtensor_unref(w);
    buffer_unref(x);
    buffer_unref(y);
    buffer_unref(codes);
    buffer_unref(report);
}

void bench_host(void)
{
    bench.runs = TRIES;
    bench_completion();
    bench_enqueue(16, 4096, 4096);
}
