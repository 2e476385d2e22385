/* backend.h - where numbers are computed: one const table per backend, front functions that check.
 *
 * Everything is asynchronous: operations are enqueued and complete in queue order; the caller never
 * blocks on compute. A queue belongs to one thread (the engine, the loader). The caller keeps every
 * buffer and qtensor that an operation names referenced until a note enqueued later has fired.
 * An operation may fail later than its call: the next note tells, and what was enqueued between the
 * two is not executed (exports call back all the same).
 *
 * Front functions check shapes, dtypes, sizes and alignment, and return FP8D_EINVALID_ARGUMENT with
 * the field, the value found and the value needed; backends may rely on what was checked. Zero rows
 * are fine everywhere and mean no work; zero columns are refused. No dimension has to be a multiple
 * of anything here.
 *
 * A NaN that an operation writes is the quiet NaN 0x7fc00000 (bf16 0x7fc0, f16 0x7e00): hardware
 * does not agree on which operand's payload survives. kernels/cuda/cuda.h says where the GEMM of a
 * GPU differs in this and in the order of its factors.
 *
 * Where a device is lost (backend_info.lost) every operation fails with FP8D_EINTERNAL, and so do
 * the notes that wait; nothing hangs.
 */
#ifndef FP8D_KERNELS_BACKEND_H
#define FP8D_KERNELS_BACKEND_H

#include "kernels/buffer.h"
#include "kernels/optimizer.h"
#include "kernels/qtensor.h"

#include <stdbool.h>
#include <stddef.h>

/* --- operations --- */

/* out[m,n] = a[m,k] * b[n,k]^T, in float32, times the two factors, plus bias, rounded once.
 *
 * With x [tokens, in], w [out, in] and dy [tokens, out]:
 *   fprop  y  = x w^T     a = x,  b = w
 *   dgrad  dx = dy w      a = dy, b = w, b_transposed
 *   wgrad  dw = dy^T x    a = dy, a_transposed, b = x, b_transposed; often with accumulate */
struct gemm {
    const struct qtensor *a;   /* [m, k]; with a_transposed [k, m] */
    const struct qtensor *b;   /* [n, k]; with b_transposed [k, n]; not both E5M2 */
    const struct tensor *bias; /* NULL, or [1, n] of F32, BF16 or F16 */
    struct tensor out;         /* [m, n] of F32, BF16 or F16 */
    bool precise;              /* no fast accumulation; the CPU backend is always precise */
    bool a_transposed;         /* multiply the second form of a, which must have one */
    bool b_transposed;
    bool accumulate; /* F32 output without bias alone: the product is added to out */
    /* The algorithm is the library's first answer, in every process the same, and not the fastest of
     * some that were timed. The CPU backend has one. */
    bool reproducible;
};

/* The same with operands of F32, BF16 or F16 (each its own), accumulated in float32. */
struct gemm_high {
    struct tensor a; /* [m, k] */
    struct tensor b; /* [n, k] */
    const struct tensor *bias;
    struct tensor out;
    bool reproducible; /* as above */
};

/* One step of an optimizer over one weight, in place (optimizer.h, docs/numerics.md 9). Tensors
 * that are named have the shape of master, and no two of them overlap. */
struct update {
    struct optimizer_options options;
    uint64_t step;    /* of this update, from 1: moments are zero before it, and SGD's begins as the
                         gradient */
    float grad_scale; /* each element of the gradient times this, first; finite, at least 0 */
    struct tensor master; /* F32, moved */
    struct tensor grad;   /* F32, read */
    struct tensor m, v;   /* F32, moved; without a buffer where optimizer_moments has none */
    enum dtype round_to;  /* BF16 or F16, what the weight was loaded in; F32 or NONE: not rounded */
    struct tensor stored; /* gets the master rounded to round_to, in that dtype; or no buffer */
};

/* Scale update of one site at the end of a scope: collect, then apply (scaler.h). With `replace`
 * the site becomes that instead, and slot, fmt, algo, margin and frozen are not looked at. */
struct apply_site {
    struct scaler *site;          /* backend memory */
    const struct scaler *replace; /* inside a BUFFER_HOST buffer, same length; NULL: apply */
    const struct amax_slot *slot; /* inside a BUFFER_HOST buffer, e.g. a report's; may be NULL */
    struct scaler *mirror;        /* inside a BUFFER_HOST buffer: gets the result; may be NULL */
    enum dtype fmt;
    bool collect; /* the first phase alone: the slot is collected, nothing moves */
};

struct apply {
    const struct apply_site *sites; /* copied by the call */
    size_t count;
    enum amax_algo algo;
    int margin;
    bool frozen;
};

struct backend_info {
    const char *name;      /* "cpu", "cuda" */
    char device[128];      /* e.g. "x86-64-v4, 2 threads" */
    uint64_t memory_total; /* bytes; 0: no limit of its own */
    uint64_t memory_used;
    bool unified; /* BUFFER_DEVICE memory is host memory: no copies are needed */
    bool lost;    /* the device failed for good; lost_why says how */
    char lost_why[256];
};

/* Called once by a backend thread when everything enqueued before it is complete. status is 0, or
 * the first failure of an operation since the last note. Must not block. */
struct queue_note {
    void (*done)(struct queue_note *note, int status);
    struct fault *fault;     /* gets that failure's sentence, unless it has one; may be NULL */
    struct queue_note *next; /* the queue's, as are those below */
    uint64_t turn, mark;
    int status;
};

