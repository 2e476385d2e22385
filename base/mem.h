/* mem.h - the allocator. The only place that calls malloc.
 *
 * Three kinds: small heap memory, a capped arena for memory that dies together, and pages for
 * tensors. All return NULL when memory is short, and all tick one fault counter, so that a test can
 * make the n-th allocation fail. Thread-safe, except that an arena belongs to one thread at a time.
 */
#ifndef FP8D_BASE_MEM_H
#define FP8D_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t size);             /* uninitialised; size 0 gives a valid pointer */
void *mem_zalloc(size_t size);            /* zeroed */
void *mem_realloc(void *p, size_t size);  /* the old block stays valid on failure */
void mem_free(void *p);                   /* NULL is fine */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t len);

/* Zeroed array of n elements; NULL on overflow. */
void *mem_array(size_t n, size_t size);

/* Memory for tensors: whole pages, 64-byte aligned at least, contents undefined (may hold older data
 * of this process). From 1 MiB on, blocks are 2 MiB aligned, advised to huge pages, and kept for
 * reuse after mem_pages_free up to mem_pages_keep() bytes in all. size 0 gives a valid pointer. */
void *mem_pages(size_t size);
void mem_pages_free(void *p, size_t size);  /* the size given to mem_pages; NULL is fine */
void mem_pages_keep(size_t bytes);          /* sets the cap of what is kept (default 256 MiB) and
                                               gives back what is above it */
size_t mem_pages_kept(void);                /* bytes kept for reuse now */
size_t mem_pages_size(size_t size);         /* bytes that mem_pages really takes for size */

/* --- arena --- */

/* Bump allocator with a hard cap. Freed whole. Owner: whoever embeds it. */
struct arena {
    struct arena_chunk *chunk;
    size_t used; /* bytes handed out and reserved, headers included */
    size_t cap;  /* arena_alloc fails once used would pass it */
};

void arena_init(struct arena *a, size_t cap);
void arena_fini(struct arena *a);                      /* also on a zeroed arena */
void *arena_alloc(struct arena *a, size_t size);       /* 16-byte aligned, uninitialised */
void *arena_zalloc(struct arena *a, size_t n, size_t size); /* zeroed, overflow checked */
char *arena_strndup(struct arena *a, const char *s, size_t len);

/* --- fault injection (tests) --- */

/* The allocation after `countdown` good ones fails, and all later ones too if `repeat`. Countdown
 * -1 disarms. Process-wide. mem_fault_fired() says whether one failed since arming. */
void mem_fault_arm(int64_t countdown, bool repeat);
bool mem_fault_fired(void);

/* Blocks of mem_alloc and mem_pages alive now (arenas count as their chunks): leak checks. */
int64_t mem_live_blocks(void);

#endif
