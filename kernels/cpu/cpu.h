/* cpu.h - the CPU backend: the embedded default, and the oracle.
 *
 * The same bits on every x86-64, compiler and thread count. Each queue has one compute thread that
 * runs its operations in order; heavy operations are split over a pool of threads that the queue
 * owns. With `inline_queues` an operation runs inside the call that enqueues it, and notes fire
 * inside queue_notify: no thread at all, for tests and small tools.
 */
#ifndef FP8D_KERNELS_CPU_CPU_H
#define FP8D_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

/* Which compilation of the kernel text runs. All give the same bits. */
enum cpu_level {
    CPU_LEVEL_AUTO = 0,     /* the highest that this host can run */
    CPU_LEVEL_BASELINE = 1, /* x86-64: SSE2 */
    CPU_LEVEL_V3 = 3,       /* x86-64-v3: AVX2 */
    CPU_LEVEL_V4 = 4,       /* x86-64-v4: AVX-512 */
};

struct cpu_options {
    enum cpu_level level;
    unsigned threads; /* per queue, compute thread included; 0: the number of online cores */
    bool inline_queues;
};

/* FP8D_EFAILED_PRECONDITION if the host cannot run the level. */
int cpu_open(const struct cpu_options *o, struct backend **out, struct fault *f);

/* True if this host can run the level (AUTO: always). */
bool cpu_level_runs(enum cpu_level level);
const char *cpu_level_name(enum cpu_level level); /* "x86-64", "x86-64-v3", "x86-64-v4" */

#endif
