/* torch_peer.h - PyTorch doing the same work, in a process of its own that takes turns with ours.
 *
 * The script (tests/bench/torch_peers.py, which has the protocol) is named by FP8D_TORCH_PEERS,
 * its Python by FP8D_PYTHON, else python3. Where it does not run, or stops answering, a line on
 * stderr says so once and every figure is -1 from then on: a benchmark goes on without it.
 */
#ifndef FP8D_TESTS_BENCH_TORCH_PEER_H
#define FP8D_TESTS_BENCH_TORCH_PEER_H

#include <stdint.h>
#include <sys/types.h>

struct torch_peer {
    pid_t pid; /* 0: there is none */
    int fd;    /* a socket, its standard input and output */
};

/* Returns at once. Before this process uses CUDA, which a fork does not survive. */
void torch_start(struct torch_peer *t);

/* Operands of y[m, n] = x[m, k] w[n, k]^T; compiles and warms up what `names` has, words. */
void torch_open(struct torch_peer *t, uint64_t m, uint64_t n, uint64_t k, const char *names);

/* Microseconds of one call, now; -1: no torch. */
double torch_run(struct torch_peer *t, const char *name);

void torch_stop(struct torch_peer *t);

#endif
