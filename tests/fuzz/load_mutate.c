/* load_mutate.c - the mutator of load_fuzz.c. Random bytes hardly ever make another good header, so
 * a file that can be read is taken apart, edited as what it is (tensors, shapes, values, metadata)
 * and put together by the project's writer. Some inputs are left to libFuzzer's own mutations, with
 * the header's length kept right; so is what cannot be read. */
#include "tests/fuzz/load_draft.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
/* libFuzzer's; weak, so that the replay links this file without it. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max) __attribute__((weak));

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* What is edited, and the numbers that say how. */
struct editor {
    struct draft *d;
    uint64_t random;
};

static uint32_t draw(struct editor *e, uint64_t below)
{
    e->random = e->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((e->random >> 33) % below);
}

/* --- words of the format --- */

static const char *const parts[] = {
    "weight",
    "bias",
    "weight_scale",
    "weight_scale_inv",
    "input_scale",
    "fp8d.input.scaling",
    "fp8d.input.amax_history",
    "fp8d.input.counters",
    "fp8d.weight.scaling",
    "fp8d.weight.amax_history",
    "fp8d.weight.counters",
    "fp8d.grad_output.scaling",
    "fp8d.grad_output.amax_history",
    "fp8d.grad_output.counters",
    "fp8d.cached.weight",
    "fp8d.cached.weight_scale",
    "fp8d.cached.cast",
    "fp8d.cached.counters",
    "fp8d.optimizer.weight_master",
    "fp8d.optimizer.weight_m",
    "fp8d.optimizer.weight_v",
    "fp8d.optimizer.bias_master",
    "fp8d.optimizer.bias_m",
    "fp8d.optimizer.bias_v",
    "fp8d.optimizer.options",
    "fp8d.gradient.weight",
    "fp8d.gradient.bias",
    "fp8d.gradient.counters",
    "fp8d.origin",
    "other",
};

/* Some could be taken for another layer's tensors. */
static const char *const layers[] = {"l",   "l", "l", "k", "l.weight", "l.fp8d", "l.fp8d.cached",
                                     "fp8d"};

static const enum dtype dtypes[] = {
    DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_F64, DTYPE_U64, DTYPE_U8,
};

static const double reals[] = {0.0,     -0.0,  1.0,     -1.0, 2.0,   0.5,    0.25,    448.0, 1e-3,
                               2.9e-39, 3e-39, 1.2e-38, 3e38, 1e300, 1e-300, 65504.0, -2.0,  1e9};

static const uint64_t wholes[] = {
    0,
    1,
    2,
    3,
    4,
    7,
    31,
    32,
    4294967295u,
    4294967296u,
    INT64_MAX - 1u,
    INT64_MAX,
    (uint64_t)INT64_MAX + 1,
    UINT64_MAX,
};

static const char *const tokens[] = {
    "0",
    "1",
    "-1",
    "2",
    "3",
    "4",
    "16",
    "31",
    "32",
    "65536",
    "65537",
    "0.5",
    "0.9",
    "0.999",
    "1e-8",
    "1e39",
    "-0.001",
    "9223372036854775807",
    "9223372036854775806",
    "9223372036854775808",
    "true",
    "false",
    "null",
    "\"sgd\"",
    "\"adam\"",
    "\"adamw\"",
    "\"delayed\"",
    "\"current\"",
    "\"hybrid\"",
    "\"e4m3\"",
    "\"max\"",
    "\"most_recent\"",
    "\"fast\"",
    "\"precise\"",
    "[]",
    "{}",
};

#define RECIPE_HEAD "{\"kind\":\"delayed\",\"fp8_format\":\"hybrid\",\"amax_algo\":\"max\","
#define SGD_HEAD "{\"kind\":\"sgd\",\"rate\":0.1,\"dampening\":0,\"beta1\":0.9,\"beta2\":0.999,"

