/* rig.h - a backend with one queue, and the few steps that every kernel test takes on it.
 *
 * The CPU backend, or with FP8D_TEST_BACKEND=cuda the CUDA backend of FP8D_TEST_BACKEND_DIR (the
 * standard search without it), where what a test asks of levels, threads and inline queues has no
 * meaning. One CUDA backend is kept open for the whole program: opening takes and pins memory, and
 * plans are timed once. Buffers are BUFFER_HOST, which the host and either backend can read and
 * write. Reports, slots and scalers live in buffers too: a GPU sees nothing else.
 *
 * For tests alone; every failure is a failed check. Sanitizer runs set FP8D_TEST_SMALL=1, and tests
 * that would take long shrink their shapes.
 */
#ifndef FP8D_TESTS_UNIT_RIG_H
#define FP8D_TESTS_UNIT_RIG_H

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/module.h"
#include "tests/unit/run.h"

#include <check.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rig {
    struct backend *b;
    struct queue *q;
    struct fault f;
};

static inline bool rig_small(void)
{
    return getenv("FP8D_TEST_SMALL") != NULL;
}

/* --- which backend --- */

static inline bool rig_cuda(void)
{
    const char *s = getenv("FP8D_TEST_BACKEND");
    return s && !strcmp(s, "cuda");
}

#define RIG_CUDA_MEMORY ((uint64_t)(rig_small() ? 1 : 8) << 30)

/* The backend that is kept, and whether a rig has it. */
struct rig_kept {
    struct backend *b;
    bool taken;
};

static inline struct rig_kept *rig_kept(void)
{
    static struct rig_kept kept;
    return &kept;
}

static inline void rig_log(enum host_log level, const char *text)
{
    (void)fprintf(stderr, "cuda (%d): %s\n", (int)level, text);
}

static inline int rig_open_cuda(struct backend **out, struct fault *f)
{
    struct module_options o = {.memory = RIG_CUDA_MEMORY,
                               .reproducible = getenv("FP8D_TEST_REPRODUCIBLE") != NULL};
    struct rig_kept *kept = rig_kept();
    if (kept->taken) /* a test that wants two of them */
        return module_open_cuda(getenv("FP8D_TEST_BACKEND_DIR"), &o, rig_log, out, f);
    int rc =
        kept->b ? 0 : module_open_cuda(getenv("FP8D_TEST_BACKEND_DIR"), &o, rig_log, &kept->b, f);
    kept->taken = !rc;
    *out = kept->b;
    return rc;
}

static inline void rig_close_backend(struct backend *b)
{
    if (b == rig_kept()->b)
        rig_kept()->taken = false;
    else
        backend_close(b);
}

static inline void rig_open(struct rig *r, enum cpu_level level, unsigned threads, bool is_inline)
{
    struct cpu_options o = {.level = level, .threads = threads, .inline_queues = is_inline};
    memset(r, 0, sizeof *r);
    int rc = rig_cuda() ? rig_open_cuda(&r->b, &r->f) : cpu_open(&o, &r->b, &r->f);
    ck_assert_msg(!rc, "%s", r->f.text);
    ck_assert_msg(!queue_open(r->b, "test", &r->q, &r->f), "%s", r->f.text);
}

static inline void rig_close(struct rig *r)
{
    queue_close(r->q);
    rig_close_backend(r->b);
}

/* --- waiting --- */

struct rig_note {
    struct queue_note note; /* first */
    sem_t fired;
    int status;
};

static inline void rig_note_done(struct queue_note *note, int status)
{
    struct rig_note *n = (struct rig_note *)note;
    n->status = status;
    sem_post(&n->fired);
}

/* Everything enqueued so far is complete, and well. */
static inline void rig_wait(struct rig *r)
{
    struct rig_note n = {.note = {.done = rig_note_done}};
    sem_init(&n.fired, 0, 0);
    queue_notify(r->q, &n.note);
    while (sem_wait(&n.fired)) {
    }
    sem_destroy(&n.fired);
    ck_assert_int_eq(n.status, 0);
}

/* --- memory --- */

/* `bytes` of backend memory, a copy of `from` unless that is NULL. */
static inline struct buffer *rig_buffer(struct rig *r, uint64_t bytes, const void *from)
{
    struct buffer *buf = NULL;
    int rc = buffer_new(r->b, NULL, BUFFER_HOST, bytes, "test", &buf, &r->f);
    ck_assert_msg(!rc, "%s", r->f.text);
    if (from)
        memcpy(buf->host, from, bytes);
    return buf;
}

static inline struct tensor rig_tensor(struct rig *r, enum dtype t, uint64_t rows, uint64_t cols,
                                       const void *from)
{
    return (struct tensor){.buf = rig_buffer(r, rows * cols * (dtype_bits(t) / 8), from),
                           .dtype = t,
                           .rows = rows,
                           .cols = cols};
}

/* An FP8 tensor of the given codes and factor. */
static inline struct qtensor *rig_adopt(struct rig *r, enum dtype fmt, uint64_t rows, uint64_t cols,
                                        const uint8_t *codes, float factor)
{
    struct qtensor *t = NULL;
    struct buffer *bytes = rig_buffer(r, rows * cols, codes);
    int rc = qtensor_adopt(r->q, NULL, fmt, rows, cols, bytes, 0, factor, "test", &t, &r->f);
    ck_assert_msg(!rc, "%s", r->f.text);
    rig_wait(r);
    buffer_unref(bytes);
    return t;
}

/* --- what a tensor holds --- */

struct rig_view {
    uint8_t *codes; /* room for all */
    float factor;
    struct qtensor_info info;
    unsigned calls;
};

static inline void rig_view_cb(void *arg, const struct qtensor_view *view)
{
    struct rig_view *v = arg;
    memcpy(v->codes, view->codes, view->info.rows * view->info.cols);
    v->factor = *view->scale_inv;
    v->info = view->info;
    v->calls++;
}

/* Codes into `codes`; returns the factor that left together with them. */
static inline float rig_export(struct rig *r, struct qtensor *t, uint8_t *codes)
{
    struct rig_view v = {.codes = codes};
    int rc = qtensor_export(r->q, t, rig_view_cb, &v, &r->f);
    ck_assert_msg(!rc, "%s", r->f.text);
    rig_wait(r);
    ck_assert_uint_eq(v.calls, 1);
    return v.factor;
}

/* --- levels x threads: the loop index of a looped test --- */

#define RIG_LEVELS 3
#define RIG_THREADS 3 /* 1 to 3 of them for each level */

static inline enum cpu_level rig_level(int i)
{
    static const enum cpu_level levels[] = {CPU_LEVEL_BASELINE, CPU_LEVEL_V3, CPU_LEVEL_V4};
    return levels[i];
}

/* How many of the levels this host runs: a higher one has all that a lower one has. */
static inline int rig_levels(void)
{
    int n = 0;
    while (n < RIG_LEVELS && cpu_level_runs(rig_level(n)))
        n++;
    return n;
}

/* The others are skips of a program. */
static inline void rig_skip_levels(struct run_skips *k)
{
    for (int i = rig_levels(); i < RIG_LEVELS; i++)
        run_skip(k, cpu_level_name(rig_level(i)), "this host cannot run it");
}

static inline void rig_open_combo(struct rig *r, int combo)
{
    rig_open(r, rig_level(combo / RIG_THREADS), (unsigned)(combo % RIG_THREADS) + 1, false);
}

#endif
