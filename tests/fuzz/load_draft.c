#include "tests/fuzz/load_draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void draft_refit(struct draft *d, size_t i, const struct safetensors_tensor *to, size_t max)
{
    struct safetensors_tensor *t = &d->t[i];
    uint64_t n = 1, bytes;
    for (unsigned k = 0; k < to->rank; k++)
        n *= to->dims[k];
    uint8_t *fresh = dtype_bytes(to->dtype, n, &bytes) && bytes <= max ? malloc(bytes + 1) : NULL;
    if (!fresh)
        return;
    for (uint64_t k = 0; k < bytes; k++)
        fresh[k] = t->bytes ? d->bytes[i][k % t->bytes] : 0;
    free(d->bytes[i]);
    d->bytes[i] = fresh;
    *t = *to;
    t->bytes = bytes;
}

void draft_drop(struct draft *d, size_t i)
{
    free(d->bytes[i]);
    d->count--;
    memmove(&d->t[i], &d->t[i + 1], (d->count - i) * sizeof d->t[0]);
    memmove(d->names[i], d->names[i + 1], (d->count - i) * sizeof d->names[0]);
    memmove(&d->bytes[i], &d->bytes[i + 1], (d->count - i) * sizeof d->bytes[0]);
}

bool draft_add(struct draft *d, const char *name, const struct safetensors_tensor *of,
               const uint8_t *bytes)
{
    uint8_t *copy = malloc(of->bytes + 1);
    if (!copy || d->count == DRAFT_TENSORS - 1) {
        free(copy);
        return false;
    }
    if (of->bytes)
        memcpy(copy, bytes, of->bytes);
    struct safetensors_tensor t = *of;
    for (size_t i = 0; i < d->count; i++)
        if (!strcmp(d->names[i], name)) {
            draft_drop(d, i);
            break;
        }
    (void)snprintf(d->names[d->count], DRAFT_NAME, "%s", name);
    d->t[d->count] = t;
    d->bytes[d->count++] = copy;
    return true;
}

void draft_meta(struct draft *d, const char *key, const char *value)
{
    size_t i = 0;
    while (i < d->meta_count && strcmp(d->keys[i], key) != 0)
        i++;
    if (i == DRAFT_META)
        return;
    (void)snprintf(d->keys[i], DRAFT_NAME, "%s", key);
    (void)snprintf(d->values[i], DRAFT_VALUE, "%s", value);
    d->meta_count += i == d->meta_count;
}

void draft_free(struct draft *d)
{
    for (size_t i = 0; i < d->count; i++)
        free(d->bytes[i]);
    free(d);
}

struct draft *draft_new(const uint8_t *file, size_t size)
{
    struct safetensors *s = NULL;
    struct fault f = {0};
    uint64_t head = 0;
    if (size >= 8)
        memcpy(&head, file, 8);
    if (size < 8 || head > size - 8 ||
        safetensors_parse((const char *)file + 8, (size_t)head, size, NULL, &s, &f))
        return NULL;
    struct draft *d = calloc(1, sizeof *d);
    bool fits = d != NULL;
    for (size_t i = 0; fits && i < s->count; i++)
        fits = strlen(s->tensors[i].name) < DRAFT_NAME &&
               draft_add(d, s->tensors[i].name, &s->tensors[i], file + s->tensors[i].offset);
    for (size_t i = 0; fits && i < s->meta_count; i++)
        draft_meta(d, s->meta[i].key, s->meta[i].value);
    safetensors_free(s);
    if (!fits && d) {
        draft_free(d);
        d = NULL;
    }
    return d;
}

size_t draft_write(struct draft *d, uint8_t *file, size_t max)
{
    struct safetensors_plan plan;
    struct fault f = {0};
    for (size_t i = 0; i < d->count; i++)
        d->t[i].name = d->names[i];
    for (size_t i = 0; i < d->meta_count; i++)
        d->meta[i] = (struct safetensors_meta){d->keys[i], d->values[i]};
    if (safetensors_plan(d->t, d->count, d->meta, d->meta_count, &plan, &f))
        return 0;
    size_t size = plan.file_bytes <= max ? (size_t)plan.file_bytes : 0;
    if (size)
        memcpy(file, plan.head, plan.head_bytes);
    for (size_t i = 0; size && i < d->count; i++)
        if (d->t[i].bytes)
            memcpy(file + d->t[i].offset, d->bytes[i], d->t[i].bytes);
    safetensors_plan_fini(&plan);
    return size;
}
