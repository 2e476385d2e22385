#include "kernels/cuda/cuda.h"

#include "base/mem.h"
#include "kernels/build_id.h"
#include "kernels/cuda/host.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plan.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define IDLE_SPIN_US 100u
#define BUSY_SPIN_US 3000u
#define SPIN_CORES 16
#define LEAST_MAJOR 9

/* --- info --- */

static void cuda_info(struct backend *b, struct backend_info *out)
{
    struct cuda *c = (struct cuda *)b;
    *out = (struct backend_info){
        .name = "cuda",
        .memory_total = c->device_heap.total,
        .memory_used = heap_used(&c->device_heap),
        .lost = c->lost,
    };
    memcpy(out->device, c->name, sizeof out->device);
    if (!out->lost)
        return;
    pthread_mutex_lock(&c->lost_lock);
    memcpy(out->lost_why, c->lost_why, sizeof out->lost_why);
    pthread_mutex_unlock(&c->lost_lock);
}

/* "580.159.04" of libnvidia-ml, or the CUDA version that the driver speaks. */
static void driver_text(char *out, size_t size)
{
    int (*init)(unsigned) = NULL, (*version)(char *, unsigned) = NULL;
    int api = 0;
    (void)cudaDriverGetVersion(&api);
    (void)snprintf(out, size, "CUDA %d.%d", api / 1000, api % 1000 / 10);
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return;
    *(void **)&init = dlsym(lib, "nvmlInitWithFlags");
    *(void **)&version = dlsym(lib, "nvmlSystemGetDriverVersion");
    char text[81];
    if (init && version && !init(0) && !version(text, sizeof text))
        (void)snprintf(out, size, "%.20s", text);
    (void)dlclose(lib);
}

static void describe(struct cuda *c, const struct cudaDeviceProp *p)
{
    int runtime = 0;
    char driver[32];
    unsigned blas = (unsigned)cublasLtGetVersion();
    (void)cudaRuntimeGetVersion(&runtime);
    driver_text(driver, sizeof driver);
    (void)snprintf(c->name, sizeof c->name, "%.40s, driver %s, CUDA %d.%d, cuBLASLt %u.%u.%u",
                   p->name, driver, runtime / 1000, runtime % 1000 / 10, blas / 10000 % 1000,
                   blas / 100 % 100, blas % 100);
}

/* --- opening --- */

static void cuda_close(struct backend *b)
{
    struct cuda *c = (struct cuda *)b;
    assert(!c->queues);
    (void)cudaSetDevice(c->device);
    plans_free(c->plans);
    if (c->blas)
        (void)cublasLtDestroy(c->blas);
    cuda_memory_close(c);
    pthread_mutex_destroy(&c->lost_lock);
    mem_free(c);
}

static const struct backend_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_size = cuda_alloc_size,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .notify = cuda_notify,
    .hold = cuda_hold,
    .release = cuda_release,
    .follow = cuda_follow,
    .copy = cuda_copy,
    .cast = cuda_cast,
    .adopt = cuda_adopt,
    .export_qtensor = cuda_export,
    .dequantize = cuda_dequantize,
    .transpose = cuda_transpose,
    .measure = cuda_measure,
    .gemm = cuda_gemm,
    .gemm_high = cuda_gemm_high,
    .apply = cuda_apply,
    .convert = cuda_convert,
    .zero = cuda_zero,
    .compare = cuda_compare,
    .stamp = cuda_stamp,
    .update = cuda_update,
    .norm = cuda_norm,
};

/* The one function of the driver that the runtime does not offer. */
static int find_write_value(struct cuda *c, struct fault *f)
{
    void *p = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    int rc = cuda_check(c,
                        cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &p, 11070,
                                                         cudaEnableDefault, &found),
                        f, "looking for cuStreamWriteValue32");
    if (!rc && (found != cudaDriverEntryPointSuccess || !p))
        rc = fault_set(f, FP8D_EFAILED_PRECONDITION,
                       "the NVIDIA driver is too old: it has no cuStreamWriteValue32");
    memcpy(&c->write_value, &p, sizeof p);
    return rc;
}

static int fill(struct cuda *c, const struct module_options *o, struct fault *f)
{
    struct cudaDeviceProp p;
    int rc = cuda_enter(c, f);
    if (!rc)
        rc = cuda_check(c, cudaGetDeviceProperties(&p, c->device), f, "cudaGetDeviceProperties");
    if (rc)
        return rc;
    c->sms = (unsigned)p.multiProcessorCount;
    c->l2_bytes = (uint64_t)p.l2CacheSize;
    describe(c, &p);
    rc = find_write_value(c, f);
    if (!rc)
        rc = blas_check(c, cublasLtCreate(&c->blas), f, "cublasLtCreate");
    if (!rc)
        rc = cuda_memory_open(c, o, f);
    return rc;
}

/* Being woken takes longer than a small request computes, so a thread that waits for work which is
 * under way looks for it, as long as there are cores for that. */
static void set_spin(struct cuda *c, unsigned us)
{
    bool many = sysconf(_SC_NPROCESSORS_ONLN) >= SPIN_CORES;
    c->idle_spin_ns = 1000ull * (us ? us : IDLE_SPIN_US);
    c->busy_spin_ns = 1000ull * (us ? us : many ? BUSY_SPIN_US : IDLE_SPIN_US);
}

static int cuda_open(const struct backend_host *host, const struct module_options *o,
                     struct backend **out, struct fault *f)
{
    host_set(host);
    struct cuda *c = mem_zalloc(sizeof *c);
    if (!c)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for the CUDA backend");
    c->base.ops = &cuda_ops;
    c->device = (int)o->device;
    set_spin(c, o->spin_us);
    pthread_mutex_init(&c->lost_lock, NULL);
    c->plans = plans_new(o->reproducible);
    int rc = c->plans ? 0 : fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for the GEMM plans");
    if (!rc)
        rc = fill(c, o, f);
    if (rc) {
        cuda_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return 0;
}

/* --- the module --- */

static int cuda_probe(const struct backend_host *host, const struct module_options *o,
                      struct fault *f)
{
    int count = 0, major = 0;
    host_set(host);
    cudaError_t e = cudaGetDeviceCount(&count);
    if (!e && o->device < (unsigned)count)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)o->device);
    if (e)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "this CUDA runtime cannot use the NVIDIA driver: %s (%d)",
                         cudaGetErrorString(e), (int)e);
    if (major < LEAST_MAJOR)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "GPU %u has compute capability %d.x, needed 9.0 or later (H100, H200)",
                         o->device, major);
    return 0;
}

__attribute__((visibility("default"))) const struct backend_module *fp8d_backend_module(void);

const struct backend_module *fp8d_backend_module(void)
{
    static const struct backend_module module = {
        .build_id = FP8D_BUILD_ID, .name = "cuda", .probe = cuda_probe, .open = cuda_open};
    return &module;
}
