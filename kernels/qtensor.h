/* qtensor.h - the FP8 tensor: bytes and the factor that made them, one immutable object.
 *
 * The first invariant of the project: FP8 bytes exist only together with their scale_inv. So the
 * struct is incomplete outside qtensor.c and the backends, it is born whole, and no function edits
 * it, takes it apart, or gives a pointer to its bytes. Payload and factors share one allocation; a
 * GEMM reads the factor from the tensor that it multiplies.
 *
 * A tensor has one form or two: the codes as they are, [rows, cols], and, where the cast was asked
 * for it, their exact transpose under the same factor, made in the same pass. FP8 GEMMs multiply
 * rows by rows alone, so a gradient needs the second form of what it multiplies along the other way
 * (docs/numerics.md 5). Rows of the second form are padded with code 0 to a multiple of 16 bytes.
 *
 * Objects are counted; functions are called by one thread at a time per queue. Operations are
 * enqueued: the caller keeps every operand referenced until a notify enqueued later has fired.
 */
#ifndef FP8D_KERNELS_QTENSOR_H
#define FP8D_KERNELS_QTENSOR_H

#include "kernels/buffer.h"
#include "kernels/report.h"

struct qtensor;
struct queue;
struct update;

enum granularity {
    GRANULARITY_TENSOR = 1, /* one factor */
};

/* Where the scale of a cast comes from. */
enum cast_scale {
    CAST_SITE = 1,       /* the site's scale, which is 1 while it is unset (train) */
    CAST_SITE_OR_TENSOR, /* the site's scale if set, else as CAST_TENSOR (eval) */
    CAST_TENSOR,         /* target / amax of this tensor (recipe `current`) */
};

struct cast {
    struct tensor src; /* F32, BF16 or F16, read in that dtype */
    enum dtype fmt;    /* F8_E4M3 or F8_E5M2 */
    enum cast_scale mode;
    int margin;
    const struct scaler *site;  /* backend memory; unused with CAST_TENSOR */
    struct cast_report *report; /* inside a BUFFER_HOST buffer (its `data` address); not NULL */
    bool transposed;            /* make the second form too */
    /* [1, cols] of F32 that gets the sums of src's columns, of the values, not of the codes: the
     * gradient of a bias, made in the pass over dy. No buffer: none. docs/numerics.md 5.5. */
    struct tensor sums;
    bool sums_add; /* add to what is there */
};

struct qtensor_info {
    enum dtype fmt;
    enum granularity granularity;
    uint64_t rows, cols;
    uint64_t bytes;  /* really taken, factors included */
    bool transposed; /* there is a second form */
};

/* Cast src to a new tensor: reads the site's scale once, casts and counts (docs/numerics.md 1). */
int qtensor_cast(struct queue *q, struct ledger *l, const struct cast *c, const char *what,
                 struct qtensor **out, struct fault *f);

/* backend_update (backend.h), and in the same pass the rounded master cast to a new tensor: bytes
 * and report are those that a qtensor_cast of u->stored would give. Of c: fmt, margin, site, report
 * and transposed; the mode is CAST_SITE. */
int qtensor_update(struct queue *q, struct ledger *l, const struct update *u, const struct cast *c,
                   const char *what, struct qtensor **out, struct fault *f);

/* Take rows * cols code bytes at `bytes` + offset together with their factor (finite, >= 2^-128).
 * The bytes are copied by the queue. */
int qtensor_adopt(struct queue *q, struct ledger *l, enum dtype fmt, uint64_t rows, uint64_t cols,
                  struct buffer *bytes, uint64_t offset, float scale_inv, const char *what,
                  struct qtensor **out, struct fault *f);

/* The same without the copy: `codes`, a BUFFER_DEVICE buffer of qtensor_room() bytes that nobody
 * else holds, with the codes at its start, becomes the tensor's allocation. Takes over the
 * reference, but not on failure. The caller does not look at the buffer again. */
uint64_t qtensor_room(uint64_t rows, uint64_t cols); /* UINT64_MAX: more than can be counted */
int qtensor_adopt_buffer(struct queue *q, enum dtype fmt, uint64_t rows, uint64_t cols,
                         struct buffer *codes, float scale_inv, struct qtensor **out,
                         struct fault *f);

/* A new tensor [cols, rows] of the same codes and factor: what a second form would hold, for a
 * tensor that has none. Exact: nothing is cast anew. */
int qtensor_transpose(struct queue *q, struct ledger *l, const struct qtensor *t, const char *what,
                      struct qtensor **out, struct fault *f);

/* Bytes and factors together, valid during the callback, on a backend thread. */
struct qtensor_view {
    struct qtensor_info info;
    const uint8_t *codes;      /* rows * cols, row-major */
    const float *scale_inv;    /* factors */
    uint64_t factors;          /* 1 per tensor granularity */
    const uint8_t *transposed; /* cols rows of `pitch` bytes, 0 behind the first `rows`; or NULL */
    uint64_t pitch;
};
typedef void (*qtensor_export_cb)(void *arg, const struct qtensor_view *view);

/* The only way out. Enqueued; the callback runs once, in queue order. */
int qtensor_export(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg,
                   struct fault *f);

/* out = code * scale_inv in float32, rounded once to out's dtype. */
int qtensor_dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                       struct fault *f);

struct qtensor_info qtensor_info(const struct qtensor *t);
struct qtensor *qtensor_ref(struct qtensor *t); /* returns t */
void qtensor_unref(struct qtensor *t);          /* NULL is fine */

#endif
