/* module.h - the seam between a program and the backend modules that it loads.
 *
 * A module is a shared object with one visible symbol, FP8D_BACKEND_MODULE. It and the program were
 * built together (the build id is a hash of the sources of kernels/ and base/), allocate through
 * one table, and another build is refused. Main thread; a module stays loaded until the process
 * ends.
 *
 * The NVIDIA driver is asked first, so that cuBLASLt (500 MB) is read only where there is a GPU
 * that can run it. Search: the directory given, and then nothing else; or lib/fp8d beside the
 * binary's prefix, then pkglibdir. Paths are absolute; the file and every directory above it must
 * belong to root or to us and be writable by nobody else (a sticky directory may be).
 */
#ifndef FP8D_KERNELS_MODULE_H
#define FP8D_KERNELS_MODULE_H

#include "kernels/backend.h"

#define BACKEND_MODULE_SYMBOL "fp8d_backend_module"

enum host_log { HOST_LOG_ERROR = 0, HOST_LOG_WARN = 1, HOST_LOG_INFO = 2 };

/* What the program lends: base/mem.h with its fault counters, and the log. Outlives the module's
 * backends. */
struct backend_host {
    void *(*alloc)(size_t size);
    void *(*zalloc)(size_t size);
    void *(*realloc)(void *p, size_t size);
    void (*free)(void *p);
    void (*log)(enum host_log level, const char *text); /* any thread; NULL: dropped */
};

struct module_options {
    unsigned device;         /* number of the GPU */
    uint64_t memory;         /* bytes of the device arena; 0: the share below */
    unsigned memory_percent; /* 1 to 100, of what is free when the backend opens; 0: 80 */
    bool reproducible;       /* every GEMM is, whatever is asked of each: for tests and benches */
    unsigned spin_us;        /* how long a thread looks for work before it sleeps; 0: 100, or 3000
                              * while work is under way and cores are many */
};

/* Constant, in the module. */
struct backend_module {
    const char *build_id;
    const char *name; /* "cuda" */
    /* The device exists and can run this module's code. Cheap; no memory of the device is taken. */
    int (*probe)(const struct backend_host *host, const struct module_options *o, struct fault *f);
    int (*open)(const struct backend_host *host, const struct module_options *o,
                struct backend **out, struct fault *f);
};

/* The one symbol's type. */
typedef const struct backend_module *(*backend_module_cb)(void);

/* Open the CUDA backend. `dir` is NULL or "" for the standard search. log may be NULL.
 * FP8D_EFAILED_PRECONDITION with one sentence that names what is missing: driver, device,
 * architecture, module, or the shared library that the module needs. */
int module_open_cuda(const char *dir, const struct module_options *o,
                     void (*log)(enum host_log level, const char *text), struct backend **out,
                     struct fault *f);

/* The driver's part alone: there is a driver, a device of that number, and it is new enough. */
int module_probe_driver(unsigned device, struct fault *f);

/* What is asked of libcuda.so.1; results are CUresult, 0 for good. */
struct module_driver {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*get)(int *device, int ordinal);
    int (*name)(char *out, int size, int device);
    int (*attribute)(int *out, int which, int device);
};
int module_check_device(const struct module_driver *d, unsigned device, struct fault *f);

/* This build's id. */
const char *module_build_id(void);

/* The file may be loaded: absolute, there, and nobody else can write it or put another in its
 * place. */
int module_check_path(const char *path, struct fault *f);

#endif
