/* The stored saves of every key scheme: what users have on their disks gives what it always gave.
 */
#include "tests/oracle/codes.h"
#include "tests/scenario/bound.h"
#include "tests/scenario/stash.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- fixture --- */

static struct desk *D;
static struct ask A;

static void start(void)
{
    D = desk_new(NULL, 0);
    A = ask_open(D, 1);
}

static void stop(void)
{
    ask_close(&A);
    desk_free(D);
}

/* --- helpers --- */

static struct blob stored(const char *name)
{
    char path[512];
    const char *src = getenv("FP8D_SRCDIR");
    ck_assert_msg(src != NULL, "FP8D_SRCDIR is not set");
    (void)snprintf(path, sizeof path, "%s/tests/data/saves/%s", src, name);
    return blob_read(path);
}

/* The largest |weight| of a layer in a file, BF16 or E4M3. */
static double largest(const struct blob *file, const char *layer)
{
    char name[64], factor[80];
    struct safetensors_tensor t;
    double most = 0;
    float unit = 1;
    (void)snprintf(name, sizeof name, "%s.weight", layer);
    (void)snprintf(factor, sizeof factor, "%s_scale", name);
    const unsigned char *w = blob_tensor(file, name, &t);
    if (t.dtype == DTYPE_F8_E4M3)
        memcpy(&unit, blob_tensor(file, factor, NULL), sizeof unit);
    for (uint64_t i = 0; i < t.dims[0] * t.dims[1]; i++)
        most = fmax(most, fabs(t.dtype == DTYPE_F8_E4M3
                                   ? fp8_value(w[i], false)
                                   : half_value(((const uint16_t *)(const void *)w)[i], true)));
    return most * (double)unit;
}

/* To the bit on the CPU, whose order of summation the oracle has. On a GPU within the bound: no
 * product is above |x| times the largest weight, each and 1/16 of it by its cast (2^-10 for a
 * weight among the subnormals at scale 1). */
static void compare(const struct desk_forward *f, const float *got, const float *want,
                    double weight, const char *what)
{
    struct bound b = bound_new(f->in, f->tokens * f->out);
    for (size_t i = 0; i < b.count; i++) {
        double magnitude = 0;
        for (size_t k = 0; k < f->in; k++)
            magnitude +=
                fabs((double)f->x[i / f->out * f->in + k]) * 17 / 16 * (weight * 17 / 16 + 0x1p-10);
        b.want[i] = (double)want[i];
        b.cut[i] = cut_at_most(f->in, magnitude);
    }
    if (rig_cuda())
        bound_check(&b, got);
    else
        ck_assert_msg(!memcmp(got, want, b.count * sizeof *got), "%s differs from the oracle's",
                      what);
    bound_free(&b);
}

static void gives(const struct blob *file, const struct blob *want, const char *layer,
                  const char *input, const char *output, Fp8d__V1__Mode mode,
                  Fp8d__V1__FirstMicrobatch first)
{
    struct safetensors_tensor x, y;
    float got[4 * 48];
    struct desk_forward f = {.model = "s", .layer = layer, .mode = mode, .first = first, .y = got};
    float *in = malloc(4 * 48 * sizeof *in);
    const void *bytes = blob_tensor(want, input, &x), *out = blob_tensor(want, output, &y);
    memcpy(in, bytes, x.bytes);
    f.x = in;
    f.tokens = x.dims[0];
    f.in = x.dims[1];
    f.out = y.dims[1];
    ck_assert_msg(desk_forward(D, 1, &f, A.text) == 0, "%s: %s", output, A.text);
    compare(&f, got, out, largest(file, layer), output);
    free(in);
}

/* --- cases --- */

/* Key scheme 1, as the first fp8d wrote it: outputs to the bit by tests/oracle/save_v1.py, and a
 * save of it is the file. */
START_TEST(stored_v1)
{
    const Fp8d__V1__Mode eval = FP8D__V1__MODE__MODE_EVAL;
    struct blob file = stored("v1-small.safetensors"),
                want = stored("v1-small.expected.safetensors");
    Fp8d__V1__LoadCommitReply *r = NULL;
    ck_assert_msg(stash_load(&A, "s", &file, NULL, &r) == 0, "%s", A.text);
    ck_assert_uint_eq(r->report->layers, 3);
    ck_assert(stash_noted(r, "calibration unfinished"));
    ck_assert(r->report->recipe->amax_history_len == 6 && r->report->recipe->margin == 1);
    ck_assert(r->report->recipe->fprop_accumulation ==
              FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_FAST); /* the file does not say */
    stash_report_free(r);
    struct blob again = stash_save(&A, "s");
    blob_equal(&file, &again);
    gives(&file, &want, "blocks.0.up", "x32", "up.eval", eval, 0);
    gives(&file, &want, "blocks.0.down", "x48", "down.eval", eval, 0);
    gives(&file, &want, "head", "x48", "head.eval", eval, 0);
    gives(&file, &want, "blocks.0.up", "x32", "up.train_false", FP8D__V1__MODE__MODE_TRAIN,
          FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO);
    ck_assert_uint_eq(ask_finish(&A, "s", NULL), 0);
    gives(&file, &want, "blocks.0.down", "x48", "down.finished", eval, 0);
    blob_free(&file);
    blob_free(&want);
    blob_free(&again);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stored");
    TCase *c = tcase_create("stored");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, stored_v1);
    suite_add_tcase(s, c);
    return run_suite(s);
}
