/* st_blob.h - safetensors files in memory, for tests. */
#ifndef FP8D_TESTS_UNIT_ST_BLOB_H
#define FP8D_TESTS_UNIT_ST_BLOB_H

#include "ckpt/safetensors.h"
#include "tests/unit/fake_io.h"

#include <check.h>
#include <stdlib.h>

/* A tensor "t" with its three fields as JSON text. */
#define ST_ONE(dtype, shape, offsets)                                                              \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

/* A file of a header and `data` bytes, byte i being i; freed with free(). */
static inline unsigned char *st_blob(const char *json, size_t data, size_t *size)
{
    size_t n = strlen(json);
    unsigned char *p = malloc(8 + n + data);
    ck_assert_ptr_nonnull(p);
    for (unsigned i = 0; i < 8; i++)
        p[i] = (unsigned char)(n >> (8 * i));
    memcpy(p + 8, json, n);
    for (size_t i = 0; i < data; i++)
        p[8 + n + i] = (unsigned char)i;
    *size = 8 + n + data;
    return p;
}

/* Read such a file through safetensors_read. */
static inline int st_read(const char *json, size_t data, struct safetensors **out, struct fault *f)
{
    struct fake_file file;
    size_t size;
    unsigned char *p = st_blob(json, data, &size);
    fake_file_init(&file, p, size);
    int rc = safetensors_read(&file.io, 7, &file.st, NULL, out, f);
    free(p);
    return rc;
}

/* As st_read, of a file that must be good. */
static inline struct safetensors *st_good(const char *json, size_t data)
{
    struct fault f = {0};
    struct safetensors *s = NULL;
    int rc = st_read(json, data, &s, &f);
    ck_assert_msg(rc == 0, "%s: %s", json, f.text);
    return s;
}

/* As st_read, of a file that must be refused with this code and with all three in the sentence. */
static inline void st_bad(const char *json, size_t data, int code, const char *name,
                          const char *found, const char *needed)
{
    struct fault f = {0};
    struct safetensors *s = NULL;
    const char *const parts[] = {name, found, needed};
    ck_assert_int_eq(st_read(json, data, &s, &f), code);
    ck_assert_ptr_null(s);
    ck_assert_int_eq(f.code, code);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(strstr(f.text, parts[i]) != NULL, "\"%s\" lacks \"%s\"", f.text, parts[i]);
}

#endif