/* First member of every backend's queue object. */
struct queue {
    struct backend *backend;
    _Atomic uint64_t progress; /* moves while work is being done: what the watchdog looks at */
    _Atomic uint64_t pending;  /* operations and notes enqueued and not complete */
};

/* First member of every backend's instance. */
struct backend {
    const struct backend_ops *ops;
};

/* All required. */
struct backend_ops {
    const char *name;
    void (*close)(struct backend *b); /* all queues are closed, all buffers gone */
    void (*info)(struct backend *b, struct backend_info *out);
    /* Thread-safe. Sets buf->data, ->host, ->charged-sized memory; kind and bytes are filled. */
    int (*alloc)(struct backend *b, struct buffer *buf, struct fault *f);
    void (*free)(struct backend *b, struct buffer *buf);
    uint64_t (*alloc_size)(struct backend *b, enum buffer_kind kind, uint64_t bytes);
    int (*queue_open)(struct backend *b, const char *name, struct queue **out, struct fault *f);
    void (*queue_close)(struct queue *q);                     /* waits for what is enqueued */
    void (*notify)(struct queue *q, struct queue_note *note); /* cannot fail */
    void (*hold)(struct queue *q);
    void (*release)(struct queue *q, bool run);
    int (*follow)(struct queue *q, const struct queue_note *note, struct fault *f);
    int (*copy)(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
                uint64_t src_off, uint64_t bytes, struct fault *f);
    int (*cast)(struct queue *q, const struct cast *c, struct qtensor *out, struct fault *f);
    /* Copy the codes (unless bytes is out's own memory) and write the factor, both from this one
     * operation. */
    int (*adopt)(struct queue *q, const struct buffer *bytes, uint64_t offset, float scale_inv,
                 struct qtensor *out, struct fault *f);
    int (*export_qtensor)(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg,
                          struct fault *f);
    int (*dequantize)(struct queue *q, const struct qtensor *t, const struct tensor *out,
                      struct fault *f);
    /* out is [t->cols, t->rows] of t's format: its codes and its factor. */
    int (*transpose)(struct queue *q, const struct qtensor *t, struct qtensor *out,
                     struct fault *f);
    int (*measure)(struct queue *q, const struct tensor *t, struct cast_report *report,
                   struct fault *f);
    int (*gemm)(struct queue *q, const struct gemm *g, struct fault *f);
    int (*gemm_high)(struct queue *q, const struct gemm_high *g, struct fault *f);
    int (*apply)(struct queue *q, const struct apply *a, struct fault *f);
    int (*convert)(struct queue *q, const struct tensor *from, const struct tensor *to,
                   struct fault *f);
    int (*zero)(struct queue *q, const struct tensor *t, struct fault *f);
    int (*compare)(struct queue *q, const struct tensor *a, const struct tensor *b,
                   struct compare_report *report, struct fault *f);
    int (*stamp)(struct queue *q, uint64_t *at, struct fault *f);
    /* c and out: the rounded master is cast as well, with c's site; both NULL: it is not. */
    int (*update)(struct queue *q, const struct update *u, const struct cast *c,
                  struct qtensor *out, struct fault *f);
    int (*norm)(struct queue *q, const struct tensor *t, struct norm_report *report,
                struct fault *f);
};

/* --- front functions --- */

void backend_close(struct backend *b); /* NULL is fine */
void backend_info(struct backend *b, struct backend_info *out);

int queue_open(struct backend *b, const char *name, struct queue **out, struct fault *f);
void queue_close(struct queue *q); /* NULL is fine */
void queue_notify(struct queue *q, struct queue_note *note);

/* All or none: what is enqueued between the two is kept aside, and at the end executed in order, or
 * (run false) none of it, so that a change of several operations cannot stop half-way for memory.
 * Not nested; no note in between. After dropped operations the next note may report a failure. */
void queue_hold(struct queue *q);
void queue_release(struct queue *q, bool run);

/* What is enqueued from here to the next note fails (FP8D_EABORTED, left out) if that note, which is
 * enqueued and has not been called, or one behind it reports a failure: for work that means
 * nothing without what lies before it. */
int backend_follow(struct queue *q, const struct queue_note *note, struct fault *f);

int backend_copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
                 uint64_t src_off, uint64_t bytes, struct fault *f);
/* amax and non-finite count only, into report->slot (casts = 1); counts of saturation are 0. */
int backend_measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                    struct fault *f);
int backend_gemm(struct queue *q, const struct gemm *g, struct fault *f);
int backend_gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f);
int backend_apply(struct queue *q, const struct apply *a, struct fault *f);
int backend_compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                    struct compare_report *report, struct fault *f);
/* *at = nanoseconds of the device's clock, when all that was enqueued before is complete and
 * nothing that comes behind has begun; never 0. `at` is inside a BUFFER_HOST buffer, at a multiple
 * of 8. Two readings of one backend may be compared, and are alike where less than a step of the
 * clock lies between: a GPU's is as fine as the driver makes it, the CPU's is CLOCK_MONOTONIC. */
int backend_stamp(struct queue *q, uint64_t *at, struct fault *f);
/* The step alone, of any tensor; qtensor_update makes the new FP8 bytes in the same pass. */
int backend_update(struct queue *q, const struct update *u, struct fault *f);
/* The report is inside a BUFFER_HOST buffer, at a multiple of 8. */
int backend_norm(struct queue *q, const struct tensor *t, struct norm_report *report,
                 struct fault *f);

/* The same elements in another dtype, each rounded once; a NaN becomes the quiet one. */
int backend_convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                    struct fault *f);
int backend_zero(struct queue *q, const struct tensor *t, struct fault *f);

#endif
