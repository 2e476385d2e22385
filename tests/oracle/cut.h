/* cut.h - how far a sum of FP8 products may be off on a tensor core of compute capability 9.0.
 *
 * What is known of it (DeepSeek-V3's report, PyTorch's and others' measurements): it adds 32
 * products at a time to an accumulator of 1 + 8 + 13 bits. The 32 products and the accumulator are
 * aligned to the largest exponent among them, and each of the 33 terms, and the result, is cut off
 * behind 13 fraction bits. With P the largest magnitude of a product and A that of the sum after
 * any step, each of these 34 cuts loses at most 2^-13 * max(P, A), so that a sum is off by
 *
 *   fast       2^-13 * 34 * ceil(k / 32) * max(P, A)
 *   precise    the same for every 128 products by themselves, P and A theirs, and float32 additions
 *              of these: ceil(k / 128) * 2^-24 * (sum of magnitudes)
 *
 * An operand below the least normal number of its format, 0 included, counts as that number in P:
 * nobody says that the multiplier normalises, and its exponent is what the others are aligned to.
 * A is of exact sums; what they are off in turn is left out, being 34 * 2^-13 of that a step.
 *
 * Until a GPU had seen real activations the bound was (k/32 + 2) * 2^-13 of the sum of magnitudes.
 * That was wrong, not the GPU: it counts one cut a step, as if all terms were alike. A product that
 * is larger than the 31 beside it, or a sum that has outgrown them, takes up to a unit of its own
 * last place from each. Activations of a transformer have such outliers: 31 * 2^-13 of the sum of
 * magnitudes was measured at k = 384, where 14 were allowed. The form above was derived from how
 * the tensor core works, not fitted to that figure; it was written down after it all the same. An
 * emulation that cuts so (tests/unit/test_cut.c) gives what was measured there to four digits.
 *
 * Includes nothing of kernels/. Pure.
 */
#ifndef FP8D_TESTS_CUT_H
#define FP8D_TESTS_CUT_H

#include <stdbool.h>
#include <stdint.h>

#define CUT_STEP 32

/* One output: the exact sum of its products, that of their magnitudes, and what it may be off. */
struct cut {
    double sum, magnitude;
    double fast, precise;
};

/* Operands a[k] and b[k], decoded codes, and the least normal numbers of their formats. */
struct cut cut_of(const float *a, const float *b, uint64_t k, double least_a, double least_b);
double cut_least(bool e5m2);

/* All four, times a factor that is not negative. */
void cut_scale(struct cut *c, double factor);

/* Where no more is known of k products than their sum of magnitudes: neither P nor A is above. */
struct cut cut_at_most(uint64_t k, double magnitude);

/* The same by steps of CUT_STEP products, the last of what is left; starts as {0}. `reach` is the
 * largest product of a step as P counts it. */
struct cut_run {
    struct cut_span {
        uint64_t steps;
        double sum, largest; /* max(P, A) */
    } all, chunk;
    double magnitude, chunks; /* sum of 34 * steps * max(P, A) over the chunks that ended */
};
void cut_step(struct cut_run *r, double sum, double magnitude, double reach);
struct cut cut_end(struct cut_run *r);

#endif
