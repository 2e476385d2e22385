/* gpu_peer.h - cuBLASLt alone: what a program without fp8d would run, for comparison.
 *
 * E4M3 x E4M3 to bf16, one factor per tensor, fast accumulation; the eight first answers of the
 * heuristic are timed and the best is kept. Includes nothing of kernels/.
 */
#ifndef FP8D_TESTS_BENCH_GPU_PEER_H
#define FP8D_TESTS_BENCH_GPU_PEER_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

struct peer {
    uint64_t m, n, k;
    unsigned sets; /* of operands and outputs, used in turn */
    void **x, **w, **y;
    float *one;
    void *workspace;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t best;
};

/* x and w are made of `count` FP8 codes on the host, again and again. Ends the program on errors.
 */
void peer_open(struct peer *p, uint64_t m, uint64_t n, uint64_t k, unsigned sets,
               const uint8_t *codes, uint64_t count, cudaStream_t stream);
void peer_run(const struct peer *p, unsigned set);
void peer_close(struct peer *p);

/* Ends the program with the call's text unless e is success. */
void peer_must(int e, const char *what);

#endif
