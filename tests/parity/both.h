/* both.h - the CPU and the CUDA backend side by side, and inputs that both are given.
 *
 * What docs/numerics.md 6 calls equal to the bit is compared as bytes; outputs hold poison before.
 * FP8D_TEST_SMALL=1 (compute-sanitizer) leaves the large shapes out.
 */
#ifndef FP8D_TESTS_PARITY_BOTH_H
#define FP8D_TESTS_PARITY_BOTH_H

#include "tests/unit/rig.h"

#define POISON 0xa5

struct both {
    struct rig cpu, gpu;
};

/* Checked fixtures: one CUDA backend for the program, a queue each for the case. */
extern struct both both;
void both_setup(void);
void both_teardown(void);

/* The tokens and features of issue 4; ends with 0 behind the first. */
extern const uint64_t both_tokens[6];
extern const uint64_t both_features[6];
bool both_takes(uint64_t tokens, uint64_t features); /* false where FP8D_TEST_SMALL leaves it out */

/* splitmix64. */
uint64_t both_hash(uint64_t seed, uint64_t i);

enum data {
    DATA_TAME, /* magnitudes of 2^-14 to 2^6, some zeros: what activations look like */
    DATA_WILD, /* all bit patterns, NaN and Inf among them, and the boundaries of rounding */
};

/* `count` elements; pure. */
void both_fill(void *p, enum dtype t, uint64_t count, enum data kind, uint64_t seed);

/* The same elements as a tensor of either backend; the GPU's is device memory, `shift` elements
 * into its buffer. */
struct pair {
    struct tensor cpu, gpu;
};
struct pair both_tensor(enum dtype t, uint64_t rows, uint64_t cols, const void *data,
                        uint64_t shift);
void pair_free(struct pair *p);

/* Device memory of the GPU backend that was poisoned; its bytes on the host. */
struct buffer *gpu_poisoned(uint64_t bytes);
void gpu_read(struct buffer *from, uint64_t offset, void *to, uint64_t bytes);

/* The next device allocation of this size holds poison. */
void gpu_poison_next(uint64_t bytes);

#endif
