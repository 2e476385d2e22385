/* heap.h - memory by addresses alone: a segregated-fit allocator that never touches what it deals.
 *
 * For device memory, and for pinned host memory that is too dear to ask the driver for each time.
 * Regions are added and never taken back; their owner frees them after heap_fini. Thread-safe.
 * Constant time but for a full class.
 */
#ifndef FP8D_KERNELS_CUDA_HEAP_H
#define FP8D_KERNELS_CUDA_HEAP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define HEAP_CLASSES 512u

struct heap_block {
    uint64_t at, size;                 /* bytes, multiples of the step */
    struct heap_block *before, *after; /* neighbours in the region */
    struct heap_block *prev, *next;    /* in the list of its class, while free */
    bool is_free;
};

struct heap {
    pthread_mutex_t lock;
    uint64_t step;        /* a power of two: alignment and granularity */
    uint64_t total, used; /* bytes */
    uint64_t filled[HEAP_CLASSES / 64];
    struct heap_block *lists[HEAP_CLASSES];
};

void heap_init(struct heap *h, uint64_t step);
void heap_fini(struct heap *h); /* everything was given back */

/* False if the host has no memory for its description. at and size are multiples of the step. */
bool heap_grow(struct heap *h, uint64_t at, uint64_t size);

/* bytes rounded up to the step, at least one; 0 if that overflows. */
uint64_t heap_size(const struct heap *h, uint64_t bytes);

/* NULL where no free block is large enough, or the host has no memory. One mem_alloc a call. */
struct heap_block *heap_take(struct heap *h, uint64_t bytes);
/* Some free block is large enough. */
bool heap_fits(struct heap *h, uint64_t bytes);
void heap_give(struct heap *h, struct heap_block *b); /* NULL is fine */

uint64_t heap_used(struct heap *h);

#endif
