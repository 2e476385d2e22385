/* gpu_bench.h - what the parts of bench_gpu share. One thread; any error ends the program. */
#ifndef FP8D_TESTS_BENCH_GPU_BENCH_H
#define FP8D_TESTS_BENCH_GPU_BENCH_H

#include "kernels/cuda/queue.h"
#include "tests/bench/gpu_peer.h"
#include "tests/bench/torch_peer.h"

#define ROUNDS_MAX 31
#define ROTATE_BYTES                                                                               \
    ((uint64_t)256 << 20) /* that the sets of a variant take together, at least                    \
                           */

struct gpu_bench {
    struct fault fault;
    struct backend *timed, *first; /* plans by the clock; the library's first answer */
    struct queue *queue, *queue_first;
    struct torch_peer torch;
    unsigned rounds;
    unsigned runs;    /* that the figures printed next are of */
    double copy_rate; /* bytes a microsecond, read and written */
};
extern struct gpu_bench bench;

void must(int rc); /* with bench.fault */

static inline cudaStream_t stream_of(const struct queue *q)
{
    return ((const struct cuda_queue *)q)->stream;
}

/* What was enqueued is on the stream. */
static inline void drain(const struct queue *q)
{
    cuda_drain((const struct cuda_queue *)q);
}

/* Microseconds of one run in a row of `count`, by events, with the stream kept busy until all are
 * enqueued. `set` goes up from call to call. */
typedef void (*run_cb)(void *arg, unsigned set);
double burst(cudaStream_t s, run_cb run, void *arg, unsigned count);

double median(double *v, unsigned n);
double now_us(void);

/* One line of JSON each; aim NULL or 0: none; a negative baseline: there is no torch. */
void print_value(const char *name, double value, const char *unit, const char *aim, double at);
void print_ratio(const char *name, double value, double baseline, const char *unit, double aim);

/* Device memory of random elements: FP8 codes, bf16, or f32 (pairs of bf16). */
struct buffer *random_buffer(struct backend *b, enum dtype t, uint64_t bytes);
const uint8_t *random_codes(void); /* CODES of them, on the host */
#define CODES ((uint64_t)1 << 22)

/* gpu_layers.c */
void bench_casts(void);
void bench_forwards(void);
/* gpu_step.c */
void bench_steps(void);
/* gpu_train.c */
void bench_training(void);
/* gpu_host.c: completion and host time */
void bench_host(void);

#endif
