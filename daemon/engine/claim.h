/* claim.h - which tensors of a checkpoint become layers: a pure function over its header.
 *
 * Every 2-D `X.weight` is claimed, with what belongs to it (source.h), as the linear layer X,
 * unless globs say otherwise. Strict (default): a claimed weight that cannot be a layer is an error
 * that names them all and prints the --skip globs that leave them out; every tensor that bears a
 * layer's name must be used. Not strict: such things become notes. Bad biases, factors and state of
 * claimed layers are always errors.
 *
 * A file whose metadata has fp8d_format is a save (state.h); another version than ours is an error.
 */
#ifndef FP8D_DAEMON_ENGINE_CLAIM_H
#define FP8D_DAEMON_ENGINE_CLAIM_H

#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "daemon/engine/source.h"

#define CLAIM_FEATURE_STEP 16 /* FP8 GEMMs take features in multiples of 16 */

struct claim_options {
    bool no_strict;
    char *const *only; /* globs over layer names */
    size_t only_count;
    char *const *skip;
    size_t skip_count;
};

/* A growing list of strings in the claim's arena. */
struct claim_lines {
    const char **line;
    size_t count, room;
    size_t dropped; /* beyond CLAIM_LINES_MAX */
};

#define CLAIM_LINES_MAX 10000

struct claim {
    struct arena arena;
    struct source *layers; /* in the order of the names of their weights */
    size_t layer_count;
    size_t left_out; /* names that end in .weight and that the globs left out */
    bool save;                              /* the file is a save */
    const struct safetensors_tensor *model; /* of a save: fp8d.model */
    struct claim_lines ignored;             /* "name (reason)" */
    struct claim_lines notes;               /* sentences */
};

/* The claim borrows from `s`, which must outlive it. On failure nothing is left to free. */
int claim_make(const struct safetensors *s, const struct claim_options *o, struct claim *out,
               struct fault *f);
void claim_fini(struct claim *c);

/* printf into the arena; silently drops what memory or the cap does not allow, counted. */
void claim_line(struct claim *c, struct claim_lines *l, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
