#include "tests/scenario/gate.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool closed;
static unsigned waiting;

static int64_t gated_pwrite(void *self, int fd, const void *buf, size_t len, uint64_t off)
{
    pthread_mutex_lock(&lock);
    waiting++;
    pthread_cond_broadcast(&moved);
    while (closed)
        pthread_cond_wait(&moved, &lock);
    waiting--;
    pthread_mutex_unlock(&lock);
    return io_posix.pwrite(self, fd, buf, len, off);
}

struct engine_options gate_options(void)
{
    static struct io io;
    io = io_posix;
    io.pwrite = gated_pwrite;
    return (struct engine_options){.io = &io};
}

static void set(bool to)
{
    pthread_mutex_lock(&lock);
    closed = to;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

void gate_wait(void)
{
    pthread_mutex_lock(&lock);
    while (!waiting)
        pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

void gate_close(void)
{
    set(true);
}

void gate_open(void)
{
    set(false);
}
