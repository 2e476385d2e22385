/* snapshot.h - one version of a model as a list of tensors to be written: references and copies, so
 * that the model may go on. Taken on the engine thread, read on the loader thread. */
#ifndef FP8D_DAEMON_ENGINE_SNAPSHOT_H
#define FP8D_DAEMON_ENGINE_SNAPSHOT_H

#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "daemon/engine/model.h"

/* Where the bytes of a tensor come from: one of the three. */
struct snapshot_piece {
    struct safetensors_tensor t; /* name in the arena; offset set by safetensors_plan */
    const void *bytes;           /* in the arena */
    struct buffer *buffer;       /* referenced; from `buffer_offset` on */
    uint64_t buffer_offset;
    struct qtensor *codes; /* referenced; its factor goes to the piece of that name */
    const char *factor_name;
    size_t factor;  /* its index, once the pieces are sorted */
    bool is_factor; /* written with its codes */
};

struct snapshot {
    struct arena arena;
    struct ledger *ledger; /* what the arena takes is charged here */
    uint64_t charged;
    struct snapshot_piece *pieces; /* sorted as they will lie in the file */
    size_t count, room;
    struct safetensors_meta meta[4];
    size_t meta_count;
    uint64_t incarnation, weight_version;
};

/* no_optimizer: without the optimizer's options and state, and without gradients. */
int snapshot_take(struct model *m, bool no_optimizer, struct snapshot *out, struct fault *f);
void snapshot_fini(struct snapshot *s); /* also when zeroed */

#endif
