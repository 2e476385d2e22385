/* load_bytes.h - the bytes of a load's file: read in blocks, cancelled between any two of them,
 * shown as progress. Loader thread; the threads that it starts for a large tensor end with the
 * call. */
#ifndef FP8D_DAEMON_ENGINE_LOAD_BYTES_H
#define FP8D_DAEMON_ENGINE_LOAD_BYTES_H

#include "daemon/engine/load.h"

#define LOAD_READERS 8                     /* threads at most, and no more than there are CPUs */
#define LOAD_PARALLEL ((uint64_t)16 << 20) /* a tensor of that many bytes is read by several */
#define LOAD_SPAN ((size_t)512 << 10)      /* what a thread reads at a time */

/* FP8D_ECANCELLED if the load is to stop. */
int load_bytes_check(struct load *ld, struct fault *f);

/* A small tensor, whole, into host memory of `room` bytes, which it fits. */
int load_bytes_small(struct load *ld, const struct safetensors_tensor *t, void *out, size_t room,
                     struct fault *f);

/* n bytes of t from byte `at` on, at most LOAD_BLOCK, into host memory. */
int load_bytes_block(struct load *ld, const struct safetensors_tensor *t, uint64_t at, size_t n,
                     void *out, struct fault *f);

/* The whole of t to the start of `to`, wherever that is: by several threads where the host can
 * write it and it is large, else through ld->staging. seen (may be NULL) is shown every block, by
 * the thread that read it. */
typedef void (*load_seen_cb)(void *arg, const unsigned char *bytes, size_t n);
int load_bytes_all(struct load *ld, const struct safetensors_tensor *t, struct buffer *to,
                   struct queue *q, load_seen_cb seen, void *arg, struct fault *f);

/* One more tensor is complete. */
void load_bytes_done(struct load *ld);

#endif
