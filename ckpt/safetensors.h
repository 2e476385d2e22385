/* safetensors.h - reading and writing safetensors files, strictly.
 *
 * Format: 8 bytes little-endian N, N bytes of UTF-8 JSON, then the tensors' bytes. The rules are
 * those of the reference implementation (safetensors 0.8), with one more: a duplicate key at any
 * level is an error. Where the reference accepts, so does this reader (JSON white space around the
 * header object, unaligned data, zero-size tensors, null metadata, unknown keys inside an entry);
 * where it refuses, this reader refuses too, with a sentence that names the tensor, the value found
 * and the value needed. No value of a tensor is looked at here.
 *
 * Stricter than the reference, by intent: duplicate names; names that are empty, longer than 1024
 * bytes or not printable; rank above SAFETENSORS_RANK_MAX; integers of 2^63 and more (there they
 * matter for shapes with a zero only); NUL in metadata; nesting deeper than JSON_DEPTH_MAX.
 *
 * Memory: everything a parse makes lives in the object and is freed with it. JSON is read one entry
 * at a time, in as much memory as the largest entry needs (2 KiB for most), never more than
 * SAFETENSORS_JSON_FACTOR bytes per header byte. Any thread, one at a time per object.
 */
#ifndef FP8D_CKPT_SAFETENSORS_H
#define FP8D_CKPT_SAFETENSORS_H

#include "base/dtype.h"
#include "base/fault.h"
#include "base/io.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_HEADER_CAP (16u << 20)     /* default limit of N */
#define SAFETENSORS_HEADER_HARD 100000000u     /* limit of N that no option can raise */
#define SAFETENSORS_RANK_MAX 8
#define SAFETENSORS_JSON_FACTOR 10             /* plus 64 KiB */

struct safetensors_tensor {
    const char *name;  /* 1 to 1024 bytes of printable UTF-8, NUL-terminated */
    enum dtype dtype;
    unsigned rank;     /* 0 (a scalar) to SAFETENSORS_RANK_MAX */
    uint64_t dims[SAFETENSORS_RANK_MAX]; /* row-major, outermost first */
    uint64_t offset;   /* of its first byte, from the start of the file */
    uint64_t bytes;    /* 0 for a tensor with a zero dimension */
};

struct safetensors_meta {
    const char *key, *value;
};

struct safetensors {
    struct safetensors_tensor *tensors; /* sorted by name, strcmp order */
    size_t count;
    struct safetensors_meta *meta;      /* __metadata__, sorted by key */
    size_t meta_count;
    uint64_t header_bytes;              /* N */
    uint64_t file_bytes;
    struct safetensors_store *store;    /* owner of all of the above */
};

struct safetensors_limits {
    uint64_t header_cap; /* 0: SAFETENSORS_HEADER_CAP; above SAFETENSORS_HEADER_HARD: that */
    size_t tensor_cap;   /* 0: 1 000 000 */
};

/* Check a header length N against the limits and the size of its file: FP8D_EDATA_LOSS above
 * SAFETENSORS_HEADER_HARD, FP8D_ERESOURCE_EXHAUSTED above the cap, then FP8D_EDATA_LOSS if 8 + N is
 * past the end of the file. */
int safetensors_check_size(uint64_t header, uint64_t file_size,
                           const struct safetensors_limits *limits, struct fault *f);

/* Parse a header of `len` bytes (the JSON alone, without the 8 bytes before it) of a file of
 * `file_size` bytes. limits may be NULL. On failure *out is untouched and FP8D_EDATA_LOSS,
 * FP8D_ERESOURCE_EXHAUSTED (header or tensor cap, JSON budget) or -ENOMEM is returned with a
 * sentence. */
int safetensors_parse(const char *json, size_t len, uint64_t file_size,
                      const struct safetensors_limits *limits, struct safetensors **out,
                      struct fault *f);

/* Read and parse the header of an open file of st->size bytes. Recognises what is often passed by
 * mistake and says so: Git LFS pointers, HTML, zip archives and pickles (torch), GGUF, bare JSON,
 * empty files. The file must not change meanwhile: io_check_unchanged() is the caller's. */
int safetensors_read(const struct io *io, int fd, const struct io_stat *st,
                     const struct safetensors_limits *limits, struct safetensors **out,
                     struct fault *f);

void safetensors_free(struct safetensors *s); /* NULL is fine */

/* NULL if there is none of that name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name);
const char *safetensors_meta(const struct safetensors *s, const char *key);

/* --- writer --- */

/* What is to be written: all of rank, dims, dtype; the offsets are chosen by the plan, in the order
 * given (use dtype width descending, then name, as the reference does). Names and metadata must
 * outlive the call only. The header is padded with spaces to a multiple of 8. */
struct safetensors_plan {
    char *head;          /* the 8 bytes and the JSON, head_bytes in all; heap */
    size_t head_bytes;
    uint64_t file_bytes; /* head and all tensors */
};

/* tensors[i].offset is set to where the tensor's bytes belong in the file; .bytes is checked against
 * shape and dtype. FP8D_EINVALID_ARGUMENT for bad names, duplicates, sizes, metadata that is no UTF-8
 * (controls are fine), a header above SAFETENSORS_HEADER_HARD; -ENOMEM. On failure nothing is set. */
int safetensors_plan(struct safetensors_tensor *tensors, size_t count,
                     const struct safetensors_meta *meta, size_t meta_count,
                     struct safetensors_plan *out, struct fault *f);
void safetensors_plan_fini(struct safetensors_plan *p);

#endif
