/* pool.h - threads that share the tiles of one operation.
 *
 * Owned by a queue. pool_run is called by one thread at a time, takes part itself as worker 0, and
 * returns when every tile is done. Which worker computes which tile is not fixed; results must not
 * depend on it.
 */
#ifndef FP8D_KERNELS_CPU_POOL_H
#define FP8D_KERNELS_CPU_POOL_H

#include "base/fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef void (*pool_cb)(void *arg, unsigned worker, uint64_t tile);

struct pool_worker {
    struct pool *pool;
    pthread_t thread;
    unsigned index; /* from 1 */
};

struct pool {
    unsigned threads;            /* workers, the caller of pool_run included */
    struct pool_worker *workers; /* [threads - 1] */
    unsigned started;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t round; /* counts pool_run calls; guarded by lock, as are the next two */
    unsigned busy;  /* workers that have not finished this round */
    bool stop;
    pool_cb fn; /* the job of this round: fixed before round moves */
    void *arg;
    uint64_t tiles;
    _Atomic uint64_t next;
    _Atomic uint64_t *progress;
};

/* Starts threads - 1 threads named "NAME/1", ...; each completed tile moves *progress. */
int pool_init(struct pool *p, const char *name, unsigned threads, _Atomic uint64_t *progress,
              struct fault *f);
void pool_fini(struct pool *p); /* also after a failed pool_init */

void pool_run(struct pool *p, pool_cb fn, void *arg, uint64_t tiles);

/* pthread_create with every signal blocked (signals are the main thread's) and the name set, cut at
 * 15 bytes. */
int thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg,
                 struct fault *f);

#endif
