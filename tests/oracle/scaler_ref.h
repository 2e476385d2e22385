/* scaler_ref.h - delayed scaling of one site, written a second time from docs/numerics.md
 * section 3.
 *
 * Remembers amaxes as a list, newest first, and computes in double; includes nothing of kernels/.
 * For random comparison with kernels/scaler. Heap objects of one thread; running out of memory ends
 * the program.
 */
#ifndef FP8D_TESTS_SCALER_REF_H
#define FP8D_TESTS_SCALER_REF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scaler_ref {
    double fp8_max;     /* 448 or 57344 */
    size_t len;         /* history length L */
    double *seen;       /* amaxes that entered, newest first */
    size_t seen_count;  /* at most L - 1 */
    double collected;   /* since the last apply */
    bool collected_bad; /* a non-finite element since the last apply */
    double last;        /* newest amax that ever entered */
    float scale, scale_inv;
    bool set;
    uint64_t updates, skipped, nonfinite, saturated, flushed;
};

struct scaler_ref *scaler_ref_new(double fp8_max, size_t len);
void scaler_ref_free(struct scaler_ref *r); /* NULL is fine */

void scaler_ref_collect(struct scaler_ref *r, double amax, uint64_t nonfinite, uint64_t saturated,
                        uint64_t flushed);
void scaler_ref_apply(struct scaler_ref *r, bool most_recent, int margin, bool frozen);
void scaler_ref_calibrate(struct scaler_ref *r, double amax, int margin);
void scaler_ref_adopt(struct scaler_ref *r, float scale_inv);
void scaler_ref_reset(struct scaler_ref *r);
void scaler_ref_resize(struct scaler_ref *r, size_t len);

/* Row i < len of the float32 history as the numerics page lays it out. */
double scaler_ref_row(const struct scaler_ref *r, size_t i);

#endif
