#include "base/mem.h"

#include "base/checked.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define SMALL_PAGES ((size_t)1 << 20)

static _Atomic int64_t fault_countdown = -1;
static _Atomic bool fault_repeat;
static _Atomic bool fault_fired;
static _Atomic int64_t live_blocks;

static bool fault_tick(void)
{
    int64_t left = atomic_load_explicit(&fault_countdown, memory_order_relaxed);
    if (left < 0)
        return false;
    left = atomic_fetch_sub(&fault_countdown, 1);
    if (left > 0)
        return false;
    if (left < 0) { /* another thread took the last count */
        atomic_store(&fault_countdown, -1);
        return false;
    }
    atomic_store(&fault_countdown, fault_repeat ? 0 : -1);
    atomic_store(&fault_fired, true);
    return true;
}

void mem_fault_arm(int64_t countdown, bool repeat)
{
    atomic_store(&fault_fired, false);
    atomic_store(&fault_repeat, repeat);
    atomic_store(&fault_countdown, countdown);
}

bool mem_fault_fired(void)
{
    return atomic_load(&fault_fired);
}

int64_t mem_live_blocks(void)
{
    return atomic_load(&live_blocks);
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return p;
}

void *mem_alloc(size_t size)
{
    return fault_tick() ? NULL : counted(malloc(size ? size : 1));
}

void *mem_zalloc(size_t size)
{
    return fault_tick() ? NULL : counted(calloc(1, size ? size : 1));
}

void *mem_realloc(void *p, size_t size)
{
    if (!p)
        return mem_alloc(size);
    return fault_tick() ? NULL : realloc(p, size ? size : 1);
}

void mem_free(void *p)
{
    if (p)
        atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(p);
}

char *mem_strndup(const char *s, size_t len)
{
    char *p = mem_alloc(len + 1);
    if (p) {
        memcpy(p, s, len);
        p[len] = 0;
    }
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void *mem_array(size_t n, size_t size)
{
    uint64_t bytes;
    return ck_mul(n, size, &bytes) ? mem_zalloc(bytes) : NULL;
}

/* --- pages --- */

/* A block kept for reuse: its first bytes hold the link. */
struct kept {
    struct kept *next;
    size_t size;
};

static struct {
    pthread_mutex_t lock;
    struct kept *list; /* newest first */
    size_t bytes;
    size_t cap;
} keep = {.lock = PTHREAD_MUTEX_INITIALIZER, .cap = (size_t)256 << 20};

size_t mem_pages_size(size_t size)
{
    uint64_t r;
    size_t step = size < SMALL_PAGES ? 64 : HUGE_PAGE;
    return ck_round_up(size ? size : 1, step, &r) && r < SIZE_MAX / 2 ? r : 0;
}

static void *map_huge(size_t size)
{
    char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0);
    if (p == MAP_FAILED)
        return NULL;
    size_t head = -(uintptr_t)p & (HUGE_PAGE - 1);
    if (head)
        munmap(p, head);
    if (head < HUGE_PAGE)
        munmap(p + head + size, HUGE_PAGE - head);
    (void)madvise(p + head, size, MADV_HUGEPAGE);
    return p + head;
}

static void *keep_take(size_t size)
{
    pthread_mutex_lock(&keep.lock);
    struct kept **at = &keep.list;
    while (*at && (*at)->size != size)
        at = &(*at)->next;
    struct kept *found = *at;
    if (found) {
        *at = found->next;
        keep.bytes -= size;
    }
    pthread_mutex_unlock(&keep.lock);
    return found;
}

/* Take the oldest blocks off the list until at most `room` bytes are kept; returned as a list. */
static struct kept *keep_evict(size_t room)
{
    struct kept *out = NULL;
    while (keep.bytes > room && keep.list) {
        struct kept **at = &keep.list;
        while ((*at)->next)
            at = &(*at)->next;
        struct kept *old = *at;
        *at = NULL;
        keep.bytes -= old->size;
        old->next = out;
        out = old;
    }
    return out;
}

static void unmap_list(struct kept *list)
{
    while (list) {
        struct kept *next = list->next;
        munmap(list, list->size);
        list = next;
    }
}

void mem_pages_keep(size_t bytes)
{
    pthread_mutex_lock(&keep.lock);
    keep.cap = bytes;
    struct kept *out = keep_evict(bytes);
    pthread_mutex_unlock(&keep.lock);
    unmap_list(out);
}

size_t mem_pages_kept(void)
{
    pthread_mutex_lock(&keep.lock);
    size_t bytes = keep.bytes;
    pthread_mutex_unlock(&keep.lock);
    return bytes;
}

void *mem_pages(size_t size)
{
    size_t real = mem_pages_size(size);
    if (!real || fault_tick())
        return NULL;
    if (size < SMALL_PAGES)
        return counted(aligned_alloc(64, real));
    void *p = keep_take(real);
    return counted(p ? p : map_huge(real));
}

void mem_pages_free(void *p, size_t size)
{
    if (!p)
        return;
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    if (size < SMALL_PAGES) {
        free(p);
        return;
    }
    struct kept *k = p;
    size_t real = mem_pages_size(size);
    struct kept *out = NULL;
    pthread_mutex_lock(&keep.lock);
    if (real <= keep.cap) {
        out = keep_evict(keep.cap - real);
        *k = (struct kept){.next = keep.list, .size = real};
        keep.list = k;
        keep.bytes += real;
        k = NULL;
    }
    pthread_mutex_unlock(&keep.lock);
    unmap_list(out);
    if (k)
        munmap(p, real);
}

/* --- arena --- */

struct arena_chunk {
    struct arena_chunk *next;
    size_t size; /* usable bytes behind the header */
    size_t at;
    _Alignas(16) char data[];
};

void arena_init(struct arena *a, size_t cap)
{
    *a = (struct arena){.cap = cap};
}

void arena_fini(struct arena *a)
{
    while (a->chunk) {
        struct arena_chunk *next = a->chunk->next;
        mem_free(a->chunk);
        a->chunk = next;
    }
    a->used = 0;
}

static struct arena_chunk *chunk_new(struct arena *a, size_t need)
{
    size_t size = need < 2048 - sizeof(struct arena_chunk) ? 2048 - sizeof(struct arena_chunk) : need;
    size_t room = a->cap > a->used ? a->cap - a->used : 0;
    if (size + sizeof(struct arena_chunk) > room)
        size = need;
    if (need > room || need + sizeof(struct arena_chunk) > room)
        return NULL;
    struct arena_chunk *c = mem_alloc(sizeof *c + size);
    if (!c)
        return NULL;
    *c = (struct arena_chunk){.next = a->chunk, .size = size};
    a->chunk = c;
    a->used += sizeof *c + size;
    return c;
}

void *arena_alloc(struct arena *a, size_t size)
{
    uint64_t need;
    if (!ck_round_up(size ? size : 1, 16, &need) || need > SIZE_MAX / 2)
        return NULL;
    struct arena_chunk *c = a->chunk;
    if (!c || c->size - c->at < need)
        c = chunk_new(a, need);
    if (!c)
        return NULL;
    void *p = c->data + c->at;
    c->at += need;
    return p;
}

void *arena_zalloc(struct arena *a, size_t n, size_t size)
{
    uint64_t bytes;
    if (!ck_mul(n, size, &bytes))
        return NULL;
    void *p = arena_alloc(a, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
    char *p = arena_alloc(a, len + 1);
    if (p) {
        memcpy(p, s, len);
        p[len] = 0;
    }
    return p;
}
