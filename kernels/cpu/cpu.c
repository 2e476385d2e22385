#include "kernels/cpu/cpu.h"

#include "base/mem.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/queue.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>

#define THREADS_MAX 1024u

/* One instance; used by every thread, constant but for the two counters. */
struct cpu {
    struct backend base; /* first */
    enum cpu_level level;
    unsigned threads;
    bool inline_queues;
    _Atomic uint64_t used;   /* bytes in buffers */
    _Atomic unsigned queues; /* open */
};

static void cpu_close(struct backend *b)
{
    struct cpu *cpu = (struct cpu *)b;
    assert(!cpu->queues && !cpu->used);
    mem_free(cpu);
}

static void cpu_info(struct backend *b, struct backend_info *out)
{
    struct cpu *cpu = (struct cpu *)b;
    *out = (struct backend_info){.name = "cpu", .memory_used = cpu->used, .unified = true};
    (void)snprintf(out->device, sizeof out->device, "%s, %u thread%s", cpu_level_name(cpu->level),
                   cpu->threads, cpu->threads == 1 ? "" : "s");
}

static uint64_t cpu_alloc_size(struct backend *b, enum buffer_kind kind, uint64_t bytes)
{
    (void)b;
    (void)kind;
    return mem_pages_size(bytes);
}

static int cpu_alloc(struct backend *b, struct buffer *buf, struct fault *f)
{
    buf->data = mem_pages(buf->bytes);
    if (!buf->data)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "the host has no %llu bytes left",
                         (unsigned long long)buf->charged);
    buf->host = buf->data;
    ((struct cpu *)b)->used += buf->charged;
    return 0;
}

static void cpu_free(struct backend *b, struct buffer *buf)
{
    mem_pages_free(buf->data, buf->bytes);
    ((struct cpu *)b)->used -= buf->charged;
}

static int cpu_open_queue(struct backend *b, const char *name, struct queue **out, struct fault *f)
{
    struct cpu *cpu = (struct cpu *)b;
    struct cpu_queue *q;
    int rc =
        cpu_queue_new(b, cpu_kernels_of(cpu->level), name, cpu->threads, cpu->inline_queues, &q, f);
    if (rc)
        return rc;
    cpu->queues++;
    *out = &q->base;
    return 0;
}

static void cpu_close_queue(struct queue *q)
{
    struct cpu *cpu = (struct cpu *)q->backend;
    cpu_queue_free((struct cpu_queue *)q);
    cpu->queues--;
}

static void cpu_notify(struct queue *q, struct queue_note *note)
{
    cpu_queue_notify((struct cpu_queue *)q, note);
}

static void cpu_hold(struct queue *q)
{
    cpu_queue_hold((struct cpu_queue *)q);
}

static void cpu_release(struct queue *q, bool run)
{
    cpu_queue_release((struct cpu_queue *)q, run);
}

/* Nothing that was enqueued fails here. */
static int cpu_follow(struct queue *q, const struct queue_note *note, struct fault *f)
{
    (void)q;
    (void)note;
    (void)f;
    return 0;
}

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_size = cpu_alloc_size,
    .queue_open = cpu_open_queue,
    .queue_close = cpu_close_queue,
    .notify = cpu_notify,
    .hold = cpu_hold,
    .release = cpu_release,
    .follow = cpu_follow,
    .copy = cpu_copy,
    .cast = cpu_cast,
    .adopt = cpu_adopt,
    .export_qtensor = cpu_export,
    .dequantize = cpu_dequantize,
    .transpose = cpu_transpose,
    .measure = cpu_measure,
    .gemm = cpu_gemm,
    .gemm_high = cpu_gemm_high,
    .apply = cpu_apply,
    .convert = cpu_convert,
    .zero = cpu_zero,
    .compare = cpu_compare,
    .stamp = cpu_stamp,
    .update = cpu_update,
    .norm = cpu_norm,
};

/* Those this process may run on: a container's share, not the host's number. */
static unsigned online_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}

int cpu_open(const struct cpu_options *o, struct backend **out, struct fault *f)
{
    enum cpu_level level = cpu_level_here(o->level);
    if (level == CPU_LEVEL_AUTO)
        return fault_set(f, FP8D_EFAILED_PRECONDITION, "this host cannot run %s code",
                         cpu_level_name(o->level));
    if (o->threads > THREADS_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "threads is %u, needed 0 to %u", o->threads,
                         THREADS_MAX);
    struct cpu *cpu = mem_zalloc(sizeof *cpu);
    if (!cpu)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for the CPU backend");
    cpu->base.ops = &cpu_ops;
    cpu->level = level;
    cpu->threads = o->threads ? o->threads : online_cores();
    cpu->inline_queues = o->inline_queues;
    if (o->inline_queues)
        cpu->threads = 1;
    *out = &cpu->base;
    return 0;
}
