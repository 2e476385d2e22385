#include "kernels/cuda/cuda.h"
#include "kernels/cuda/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cuda_lose(struct cuda *c, const char *why)
{
    pthread_mutex_lock(&c->lost_lock);
    bool first = !c->lost;
    if (first)
        (void)snprintf(c->lost_why, sizeof c->lost_why, "%s", why);
    c->lost = true;
    pthread_mutex_unlock(&c->lost_lock);
    if (first)
        host_log(HOST_LOG_ERROR, c->lost_why);
}

int cuda_enter(struct cuda *c, struct fault *f)
{
    static _Thread_local int current = -1;
    if (c->lost)
        return fault_set(f, FP8D_EINTERNAL, "the device is lost: %s", c->lost_why);
    if (current == c->device)
        return 0;
    int rc = cuda_check(c, cudaSetDevice(c->device), f, "cudaSetDevice(%d)", c->device);
    if (!rc)
        current = c->device;
    return rc;
}

/* Errors of one call, after which the context still works. All others are taken for good: an
 * address fault, a hang or an ECC error leaves no call that succeeds. */
static bool passes(cudaError_t e)
{
    switch (e) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotSupported:
    case cudaErrorNotReady:
        return true;
    default:
        return false;
    }
}

int cuda_check(struct cuda *c, cudaError_t e, struct fault *f, const char *what, ...)
{
    char call[256];
    va_list ap;
    if (e == cudaSuccess)
        return 0;
    va_start(ap, what);
    (void)vsnprintf(call, sizeof call, what, ap);
    va_end(ap);
    (void)cudaGetLastError(); /* a call's error must not be found by the next call */
    int code = e == cudaErrorMemoryAllocation ? FP8D_ERESOURCE_EXHAUSTED : FP8D_EINTERNAL;
    (void)fault_set(f, code, "%s on GPU %d: %s (%d)", call, c->device, cudaGetErrorName(e), (int)e);
    if (!passes(e))
        cuda_lose(c, f->text);
    return code;
}

int blas_check(struct cuda *c, cublasStatus_t e, struct fault *f, const char *what, ...)
{
    char call[256];
    va_list ap;
    if (e == CUBLAS_STATUS_SUCCESS)
        return 0;
    va_start(ap, what);
    (void)vsnprintf(call, sizeof call, what, ap);
    va_end(ap);
    (void)fault_set(f, e == CUBLAS_STATUS_ALLOC_FAILED ? FP8D_ERESOURCE_EXHAUSTED : FP8D_EINTERNAL,
                    "%s on GPU %d: %s (%d)", call, c->device, cublasLtGetStatusName(e), (int)e);
    if (e == CUBLAS_STATUS_EXECUTION_FAILED || e == CUBLAS_STATUS_INTERNAL_ERROR) {
        cudaError_t last = cudaGetLastError();
        if (last != cudaSuccess && !passes(last))
            cuda_lose(c, f->text);
    }
    return f->code;
}