static const char *const pairs[][2] = {
    {"format", "pt"},
    {"fp8d_format", "1"},
    {"fp8d_format", "2"},
    {"fp8d_recipe", RECIPE_HEAD "\"amax_history_len\":4,\"margin\":0}"},
    {"fp8d_recipe", RECIPE_HEAD "\"amax_history_len\":7,\"margin\":3,"
                                "\"fprop_accumulation\":\"precise\"}"},
    {"fp8d_optimizer", SGD_HEAD "\"eps\":1e-8,\"momentum\":0,\"weight_decay\":0,"
                                "\"nesterov\":false,\"steps\":0,\"updates\":0}"},
    {"fp8d_optimizer", SGD_HEAD "\"eps\":1e-8,\"momentum\":0.9,\"weight_decay\":0.01,"
                                "\"nesterov\":true,\"steps\":5,\"updates\":5}"},
};

/* --- edits of tensors --- */

static void edit_form(struct editor *e, size_t i, size_t max)
{
    static const uint64_t sizes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 16, 16, 32, 48};
    struct safetensors_tensor t = e->d->t[i];
    if (draw(e, 2))
        t.dtype = dtypes[draw(e, COUNT(dtypes))];
    else if (t.rank && draw(e, 2))
        t.dims[draw(e, t.rank)] = sizes[draw(e, COUNT(sizes))];
    else {
        t.rank = draw(e, 4);
        for (unsigned k = 0; k < t.rank; k++)
            t.dims[k] = sizes[draw(e, COUNT(sizes))];
    }
    draft_refit(e->d, i, &t, max);
}

/* A tensor again, under another name of its layer or of another layer. */
static void edit_name(struct editor *e, size_t i)
{
    char name[DRAFT_NAME];
    (void)snprintf(name, sizeof name, "%s.%s", layers[draw(e, COUNT(layers))],
                   parts[draw(e, COUNT(parts))]);
    (void)draft_add(e->d, name, &e->d->t[i], e->d->bytes[i]);
}

/* Every tensor of layer "l" once more, of another layer. */
static void edit_second_layer(struct editor *e)
{
    char name[DRAFT_NAME];
    const char *layer = layers[draw(e, COUNT(layers))];
    size_t count = e->d->count;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(e->d->names[i], "l.", 2) != 0)
            continue;
        (void)snprintf(name, sizeof name, "%s.%.*s", layer, DRAFT_NAME - 16, e->d->names[i] + 2);
        for (size_t k = 0; k < count; k++)
            if (!strcmp(e->d->names[k], name))
                return;
        (void)draft_add(e->d, name, &e->d->t[i], e->d->bytes[i]);
    }
}

static void put_element(struct editor *e, enum dtype dtype, uint8_t *at)
{
    double real = draw(e, 8) ? reals[draw(e, COUNT(reals))] : 1.0 / 0.0;
    uint64_t whole = wholes[draw(e, COUNT(wholes))];
    float single = draw(e, 8) ? (float)real : (float)(real - real);
    if (dtype == DTYPE_F32)
        memcpy(at, &single, 4);
    else if (dtype == DTYPE_F64)
        memcpy(at, &real, 8);
    else if (dtype == DTYPE_U64)
        memcpy(at, &whole, 8);
    else if (dtype == DTYPE_BF16)
        memcpy(at, (uint8_t *)&single + 2, 2);
    else
        *at = (uint8_t)draw(e, 256);
}

static void edit_value(struct editor *e, size_t i)
{
    const struct safetensors_tensor *t = &e->d->t[i];
    unsigned width = dtype_bits(t->dtype) / 8;
    if (!width || t->bytes < width)
        return;
    /* The first ones more often: state is in few numbers. */
    uint64_t n = t->bytes / width;
    uint64_t at = draw(e, draw(e, 2) && n > 8 ? 8 : n);
    put_element(e, t->dtype, e->d->bytes[i] + at * width);
    /* scale and scale_inv are refused unless they belong together */
    if (strstr(e->d->names[i], ".scaling") && t->dtype == DTYPE_F32 && n == 4 && draw(e, 2)) {
        float scale, inv;
        memcpy(&scale, e->d->bytes[i], 4);
        inv = 1.0f / scale;
        memcpy(e->d->bytes[i] + 4, &inv, 4);
    }
}

