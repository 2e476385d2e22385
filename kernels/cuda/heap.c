#include "kernels/cuda/heap.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* Eight classes to a power of two of steps; the first eight hold one size each. */
static unsigned class_of(uint64_t units)
{
    if (units < 8)
        return (unsigned)units;
    unsigned top = 63u - (unsigned)__builtin_clzll(units);
    return ((top - 2) << 3) + (unsigned)(units >> (top - 3) & 7);
}

/* The least class of which every block holds that many steps. */
static unsigned class_above(uint64_t units)
{
    if (units < 8)
        return (unsigned)units;
    unsigned top = 63u - (unsigned)__builtin_clzll(units);
    return class_of(units + (((uint64_t)1 << (top - 3)) - 1));
}

static void list_add(struct heap *h, struct heap_block *b)
{
    unsigned c = class_of(b->size / h->step);
    b->is_free = true;
    b->prev = NULL;
    b->next = h->lists[c];
    if (b->next)
        b->next->prev = b;
    h->lists[c] = b;
    h->filled[c / 64] |= (uint64_t)1 << c % 64;
}

static void list_remove(struct heap *h, struct heap_block *b)
{
    unsigned c = class_of(b->size / h->step);
    b->is_free = false;
    if (b->next)
        b->next->prev = b->prev;
    if (b->prev)
        b->prev->next = b->next;
    else
        h->lists[c] = b->next;
    if (!h->lists[c])
        h->filled[c / 64] &= ~((uint64_t)1 << c % 64);
}

static struct heap_block *find_from(const struct heap *h, unsigned c)
{
    for (unsigned word = c / 64; word < HEAP_CLASSES / 64; word++) {
        uint64_t left = h->filled[word];
        if (word == c / 64)
            left &= ~(uint64_t)0 << c % 64;
        if (left)
            return h->lists[word * 64 + (unsigned)__builtin_ctzll(left)];
    }
    return NULL;
}

static struct heap_block *find(const struct heap *h, uint64_t size)
{
    struct heap_block *b = find_from(h, class_above(size / h->step));
    if (b)
        return b;
    /* The class that the size itself falls in has smaller blocks, and may have one that will do. */
    b = h->lists[class_of(size / h->step)];
    while (b && b->size < size)
        b = b->next;
    return b;
}

void heap_init(struct heap *h, uint64_t step)
{
    memset(h, 0, sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    h->step = step;
}

void heap_fini(struct heap *h)
{
    assert(!h->used);
    for (unsigned c = 0; c < HEAP_CLASSES; c++)
        while (h->lists[c]) {
            struct heap_block *b = h->lists[c];
            list_remove(h, b);
            mem_free(b);
        }
    pthread_mutex_destroy(&h->lock);
}

bool heap_grow(struct heap *h, uint64_t at, uint64_t size)
{
    struct heap_block *b = mem_zalloc(sizeof *b);
    if (!b)
        return false;
    b->at = at;
    b->size = size;
    pthread_mutex_lock(&h->lock);
    list_add(h, b);
    h->total += size;
    pthread_mutex_unlock(&h->lock);
    return true;
}

uint64_t heap_size(const struct heap *h, uint64_t bytes)
{
    if (bytes > (uint64_t)1 << 62)
        return 0;
    return ((bytes ? bytes : 1) + h->step - 1) & ~(h->step - 1);
}

/* The first `size` bytes of b stay b; the rest, if any, becomes `rest`. True if it was needed. */
static bool split(struct heap *h, struct heap_block *b, uint64_t size, struct heap_block *rest)
{
    if (b->size == size)
        return false;
    *rest = (struct heap_block){
        .at = b->at + size, .size = b->size - size, .before = b, .after = b->after};
    if (rest->after)
        rest->after->before = rest;
    b->after = rest;
    b->size = size;
    list_add(h, rest);
    return true;
}

struct heap_block *heap_take(struct heap *h, uint64_t bytes)
{
    uint64_t size = heap_size(h, bytes);
    struct heap_block *rest = size ? mem_alloc(sizeof *rest) : NULL;
    if (!rest)
        return NULL;
    pthread_mutex_lock(&h->lock);
    struct heap_block *b = find(h, size);
    if (b) {
        list_remove(h, b);
        if (split(h, b, size, rest))
            rest = NULL;
        h->used += size;
    }
    pthread_mutex_unlock(&h->lock);
    mem_free(rest);
    return b;
}

bool heap_fits(struct heap *h, uint64_t bytes)
{
    uint64_t size = heap_size(h, bytes);
    pthread_mutex_lock(&h->lock);
    bool fits = size && find(h, size);
    pthread_mutex_unlock(&h->lock);
    return fits;
}

/* b swallows the block behind it. */
static struct heap_block *join(struct heap_block *b)
{
    struct heap_block *gone = b->after;
    b->size += gone->size;
    b->after = gone->after;
    if (b->after)
        b->after->before = b;
    return gone;
}

void heap_give(struct heap *h, struct heap_block *b)
{
    struct heap_block *dead[2] = {NULL, NULL};
    if (!b)
        return;
    pthread_mutex_lock(&h->lock);
    h->used -= b->size;
    if (b->after && b->after->is_free) {
        list_remove(h, b->after);
        dead[0] = join(b);
    }
    if (b->before && b->before->is_free) {
        b = b->before;
        list_remove(h, b);
        dead[1] = join(b);
    }
    list_add(h, b);
    pthread_mutex_unlock(&h->lock);
    mem_free(dead[0]);
    mem_free(dead[1]);
}

uint64_t heap_used(struct heap *h)
{
    pthread_mutex_lock(&h->lock);
    uint64_t used = h->used;
    pthread_mutex_unlock(&h->lock);
    return used;
}
