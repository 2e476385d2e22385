/* load_draft.h - a safetensors file taken apart, so that the mutator of load_fuzz.c can edit what
 * is in it, and put together again by the project's writer. Heap; one thread. */
#ifndef FP8D_TESTS_FUZZ_LOAD_DRAFT_H
#define FP8D_TESTS_FUZZ_LOAD_DRAFT_H

#include "base/dtype.h"
#include "ckpt/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DRAFT_TENSORS 96
#define DRAFT_NAME 128
#define DRAFT_META 6
#define DRAFT_VALUE 768

struct draft {
    struct safetensors_tensor t[DRAFT_TENSORS]; /* .name is set at the end, to names[i] */
    char names[DRAFT_TENSORS][DRAFT_NAME];
    uint8_t *bytes[DRAFT_TENSORS];
    size_t count;
    struct safetensors_meta meta[DRAFT_META];
    char keys[DRAFT_META][DRAFT_NAME], values[DRAFT_META][DRAFT_VALUE];
    size_t meta_count;
};

/* NULL: it cannot be read, or has more than there is room for. */
struct draft *draft_new(const uint8_t *file, size_t size);
void draft_free(struct draft *d);

/* The file's size; 0: it would be none, or one of more than max bytes. */
size_t draft_write(struct draft *d, uint8_t *file, size_t max);

/* A tensor like `of` under a name; one that has the name goes. False: no room. */
bool draft_add(struct draft *d, const char *name, const struct safetensors_tensor *of,
               const uint8_t *bytes);
void draft_drop(struct draft *d, size_t i);

/* Another dtype or shape. Its bytes are those that were there, again and again. Nothing happens
 * where they would be more than max. */
void draft_refit(struct draft *d, size_t i, const struct safetensors_tensor *to, size_t max);

void draft_meta(struct draft *d, const char *key, const char *value);

#endif
