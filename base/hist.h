/* hist.h - log-linear histogram of u64 values, quantile error at most 1/32. Plain memory, one
 * thread at a time; merging adds. */
#ifndef FP8D_BASE_HIST_H
#define FP8D_BASE_HIST_H

#include <stdint.h>

#define HIST_SUB 32 /* buckets per power of two */
#define HIST_BUCKETS (HIST_SUB + (64 - 5) * HIST_SUB)

struct hist {
    uint64_t count, sum, min, max;
    uint64_t bucket[HIST_BUCKETS];
};

void hist_init(struct hist *h);
void hist_add(struct hist *h, uint64_t v);
void hist_merge(struct hist *into, const struct hist *from);

/* Upper bound of the bucket that holds the q-quantile (0 <= q <= 1), never above the maximum seen;
 * 0 for an empty histogram. */
uint64_t hist_quantile(const struct hist *h, double q);

#endif
