/* stash.h - checkpoints for tests: put together in memory, loaded through a client of a desk, saved
 * and read back. Every failure of the fixture itself is a failed check. One thread. */
#ifndef FP8D_TESTS_SCENARIO_STASH_H
#define FP8D_TESTS_SCENARIO_STASH_H

#include "ckpt/safetensors.h"
#include "tests/scenario/ask.h"

/* The bytes of a file; heap. */
struct blob {
    unsigned char *bytes;
    size_t size;
};

void blob_free(struct blob *b);
void blob_equal(const struct blob *a, const struct blob *b); /* asserts it, naming the tensor */
struct blob blob_read(const char *path);
int blob_fd(const struct blob *b); /* a memfd that has them */

/* Bytes of tensor `name`, inside b; its entry to *t (may be NULL). Asserts that it is there. */
const void *blob_tensor(const struct blob *b, const char *name, struct safetensors_tensor *t);
bool blob_has(const struct blob *b, const char *name);

/* --- a file being put together --- */

struct stash_tensor {
    char name[64];
    enum dtype dtype;
    unsigned rank;
    uint64_t dims[4];
    uint64_t bytes;
    unsigned char *data;
};

struct stash {
    struct stash_tensor t[128];
    size_t count;
    struct {
        char key[32], value[768];
    } meta[4];
    size_t meta_count;
};

/* Adds, or replaces what has the name. bytes are copied. */
void stash_put(struct stash *s, const char *name, enum dtype dtype, unsigned rank, uint64_t d0,
               uint64_t d1, const void *bytes);
void stash_meta(struct stash *s, const char *key, const char *value); /* NULL takes it out */
void stash_drop(struct stash *s, const char *name);
struct stash_tensor *stash_find(struct stash *s, const char *name); /* asserts that it is there */
void stash_from(struct stash *s, const struct blob *b);             /* everything in b */
struct blob stash_blob(const struct stash *s);
void stash_free(struct stash *s);

/* Weights drawn from a seed, rounded to the dtype; heap. */
void *stash_draw(uint64_t seed, enum dtype dtype, size_t n, double spread);

/* Two layers, each of its own dtype: "a", F32 with a bias of BF16, and "b-c", BF16. */
#define STASH_A_OUT 32
#define STASH_A_IN 48
#define STASH_B_OUT 48
#define STASH_B_IN 32
struct blob stash_pair(void);

/* The state of one site as a save has it. */
struct stash_site {
    float scale, scale_inv, amax_last, calibration_amax;
    uint64_t counters[8];
    const float *history; /* NULL: zeros */
};
void stash_put_site(struct stash *s, const char *layer, const char *site, uint32_t len,
                    const struct stash_site *v);
/* Metadata and fp8d.model of a save. */
void stash_put_model(struct stash *s, uint64_t version, bool frozen, bool calibrating,
                     uint32_t history_len);

/* --- through a client --- */

/* `o` may be NULL. The code; the sentence is in a->text. reply (may be NULL) is filled on success.
 */
unsigned stash_load(struct ask *a, const char *model, const struct blob *file,
                    const Fp8d__V1__LoadOptions *o, Fp8d__V1__LoadCommitReply **reply);
unsigned stash_load_fd(struct ask *a, const char *model, int fd, const Fp8d__V1__LoadOptions *o,
                       Fp8d__V1__LoadCommitReply **reply);
struct blob stash_save(struct ask *a, const char *model);
struct blob stash_save_weights(struct ask *a, const char *model); /* with no_optimizer */

/* A save of a connection of its own, begun and attached, whose commit is sent and not waited for. */
struct stash_saving {
    struct ask a;
    int fd;
    uint64_t commit; /* the request's id */
};
struct stash_saving stash_save_sent(struct desk *d, uint64_t conn, const char *model);
struct blob stash_saved(struct stash_saving *s); /* waits; the connection is closed */

/* True if one of the report's notes (or converted lines) has `part` in it. */
bool stash_noted(const Fp8d__V1__LoadCommitReply *r, const char *part);
bool stash_converted(const Fp8d__V1__LoadCommitReply *r, const char *part);
void stash_report_free(Fp8d__V1__LoadCommitReply *r);

#endif
