#include "ckpt/safetensors.h"
#include "base/mem.h"
#include "tests/unit/run.h"
#include "tests/unit/st_blob.h"

#include <stdio.h>

/* --- fixture --- */

static const char *const json =
    "{\"__metadata__\":{\"format\":\"pt\",\"other\":\"value\"},"
    "\"layer.0.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
    "\"layer.0.bias\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[16,20]}}";

static struct fake_file file;
static unsigned char *bytes;
static struct fault f;
static struct safetensors *s;
static int64_t blocks;

static void setup(void)
{
    size_t size;
    bytes = st_blob(json, 20, &size);
    fake_file_init(&file, bytes, size);
    memset(&f, 0, sizeof f);
    s = NULL;
    blocks = mem_live_blocks();
}

static void teardown(void)
{
    mem_fault_arm(-1, false);
    ck_assert_int_eq(mem_live_blocks(), blocks);
    free(bytes);
}

/* --- helpers --- */

static int read_file(void)
{
    return safetensors_read(&file.io, 7, &file.st, NULL, &s, &f);
}

static void mistaken(const void *text, size_t size, const char *what)
{
    fake_file_init(&file, (void *)(uintptr_t)text, size);
    ck_assert_int_eq(read_file(), FP8D_EDATA_LOSS);
    ck_assert_msg(strstr(f.text, what) && strstr(f.text, "needed a safetensors file"), "%s",
                  f.text);
}

/* --- cases --- */

/* The header is read however short the reads are, and the data is not read at all. */
START_TEST(read_short_reads)
{
    for (size_t chunk = 1; chunk < 100; chunk += 9) {
        file.chunk = chunk;
        file.fail_in = 2;
        file.fail_with = -EINTR;
        ck_assert_int_eq(read_file(), 0);
        ck_assert_uint_eq(s->count, 2);
        safetensors_free(s);
    }
}
END_TEST

/* Every pread that fails, or finds the file shorter than stat said, is a clean error. */
START_TEST(read_every_pread_fails_once)
{
    file.chunk = 16;
    for (int kind = 0; kind < 2; kind++) {
        int n = 0;
        for (;; n++) {
            s = NULL;
            file.fail_in = kind ? -1 : n;
            file.fail_with = -EIO;
            file.end_in = kind ? n : -1;
            int rc = read_file();
            if (rc == 0)
                break;
            ck_assert_int_eq(rc, kind ? FP8D_EDATA_LOSS : -EIO);
            ck_assert_ptr_nonnull(strstr(f.text, kind ? "the file ends at byte" : "reading"));
            ck_assert_ptr_null(s);
        }
        safetensors_free(s);
        ck_assert_int_ge(n, 10);
    }
}
END_TEST

/* Every allocation that fails is -ENOMEM with a sentence; nothing is left behind. */
START_TEST(read_every_allocation_fails_once)
{
    int n = 0;
    for (;; n++) {
        s = NULL;
        f.text[0] = 0;
        mem_fault_arm(n, false);
        int rc = read_file();
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        if (!fired)
            break;
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_ptr_nonnull(strstr(f.text, "no memory for"));
        ck_assert_ptr_null(s);
        ck_assert_int_eq(mem_live_blocks(), blocks);
    }
    ck_assert_ptr_nonnull(s);
    safetensors_free(s);
    ck_assert_int_ge(n, 6);
}
END_TEST

/* Memory that stays short from some point on is no different. */
START_TEST(read_memory_stays_short)
{
    for (int n = 0; n < 6; n++) {
        mem_fault_arm(n, true);
        ck_assert_int_eq(read_file(), -ENOMEM);
        mem_fault_arm(-1, false);
        ck_assert_ptr_null(s);
        ck_assert_int_eq(mem_live_blocks(), blocks);
    }
}
END_TEST

/* What is often passed by mistake is called by its name. */
START_TEST(read_recognises_mistakes)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    mistaken(lfs, sizeof lfs - 1, "a Git LFS pointer");
    mistaken("<!DOCTYPE html>\n<html>", 22, "an HTML page");
    mistaken("<!doctype html>\n<html>", 22, "an HTML page");
    mistaken("<html><head></head>", 19, "an HTML page");
    mistaken("PK\3\4\24\0\0\0\10\0\0\0\0\0\0\0", 16, "a zip archive");
    mistaken("GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16, "a GGUF file");
    mistaken("\200\2}q\0(X\1\0\0\0aq\1K\1u.", 18, "a Python pickle");
    mistaken("\200\4\225\14\0\0\0\0\0\0\0.", 12, "a Python pickle");
    mistaken("{\"weight_map\":{}}", 17, "bare JSON text");
    mistaken("{}", 2, "bare JSON text");
}
END_TEST

/* A good file whose length begins like a pickle or like '{' is not taken for one. */
START_TEST(read_good_files_are_not_mistaken)
{
    static const int lengths[] = {0x280, 0x380, 0x7b};
    for (size_t i = 0; i < 3; i++) {
        char text[1000];
        size_t size;
        sprintf(text, "%-*s", lengths[i], "{}");
        unsigned char *p = st_blob(text, 0, &size);
        fake_file_init(&file, p, size);
        ck_assert_int_eq(read_file(), 0);
        safetensors_free(s);
        file.st.size--;
        ck_assert_int_eq(read_file(), FP8D_EDATA_LOSS);
        ck_assert_ptr_nonnull(strstr(f.text, "ends at byte"));
        free(p);
    }
}
END_TEST

/* The limits given are obeyed; a refusal above them needs no memory for the header. */
START_TEST(read_obeys_limits)
{
    struct safetensors_limits limits = {.header_cap = 100};
    mem_fault_arm(0, false);
    ck_assert_int_eq(safetensors_read(&file.io, 7, &file.st, &limits, &s, &f),
                     FP8D_ERESOURCE_EXHAUSTED);
    ck_assert(!mem_fault_fired());
    ck_assert_ptr_nonnull(strstr(f.text, "needed at most 100"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ckpt/safetensors_read");
    TCase *c = tcase_create("read");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, read_short_reads);
    tcase_add_test(c, read_every_pread_fails_once);
    tcase_add_test(c, read_every_allocation_fails_once);
    tcase_add_test(c, read_memory_stays_short);
    tcase_add_test(c, read_recognises_mistakes);
    tcase_add_test(c, read_good_files_are_not_mistaken);
    tcase_add_test(c, read_obeys_limits);
    suite_add_tcase(suite, c);
    return run_suite(suite);
}
