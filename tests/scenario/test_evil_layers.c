/* Files that must not become layers (tests/data/evil_layers), saves cut short, and files that
 * change while they are read: each is refused with a sentence that names file, tensor, what was
 * found and what is needed, and a save of the served model is the same before and after. */
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture: a served model, what a save of it is, and its clients --- */

static struct io io;
static int touch_in; /* countdown to a pread before which the file changes; -1: never */
static int cut_in;   /* the same, and the file is cut to half */
static struct desk *D;
static struct ask A, B; /* who loads, who is served */
static struct blob before;

static int64_t wild_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    struct stat st;
    if (touch_in >= 0 && touch_in-- == 0)
        ck_assert_int_eq(futimens(fd, (struct timespec[]){{5, 0}, {5, 0}}), 0);
    if (cut_in >= 0 && cut_in-- == 0)
        ck_assert(fstat(fd, &st) == 0 && ftruncate(fd, st.st_size / 2) == 0);
    return io_posix.pread(self, fd, buf, len, off);
}

/* A layer "l" [16, 16] that has been trained, with a training copy. */
static struct blob small_file(void)
{
    struct stash s = {0};
    void *w = stash_draw(4, DTYPE_BF16, 256, 0.5);
    stash_put(&s, "l.weight", DTYPE_BF16, 2, 16, 16, w);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    free(w);
    return b;
}

static void bystander(float y[16 * 3], Fp8d__V1__Mode mode)
{
    float *x = draw_normal(9, 16 * 3, 1.0);
    struct desk_forward f = {
        .model = "m", .layer = "l", .mode = mode, .x = x, .tokens = 3, .in = 16, .out = 16, .y = y};
    ck_assert_msg(desk_forward(D, 2, &f, B.text) == 0, "%s", B.text);
    free(x);
}

static void start(void)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    io = io_posix;
    io.pread = wild_pread;
    touch_in = cut_in = -1;
    struct engine_options e = {.io = &io};
    struct blob b = small_file();
    D = desk_new(&e, 0);
    A = ask_open(D, 1);
    B = ask_open(D, 2);
    recipe.amax_history_len = 16;
    o.recipe = &recipe;
    ck_assert_msg(stash_load(&B, "m", &b, &o, NULL) == 0, "%s", B.text);
    bystander(NULL, FP8D__V1__MODE__MODE_TRAIN);
    bystander(NULL, FP8D__V1__MODE__MODE_CALIBRATE);
    before = stash_save(&B, "m");
    blob_free(&b);
}

static void stop(void)
{
    blob_free(&before);
    ask_close(&A);
    ask_close(&B);
    desk_free(D);
}

/* --- helpers --- */

static void check_untouched(const char *what)
{
    struct blob now = stash_save(&B, "m");
    ck_assert_msg(now.size == before.size && !memcmp(now.bytes, before.bytes, now.size),
                  "%s: the served model changed", what);
    blob_free(&now);
}

static void refused(const char *what, int fd, const Fp8d__V1__LoadOptions *o, const char *parts)
{
    unsigned code = stash_load_fd(&A, "m", fd, o, NULL);
    ck_assert_msg(code == INVALID_ARGUMENT || code == DATA_LOSS || code == ABORTED,
                  "%s: code %u, %s", what, code, A.text);
    served_says(what, A.text, "the-file");
    served_says(what, A.text, parts);
    check_untouched(what);
}

/* One line of the manifest, under options of every kind. */
static void replay(const char *folder, char *line, unsigned *good, unsigned *bad)
{
    char path[1024];
    Fp8d__V1__LoadOptions plain = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__LoadOptions o[3] = {plain, plain, plain};
    char *says = strchr(line, ' ');
    line[strcspn(line, "\n")] = 0;
    ck_assert_ptr_nonnull(says);
    *says++ = 0;
    o[1].primary_fp8 = true;
    o[2].dequantize = FP8D__V1__DTYPE__DTYPE_F32;
    (void)snprintf(path, sizeof path, "%s/%s", folder, line);
    for (unsigned i = 0; i < 3; i++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_msg(fd >= 0, "cannot open %s", path);
        if (!strcmp(says, "ok"))
            ck_assert_msg(stash_load_fd(&A, "n", fd, &o[i], NULL) == 0, "%s: %s", line, A.text);
        else
            refused(line, fd, &o[i], says);
    }
    *good += !strcmp(says, "ok");
    *bad += strcmp(says, "ok") != 0;
}

