#include "kernels/cuda/host.h"

#include "base/checked.h"
#include "base/mem.h"

static const struct backend_host *host;

void host_set(const struct backend_host *h)
{
    host = h;
}

void host_log(enum host_log level, const char *text)
{
    if (host && host->log)
        host->log(level, text);
}

void *mem_alloc(size_t size)
{
    return host->alloc(size);
}

void *mem_zalloc(size_t size)
{
    return host->zalloc(size);
}

void *mem_realloc(void *p, size_t size)
{
    return host->realloc(p, size);
}

void mem_free(void *p)
{
    host->free(p);
}

void *mem_array(size_t n, size_t size)
{
    uint64_t bytes;
    return ck_mul(n, size, &bytes) ? mem_zalloc(bytes) : NULL;
}
