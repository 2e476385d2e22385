/* charlm_checkpoint.h - the half of a checkpoint that is charlm's own, beside the model's file.
 *
 * Checkpoint N of a prefix is two files: PREFIX-N.client, what the client computes (the state of
 * its random numbers, its embedding), and PREFIX-N.safetensors, which the service saves, with all
 * state of training. The client's is written first, and each file takes its name when all of it is
 * on the disk: where the second is, the checkpoint is whole. All functions print what went wrong.
 */
#ifndef FP8D_EXAMPLES_CHARLM_CHECKPOINT_H
#define FP8D_EXAMPLES_CHARLM_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#define CHECKPOINT_PATH 4096

/* The file of the service. */
void checkpoint_model(char out[CHECKPOINT_PATH], const char *prefix, int step);

/* The greatest N that is whole; 0: there is none. */
int checkpoint_newest(const char *prefix);

/* 0, or 1 after a failure. */
int checkpoint_write(const char *prefix, int step, uint64_t state, const float *values, size_t n);
int checkpoint_read(const char *prefix, int step, uint64_t *state, float *values, size_t n);

/* Both files. */
void checkpoint_remove(const char *prefix, int step);

#endif
