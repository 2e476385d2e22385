/* buffer.h - counted backend memory, and the tensor view over it.
 *
 * A buffer is charged to the ledger (of BUFFER_DEVICE to its device's, if it has one) before it is allocated and given back when the last reference
 * goes. Creating and dropping are thread-safe; the bytes belong to whoever the queue order says.
 */
#ifndef FP8D_KERNELS_BUFFER_H
#define FP8D_KERNELS_BUFFER_H

#include "base/dtype.h"
#include "base/fault.h"
#include "base/ledger.h"

#include <stdatomic.h>
#include <stdint.h>

struct backend;

enum buffer_kind {
    BUFFER_DEVICE = 1, /* where the backend computes; host may not touch it unless `host` is set */
    BUFFER_HOST = 2,   /* host memory that backend operations can also read and write */
};

struct buffer {
    struct backend *backend;
    struct ledger *ledger; /* that was charged; may be NULL */
    enum buffer_kind kind;
    void *data;  /* address for backend operations, 64-byte aligned (CUDA device memory: 256) */
    void *host;  /* address for the host, or NULL; on the CPU backend always data */
    uint64_t bytes;   /* asked for */
    uint64_t charged; /* really taken and charged */
    void *block;      /* the backend's */
    _Atomic uint32_t refs;
};

/* `what` names the use in the sentence of FP8D_ERESOURCE_EXHAUSTED, e.g. "input of layer q". The
 * contents are undefined and may hold older data: whoever hands bytes to a client wrote them all. */
int buffer_new(struct backend *b, struct ledger *l, enum buffer_kind kind, uint64_t bytes,
               const char *what, struct buffer **out, struct fault *f);
struct buffer *buffer_ref(struct buffer *buf); /* returns buf */
void buffer_unref(struct buffer *buf);         /* NULL is fine */

/* A row-major matrix of F32, BF16 or F16 inside a buffer. Borrowed: holds no reference. */
struct tensor {
    struct buffer *buf;
    uint64_t offset; /* bytes, a multiple of the element size */
    enum dtype dtype;
    uint64_t rows, cols;
};

#endif
