/* samples.h - a growing list of measured numbers, and its exact percentiles. One thread at a time.
 */
#ifndef FP8D_CLIENT_CTL_SAMPLES_H
#define FP8D_CLIENT_CTL_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed: empty. */
struct samples {
    uint64_t *values;
    size_t count, room;
};

void samples_fini(struct samples *s); /* also zeroed */

/* 0, or -ENOMEM; the list is then as it was. */
int samples_add(struct samples *s, uint64_t value);
int samples_append(struct samples *s, const struct samples *more);

/* In rising order, as the two below want them. */
void samples_sort(struct samples *s);
/* Nearest rank: the smallest value that at least `percent` (0 to 100) of all do not exceed. 0 of an
 * empty list. */
uint64_t samples_percentile(const struct samples *s, unsigned percent);
uint64_t samples_max(const struct samples *s);

/* In any order. 0 of an empty list. */
double samples_mean(const struct samples *s);

#endif
