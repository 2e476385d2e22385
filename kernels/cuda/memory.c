/* Device memory from one arena, pinned host memory from regions that are kept. */
#include "kernels/cuda/cuda.h"

#include "base/mem.h"

#include <string.h>

#define REGION_BYTES                                                                               \
    ((uint64_t)64 << 20) /* pinning costs 0.46 s per GiB: rarely, in large pieces */
#define REGION_STEP ((uint64_t)2 << 20)
#define PERCENT_DEFAULT 80u

static uint64_t arena_bytes(const struct module_options *o, uint64_t free_bytes)
{
    unsigned percent = o->memory_percent ? o->memory_percent : PERCENT_DEFAULT;
    return (o->memory ? o->memory : free_bytes / 100 * percent) & ~(REGION_STEP - 1);
}

static int open_arena(struct cuda *c, const struct module_options *o, struct fault *f)
{
    size_t free_bytes, total;
    int rc = cuda_check(c, cudaMemGetInfo(&free_bytes, &total), f, "cudaMemGetInfo");
    if (rc)
        return rc;
    uint64_t bytes = arena_bytes(o, free_bytes);
    if (!bytes || bytes > free_bytes)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "device_memory asks for %llu bytes of GPU %d, of which %llu of %llu are "
                         "free",
                         (unsigned long long)bytes, c->device, (unsigned long long)free_bytes,
                         (unsigned long long)total);
    rc = cuda_check(c, cudaMalloc(&c->arena, bytes), f,
                    "taking %llu bytes of device memory, of which %llu of %llu are free",
                    (unsigned long long)bytes, (unsigned long long)free_bytes,
                    (unsigned long long)total);
    if (!rc && !heap_grow(&c->device_heap, (uintptr_t)c->arena, bytes))
        rc = fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to describe the device arena");
    return rc;
}

/* A further pinned region of at least `bytes`. */
static int add_region(struct cuda *c, uint64_t bytes, struct fault *f)
{
    uint64_t size =
        bytes < REGION_BYTES ? REGION_BYTES : (bytes + REGION_STEP - 1) & ~(REGION_STEP - 1);
    void *p = NULL;
    if (c->region_count == CUDA_HOST_REGIONS)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "there are %u pinned regions already",
                         CUDA_HOST_REGIONS);
    int rc = cuda_check(c, cudaHostAlloc(&p, size, cudaHostAllocPortable | cudaHostAllocMapped), f,
                        "pinning %llu bytes of host memory", (unsigned long long)size);
    if (rc)
        return rc;
    if (!heap_grow(&c->host_heap, (uintptr_t)p, size)) {
        (void)cudaFreeHost(p);
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to describe a pinned region");
    }
    c->regions[c->region_count++] = p;
    return 0;
}

int cuda_memory_open(struct cuda *c, const struct module_options *o, struct fault *f)
{
    heap_init(&c->device_heap, CUDA_STEP_DEVICE);
    heap_init(&c->host_heap, CUDA_STEP_HOST);
    pthread_mutex_init(&c->regions_lock, NULL);
    int rc = open_arena(c, o, f);
    return rc ? rc : add_region(c, REGION_BYTES, f);
}

void cuda_memory_close(struct cuda *c)
{
    heap_fini(&c->device_heap);
    heap_fini(&c->host_heap);
    for (unsigned i = 0; i < c->region_count; i++)
        (void)cudaFreeHost(c->regions[i]);
    (void)cudaFree(c->arena);
    pthread_mutex_destroy(&c->regions_lock);
}

struct heap_block *cuda_take_device(struct cuda *c, uint64_t bytes, const char *what,
                                    struct fault *f)
{
    struct heap_block *b = heap_take(&c->device_heap, bytes);
    if (!b)
        (void)fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                        "GPU %d has no %llu bytes left for %s: %llu of its %llu are used",
                        c->device, (unsigned long long)bytes, what,
                        (unsigned long long)heap_used(&c->device_heap),
                        (unsigned long long)c->device_heap.total);
    return b;
}

/* Room for `bytes` in the pinned regions. */
static int make_room(struct cuda *c, uint64_t bytes, struct fault *f)
{
    int rc = 0;
    pthread_mutex_lock(&c->regions_lock);
    if (!heap_fits(&c->host_heap, bytes)) {
        uint64_t size = heap_size(&c->host_heap, bytes);
        rc = size ? cuda_enter(c, f)
                  : fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "%llu bytes are more than can exist",
                              (unsigned long long)bytes);
        if (!rc)
            rc = add_region(c, size, f);
    }
    pthread_mutex_unlock(&c->regions_lock);
    return rc;
}

struct heap_block *cuda_take_host(struct cuda *c, uint64_t bytes, const char *what, struct fault *f)
{
    if (make_room(c, bytes, f)) {
        (void)fault_wrap(f, "%s", what);
        return NULL;
    }
    struct heap_block *b = heap_take(&c->host_heap, bytes);
    if (!b)
        (void)fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory to describe %s", what);
    return b;
}

uint64_t cuda_alloc_size(struct backend *b, enum buffer_kind kind, uint64_t bytes)
{
    struct cuda *c = (struct cuda *)b;
    return heap_size(kind == BUFFER_DEVICE ? &c->device_heap : &c->host_heap, bytes);
}

int cuda_alloc(struct backend *b, struct buffer *buf, struct fault *f)
{
    struct cuda *c = (struct cuda *)b;
    struct heap_block *block = buf->kind == BUFFER_DEVICE
                                   ? cuda_take_device(c, buf->bytes, "a buffer", f)
                                   : cuda_take_host(c, buf->bytes, "a buffer", f);
    if (!block) {
        if (f->code == FP8D_ERESOURCE_EXHAUSTED)
            f->retry_after_ms = 100;
        return f->code;
    }
    buf->block = block;
    buf->data = block_address(block);
    buf->host = buf->kind == BUFFER_HOST ? buf->data : NULL;
    return 0;
}

void cuda_free(struct backend *b, struct buffer *buf)
{
    struct cuda *c = (struct cuda *)b;
    heap_give(buf->kind == BUFFER_DEVICE ? &c->device_heap : &c->host_heap, buf->block);
}