static void edit_bytes(struct editor *e, size_t i)
{
    if (e->d->t[i].bytes && LLVMFuzzerMutate)
        (void)LLVMFuzzerMutate(e->d->bytes[i], e->d->t[i].bytes, e->d->t[i].bytes);
}

/* --- edits of metadata --- */

/* One value of a JSON object that metadata holds becomes another. */
static void edit_token(struct editor *e)
{
    size_t i = draw(e, e->d->meta_count);
    char *at = e->d->values[i], out[DRAFT_VALUE];
    unsigned colons = 0;
    for (const char *c = at; *c; c++)
        colons += *c == ':';
    if (!colons)
        return;
    for (unsigned n = draw(e, colons) + 1; n; n--)
        at = strchr(at, ':') + 1;
    int n = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - e->d->values[i]), e->d->values[i],
                     tokens[draw(e, COUNT(tokens))], at + strcspn(at, ",}"));
    if (n > 0 && n < DRAFT_VALUE)
        memcpy(e->d->values[i], out, (size_t)n + 1);
}

static void edit_meta(struct editor *e)
{
    unsigned what = draw(e, 8);
    if (!e->d->meta_count || what < 3) {
        size_t k = draw(e, COUNT(pairs));
        draft_meta(e->d, pairs[k][0], pairs[k][1]);
    } else if (what == 3) {
        size_t i = draw(e, e->d->meta_count), last = --e->d->meta_count;
        memmove(e->d->keys[i], e->d->keys[last], DRAFT_NAME);
        memmove(e->d->values[i], e->d->values[last], DRAFT_VALUE);
    } else {
        edit_token(e);
    }
}

static void edit(struct editor *e, size_t max)
{
    size_t i = e->d->count ? draw(e, e->d->count) : 0;
    unsigned what = draw(e, 16);
    if (what < 4 || !e->d->count)
        edit_meta(e);
    else if (what < 9)
        edit_value(e, i);
    else if (what < 11)
        edit_form(e, i, max);
    else if (what < 13)
        draft_drop(e->d, i);
    else if (what < 14)
        edit_name(e, i);
    else if (what < 15)
        edit_second_layer(e);
    else
        edit_bytes(e, i);
}

/* The header alone, or all that follows it; the length before the header stays right. */
static size_t mutate_raw(uint8_t *file, size_t size, size_t max, bool header)
{
    uint64_t head;
    if (!LLVMFuzzerMutate || size < 8 || max < 8)
        return LLVMFuzzerMutate ? LLVMFuzzerMutate(file, size, max) : size;
    memcpy(&head, file, 8);
    if (head > size - 8 || !header)
        return 8 + LLVMFuzzerMutate(file + 8, size - 8, max - 8);
    size_t rest = size - 8 - (size_t)head;
    uint8_t *tail = malloc(rest + 1);
    if (!tail)
        return size;
    memcpy(tail, file + 8 + head, rest);
    head = LLVMFuzzerMutate(file + 8, (size_t)head, max - 8 - rest);
    memcpy(file + 8 + head, tail, rest);
    memcpy(file, &head, 8);
    free(tail);
    return 8 + (size_t)head + rest;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    if (size < 3 || max < 3)
        return LLVMFuzzerMutate ? LLVMFuzzerMutate(data, size, max) : size;
    struct editor e = {seed % 16 ? draft_new(data + 2, size - 2) : NULL, seed};
    if (!e.d)
        return 2 + mutate_raw(data + 2, size - 2, max - 2, seed / 16 % 4 != 0);
    unsigned what = draw(&e, 8);
    if (what < 2)
        data[what] = draw(&e, 3) ? (uint8_t)(data[what] ^ 1u << draw(&e, 8)) : 0;
    for (unsigned n = what == 0 ? 0 : 1 + draw(&e, 3); n; n--)
        edit(&e, max / 4);
    size_t made = draft_write(e.d, data + 2, max - 2);
    draft_free(e.d);
    return made ? 2 + made : size;
}
