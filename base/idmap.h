/* idmap.h - map from u64 ids (not 0) to pointers: open addressing, one thread at a time. */
#ifndef FP8D_BASE_IDMAP_H
#define FP8D_BASE_IDMAP_H

#include <stddef.h>
#include <stdint.h>

struct idmap_slot {
    uint64_t id; /* 0: empty */
    void *value;
};

/* Zeroed memory is an empty map. Values are not owned. */
struct idmap {
    struct idmap_slot *slots;
    size_t size; /* a power of two, or 0 */
    size_t count;
};

void idmap_fini(struct idmap *m);
void *idmap_get(const struct idmap *m, uint64_t id);            /* NULL if absent */
int idmap_put(struct idmap *m, uint64_t id, void *value);       /* absent before; 0 or -ENOMEM */
void *idmap_remove(struct idmap *m, uint64_t id);               /* what it held, or NULL */

/* Visit all: start with *at = 0; NULL at the end. No changes of the map in between. */
void *idmap_next(const struct idmap *m, size_t *at);

#endif
