/* cuda.h - the CUDA backend: one GPU, its memory, its queues. Inside of the module.
 *
 * Casts, amax, counts, scales, histories and dequantised values have the bits of the CPU backend.
 * FP8 GEMMs are cuBLASLt's. How they differ from the CPU's:
 *   - the order of summation, and with fast accumulation (`precise` unset) its width: about 13
 * bits;
 *   - y: cuBLASLt applies the two factors in its own order, so that y may be off by an ulp of
 *     float32, and a pair of factors whose product leaves the float32 range (tensors whose largest
 *     elements multiply to less than 2^-110 or so) gives 0 or Inf where the rule of numerics.md 5
 *     gives a number. Shapes that are not multiples of 16 in n and k, and outputs that need a pass
 *     of our own, follow the rule exactly;
 *   - a NaN is any quiet NaN (0x7fffffff mostly).
 * The operand and output of a large GEMM are refused where a row would pass 2^31 bytes.
 *
 * BUFFER_DEVICE is device memory without a host address, from one arena that is taken when the
 * backend opens. BUFFER_HOST is pinned and mapped: data and host are one address. The host may free
 * a buffer once a note behind its last use has fired: nothing waits for the device then.
 */
#ifndef FP8D_KERNELS_CUDA_CUDA_H
#define FP8D_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/heap.h"
#include "kernels/module.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#define CUDA_STEP_DEVICE                                                                           \
    512u /* cuBLASLt wants workspaces at 256; 512 is a cache line's sector pair */
#define CUDA_STEP_HOST 64u
#define CUDA_HOST_REGIONS 4096u

struct plans;

/* Constant after opening, but for the heaps, plans and lost, which have locks of their own. */
struct cuda {
    struct backend base; /* first */
    int device;
    unsigned sms;
    uint64_t l2_bytes;
    uint64_t idle_spin_ns, busy_spin_ns; /* how long a thread looks before it sleeps (clock.h) */
    char name[128]; /* as info gives it */
    cublasLtHandle_t blas;
    CUresult (*write_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    void *arena; /* of device memory */
    struct heap device_heap;
    struct heap host_heap;
    pthread_mutex_t regions_lock; /* of the pinned regions below */
    void *regions[CUDA_HOST_REGIONS];
    unsigned region_count;
    struct plans *plans;
    _Atomic bool lost;
    pthread_mutex_t lost_lock;
    char lost_why[256];
    _Atomic unsigned queues;
};

/* memory.c */
int cuda_memory_open(struct cuda *c, const struct module_options *o, struct fault *f);
void cuda_memory_close(struct cuda *c);
uint64_t cuda_alloc_size(struct backend *b, enum buffer_kind kind, uint64_t bytes);
int cuda_alloc(struct backend *b, struct buffer *buf, struct fault *f);
void cuda_free(struct backend *b, struct buffer *buf);
/* For the backend itself: device or pinned memory outside the ledger. */
struct heap_block *cuda_take_device(struct cuda *c, uint64_t bytes, const char *what,
                                    struct fault *f);
struct heap_block *cuda_take_host(struct cuda *c, uint64_t bytes, const char *what,
                                  struct fault *f);

static inline void *block_address(const struct heap_block *b)
{
    return (void *)(uintptr_t)b->at;
}

/* error.c */

/* The calling thread works on the backend's device from here on; fails once the device is lost. */
int cuda_enter(struct cuda *c, struct fault *f);

/* 0 for success, else the code with the sentence "WHAT: NAME (number)". An error that the device
 * does not recover from marks it lost. */
int cuda_check(struct cuda *c, cudaError_t e, struct fault *f, const char *what, ...)
    __attribute__((format(printf, 4, 5)));
int blas_check(struct cuda *c, cublasStatus_t e, struct fault *f, const char *what, ...)
    __attribute__((format(printf, 4, 5)));

/* Remember the first reason and log it. */
void cuda_lose(struct cuda *c, const char *why);

#endif
