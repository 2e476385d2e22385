#include "tests/bench/gpu_peer.h"

#include <stdio.h>
#include <stdlib.h>

#define CANDIDATES 8
#define WORKSPACE ((size_t)32 << 20)

void peer_must(int e, const char *what)
{
    if (!e)
        return;
    (void)fprintf(stderr, "bench_gpu: %s: error %d\n", what, e);
    exit(1);
}

static void *device(size_t bytes)
{
    void *p = NULL;
    peer_must((int)cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
}

static void **sets_of(unsigned sets, size_t bytes, const uint8_t *from, size_t count)
{
    void **p = malloc(sets * sizeof *p);
    if (!p)
        exit(1);
    for (unsigned i = 0; i < sets; i++) {
        p[i] = device(bytes);
        for (size_t at = 0; from && at < bytes; at += count)
            peer_must((int)cudaMemcpy((char *)p[i] + at, from,
                                      bytes - at < count ? bytes - at : count,
                                      cudaMemcpyHostToDevice),
                      "cudaMemcpy");
    }
    return p;
}

static void sets_free(void **p, unsigned sets)
{
    for (unsigned i = 0; i < sets; i++)
        (void)cudaFree(p[i]);
    free(p);
}

static void describe(struct peer *p)
{
    int32_t transposed = CUBLAS_OP_T;
    int8_t fast = 1;
    int e = (int)cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    e |= (int)cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                             sizeof transposed);
    e |= (int)cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast,
                                             sizeof fast);
    e |= (int)cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->one,
                                             sizeof p->one);
    e |= (int)cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->one,
                                             sizeof p->one);
    e |= (int)cublasLtMatrixLayoutCreate(&p->a, CUDA_R_8F_E4M3, p->k, p->n, (int64_t)p->k);
    e |= (int)cublasLtMatrixLayoutCreate(&p->b, CUDA_R_8F_E4M3, p->k, p->m, (int64_t)p->k);
    e |= (int)cublasLtMatrixLayoutCreate(&p->d, CUDA_R_16BF, p->n, p->m, (int64_t)p->n);
    peer_must(e, "describing a GEMM");
}

void peer_run(const struct peer *p, unsigned set)
{
    static const float one = 1.0f, zero = 0.0f;
    unsigned i = set % p->sets;
    peer_must((int)cublasLtMatmul(p->blas, p->op, &one, p->w[i], p->a, p->x[i], p->b, &zero,
                                  p->y[i], p->d, p->y[i], p->d, &p->best.algo, p->workspace,
                                  p->best.workspaceSize, p->stream),
              "cublasLtMatmul");
}

static float time_best(struct peer *p)
{
    cudaEvent_t begin, end;
    float ms = 0;
    peer_must((int)cudaEventCreate(&begin) | (int)cudaEventCreate(&end), "cudaEventCreate");
    peer_run(p, 0);
    peer_must((int)cudaEventRecord(begin, p->stream), "cudaEventRecord");
    for (unsigned i = 0; i < 3 * p->sets; i++)
        peer_run(p, i);
    peer_must((int)cudaEventRecord(end, p->stream), "cudaEventRecord");
    peer_must((int)cudaEventSynchronize(end), "cudaEventSynchronize");
    peer_must((int)cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return ms;
}

static void choose(struct peer *p)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t pref;
    size_t workspace = WORKSPACE;
    int count = 0, best = 0;
    float least = 0;
    int e = (int)cublasLtMatmulPreferenceCreate(&pref);
    e |= (int)cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace, sizeof workspace);
    e |= (int)cublasLtMatmulAlgoGetHeuristic(p->blas, p->op, p->a, p->b, p->d, p->d, pref,
                                             CANDIDATES, found, &count);
    peer_must(e | (count == 0), "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; i++) {
        p->best = found[i];
        float ms = time_best(p);
        if (i == 0 || ms < least) {
            least = ms;
            best = i;
        }
    }
    p->best = found[best];
    (void)cublasLtMatmulPreferenceDestroy(pref);
}

void peer_open(struct peer *p, uint64_t m, uint64_t n, uint64_t k, unsigned sets,
               const uint8_t *codes, uint64_t count, cudaStream_t stream)
{
    static const float one = 1.0f / 64;
    *p = (struct peer){.m = m, .n = n, .k = k, .sets = sets, .stream = stream};
    p->x = sets_of(sets, m * k, codes, count);
    p->w = sets_of(sets, n * k, codes, count);
    p->y = sets_of(sets, m * n * 2, NULL, 1);
    p->one = device(16);
    p->workspace = device(WORKSPACE);
    peer_must((int)cudaMemcpy(p->one, &one, sizeof one, cudaMemcpyHostToDevice), "cudaMemcpy");
    peer_must((int)cublasLtCreate(&p->blas), "cublasLtCreate");
    describe(p);
    choose(p);
}

void peer_close(struct peer *p)
{
    (void)cudaStreamSynchronize(p->stream);
    (void)cublasLtMatrixLayoutDestroy(p->a);
    (void)cublasLtMatrixLayoutDestroy(p->b);
    (void)cublasLtMatrixLayoutDestroy(p->d);
    (void)cublasLtMatmulDescDestroy(p->op);
    (void)cublasLtDestroy(p->blas);
    sets_free(p->x, p->sets);
    sets_free(p->w, p->sets);
    sets_free(p->y, p->sets);
    (void)cudaFree(p->one);
    (void)cudaFree(p->workspace);
}