/* --- cases --- */

/* Each file of the collection, as it is, with primary_fp8 and with dequantize. */
START_TEST(evil_layers_of_the_collection)
{
    char folder[400], manifest[512], line[512];
    const char *src = getenv("FP8D_SRCDIR");
    unsigned good = 0, bad = 0;
    ck_assert_msg(src != NULL, "FP8D_SRCDIR is not set");
    (void)snprintf(folder, sizeof folder, "%s/tests/data/evil_layers", src);
    (void)snprintf(manifest, sizeof manifest, "%s/manifest.txt", folder);
    FILE *in = fopen(manifest, "r");
    ck_assert_msg(in != NULL, "cannot open %s", manifest);
    while (fgets(line, sizeof line, in))
        replay(folder, line, &good, &bad);
    (void)fclose(in);
    ck_assert_uint_ge(good, 12);
    ck_assert_uint_ge(bad, 130);
}
END_TEST

/* A save cut at every 97th byte and at every boundary of a tensor is refused. */
START_TEST(evil_layers_truncated_saves)
{
    struct safetensors_tensor t;
    struct blob cut = before;
    unsigned n = 0;
    for (cut.size = 0; cut.size < before.size; cut.size += 97, n++)
        refused("cut", blob_fd(&cut), NULL, "");
    (void)blob_tensor(&before, "l.fp8d.weight.counters", &t);
    for (cut.size = t.offset; cut.size < before.size; cut.size++)
        if ((cut.size - t.offset) % 256 == 0 || before.size - cut.size == 1)
            refused("cut at a boundary", blob_fd(&cut), NULL, "bytes of data, needed");
    ck_assert_uint_ge(n, 20);
}
END_TEST

/* The file is touched, or cut to half, before each of its reads: big tensors, factors and state. */
START_TEST(evil_layers_changed_while_read)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    int reads = 0;
    for (int cut = 0; cut < 2; cut++) {
        for (int at = 0; at < 18;
             at++) { /* length, header, model, 9 of sites, 3 of a copy, 2 big */
            touch_in = cut ? -1 : at;
            cut_in = cut ? at : -1;
            int fd = blob_fd(&before);
            int left = cut ? cut_in : touch_in;
            unsigned code = stash_load_fd(&A, "m", fd, &o, NULL);
            left = cut ? cut_in : touch_in;
            if (left >= 0) { /* never reached: the load had fewer reads */
                ck_assert_uint_eq(code, 0);
                reads = at;
                break;
            }
            ck_assert_msg(code == ABORTED || code == DATA_LOSS, "read %d: code %u, %s", at, code,
                          A.text);
            served_says("changed", A.text, "the-file");
            touch_in = cut_in = -1;
            check_untouched("changed");
        }
        touch_in = cut_in = -1;
        if (reads)
            break;
    }
    ck_assert_int_eq(reads, 17);
}
END_TEST

/* What is left out by globs need not be good. */
START_TEST(evil_layers_skipped_are_fine)
{
    struct stash s = {0};
    char *skip = (char *)(uintptr_t) "l";
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__LoadCommitReply *r;
    float nan = 0.0f / 0.0f;
    void *w = stash_draw(4, DTYPE_BF16, 256, 0.5);
    stash_from(&s, &before);
    stash_put(&s, "l.weight_scale", DTYPE_F32, 0, 1, 1, &nan);
    stash_drop(&s, "l.fp8d.input.scaling");
    stash_put(&s, "k.weight", DTYPE_BF16, 2, 16, 16, w);
    struct blob b = stash_blob(&s);
    o.n_skip = 1;
    o.skip = &skip;
    ck_assert_msg(stash_load(&A, "n", &b, &o, &r) == 0, "%s", A.text);
    ck_assert_uint_eq(r->report->layers, 1);
    ck_assert(stash_noted(r, "1 layers have no scaling state in the file"));
    stash_report_free(r);
    stash_free(&s);
    blob_free(&b);
    free(w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("evil_layers");
    TCase *c = tcase_create("evil_layers");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, evil_layers_of_the_collection);
    tcase_add_test(c, evil_layers_truncated_saves);
    tcase_add_test(c, evil_layers_changed_while_read);
    tcase_add_test(c, evil_layers_skipped_are_fine);
    suite_add_tcase(s, c);
    return run_suite(s);
}
