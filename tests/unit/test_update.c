/* update.c and its relatives: what the front functions of a training step refuse, and the sentence
 * that names the field. */
#include "tests/unit/run.h"
#include "tests/unit/weights.h"

#include <math.h>

/* --- fixture: an Adam step of [4, 8] that is well, and what it is changed from --- */

static struct rig rig, other;
static struct weights w;
static struct optimizer_options adam;
static struct update good;
static struct cast cast;

static void setup(void)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 1, true);
    rig_open(&other, CPU_LEVEL_AUTO, 1, true);
    w = weights_new(&rig, 4, 8, DTYPE_BF16, 0);
    memset(weights_data(&w.master), 0, weights_bytes(&w.master));
    memset(weights_data(&w.grad), 0, weights_bytes(&w.grad));
    adam = optimizer_default(OPTIMIZER_ADAM);
    good = weights_update(&w, &adam, 1, 1.0f);
    cast =
        (struct cast){.fmt = DTYPE_F8_E4M3, .mode = CAST_SITE, .site = w.site, .report = w.report};
}

static void teardown(void)
{
    rig_wait(&rig);
    weights_free(&w);
    rig_close(&other);
    rig_close(&rig);
}

/* --- helpers --- */

static void says(int rc, const char *sentence)
{
    ck_assert_int_eq(rc, FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(rig.f.text, sentence) != NULL, "\"%s\" is not in \"%s\"", sentence,
                  rig.f.text);
}

/* With the cast and without it. */
static void refused(const struct update *u, const char *sentence)
{
    struct qtensor *t = NULL;
    says(backend_update(rig.q, u, &rig.f), sentence);
    says(qtensor_update(rig.q, NULL, u, &cast, "w", &t, &rig.f), sentence);
    ck_assert_ptr_null(t);
}

static void cast_refused(const struct cast *c, const char *sentence)
{
    struct qtensor *t = NULL;
    says(qtensor_update(rig.q, NULL, &good, c, "w", &t, &rig.f), sentence);
    ck_assert_ptr_null(t);
}

static void options_refused(struct optimizer_options o, const char *sentence)
{
    says(optimizer_check(&o, &rig.f), sentence);
    good.options = o;
    refused(&good, sentence);
}

/* --- cases --- */

/* The fixture passes, so that what is refused below is refused for its one fault. */
START_TEST(update_accepts_good_ones)
{
    struct qtensor *t = NULL;
    ck_assert_int_eq(backend_update(rig.q, &good, &rig.f), 0);
    ck_assert_int_eq(qtensor_update(rig.q, NULL, &good, &cast, "w", &t, &rig.f), 0);
    rig_wait(&rig);
    qtensor_unref(t);
    good.stored.buf = NULL;
    ck_assert_int_eq(backend_update(rig.q, &good, &rig.f), 0);
    good.round_to = DTYPE_NONE;
    good.grad_scale = 0.0f;
    ck_assert_int_eq(backend_update(rig.q, &good, &rig.f), 0);
}
END_TEST

/* PyTorch's defaults pass, and keep 0, 1 or 2 moments. */
START_TEST(update_defaults)
{
    struct optimizer_options sgd = optimizer_default(OPTIMIZER_SGD);
    struct optimizer_options adamw = optimizer_default(OPTIMIZER_ADAMW);
    ck_assert_int_eq(optimizer_check(&sgd, &rig.f), 0);
    ck_assert_int_eq(optimizer_check(&adam, &rig.f), 0);
    ck_assert_int_eq(optimizer_check(&adamw, &rig.f), 0);
    ck_assert(adam.beta1 == 0.9 && adam.beta2 == 0.999 && adam.eps == 1e-8);
    ck_assert(adam.weight_decay == 0.0 && adamw.weight_decay == 0.01 && adamw.rate == 1e-3);
    ck_assert_uint_eq(optimizer_moments(&sgd), 0);
    sgd.momentum = 0.9;
    ck_assert_uint_eq(optimizer_moments(&sgd), 1);
    ck_assert_uint_eq(optimizer_moments(&adam), 2);
    ck_assert_uint_eq(optimizer_moments(&adamw), 2);
}
END_TEST

#define WITH(change)                                                                               \
    __extension__({                                                                                \
        struct optimizer_options o = adam;                                                         \
        o.change;                                                                                  \
        o;                                                                                         \
    })

/* Options outside their range, by name. */
START_TEST(update_refuses_options)
{
    options_refused(WITH(kind = 0), "options.kind is 0, needed 1 (sgd), 2 (adam) or 3 (adamw)");
    options_refused(WITH(rate = -1.0),
                    "options.rate is -1, needed a finite float32 of at least 0");
    options_refused(WITH(rate = 1e39), "options.rate is 1e+39");
    options_refused(WITH(rate = (double)NAN), "options.rate is nan");
    options_refused(WITH(momentum = -0.1), "options.momentum is -0.1");
    options_refused(WITH(dampening = 1.5), "options.dampening is 1.5, needed 0 to 1");
    options_refused(WITH(beta1 = 1.0), "options.beta1 is 1, needed at least 0 and below 1");
    options_refused(WITH(beta2 = -0.5), "options.beta2 is -0.5");
    options_refused(WITH(eps = (double)INFINITY), "options.eps is inf");
    options_refused(WITH(weight_decay = -1e-9), "options.weight_decay is -1e-09");
    options_refused(WITH(nesterov = true), "options.nesterov is set, needed unset for kind 2");
}
END_TEST

/* Nesterov's momentum needs a momentum and no dampening, as in PyTorch. */
START_TEST(update_refuses_nesterov)
{
    struct optimizer_options o = optimizer_default(OPTIMIZER_SGD);
    o.nesterov = true;
    says(optimizer_check(&o, &rig.f), "options.momentum is 0, needed above 0 with nesterov");
    o.momentum = 0.9;
    ck_assert_int_eq(optimizer_check(&o, &rig.f), 0);
    o.dampening = 0.1;
    says(optimizer_check(&o, &rig.f), "options.dampening is 0.1, needed 0 with nesterov");
}
END_TEST

/* The number of the step, and the scale of the gradient. */
START_TEST(update_refuses_step_and_scale)
{
    struct update u = good;
    u.step = 0;
    refused(&u, "update.step is 0, needed at least 1");
    u = good;
    u.grad_scale = -1.0f;
    refused(&u, "update.grad_scale is -1, needed finite and at least 0");
    u.grad_scale = (float)INFINITY;
    refused(&u, "update.grad_scale is inf");
    u.grad_scale = (float)NAN;
    refused(&u, "update.grad_scale is nan");
}
END_TEST

/* Shapes, dtypes, and moments that a kind does or does not keep. */
START_TEST(update_refuses_tensors)
{
    struct update u = good;
    u.grad.dtype = DTYPE_BF16;
    refused(&u, "update.grad.dtype is BF16, needed F32");
    u = good;
    u.m.rows = 3;
    refused(&u, "update.m.rows is 3, needed 4");
    u = good;
    u.v.cols = 7;
    refused(&u, "update.v.cols is 7, needed 8");
    u = good;
    u.v.buf = NULL;
    refused(&u, "update.v has no buffer");
    u = good;
    u.master.buf = NULL;
    refused(&u, "update.master has no buffer");
    u = good;
    u.options = optimizer_default(OPTIMIZER_SGD);
    refused(&u, "update.m has a buffer, needed none");
    u = good;
    u.round_to = DTYPE_F16;
    refused(&u, "update.stored.dtype is BF16, needed F16");
    u.round_to = DTYPE_F8_E4M3;
    refused(&u, "update.round_to is F8_E4M3, needed F32, BF16, F16 or none");
    u = good;
    u.stored.rows = 2;
    refused(&u, "update.stored.rows is 2, needed 4");
}
END_TEST

/* Tensors that share bytes, and memory of another backend. */
START_TEST(update_refuses_overlap)
{
    struct update u = good;
    u.grad = u.master;
    refused(&u, "update.grad overlaps update.master");
    u = good;
    u.v.buf = u.m.buf;
    u.v.offset = u.m.offset + 4;
    refused(&u, "update.v overlaps update.m");
    u = good;
    u.stored.buf = u.master.buf;
    u.stored.offset = u.master.offset + 4 * 31; /* the last element */
    refused(&u, "update.stored overlaps update.master");
    u.stored.offset += 4; /* right behind it, in the guard */
    ck_assert_int_eq(backend_update(rig.q, &u, &rig.f), 0);
    rig_wait(&rig);
    memset((char *)weights_data(&w.master) + 4 * 32, GUARD_BYTE, 2 * 32);
    u = good;
    u.m.buf = rig_buffer(&other, 1024, NULL);
    refused(&u, "update.m is memory of another backend");
    buffer_unref(u.m.buf);
}
END_TEST

/* The cast that goes with a step. */
START_TEST(update_refuses_casts)
{
    struct cast c = cast;
    c.mode = CAST_TENSOR;
    cast_refused(&c, "cast.mode is 3, needed 1 (site)");
    c = cast;
    c.site = NULL;
    cast_refused(&c, "cast.site is missing");
    c = cast;
    c.report = NULL;
    cast_refused(&c, "cast.report is missing");
    c = cast;
    c.fmt = DTYPE_F32;
    cast_refused(&c, "cast.fmt is F32, needed F8_E4M3 or F8_E5M2");
    c = cast;
    c.sums = w.grad;
    cast_refused(&c, "cast.sums has a buffer, needed none for the cast of an update");
}
END_TEST

/* Column sums of a cast: one row of float32 as wide as the source, apart from it. */
START_TEST(update_refuses_sums)
{
    struct qtensor *t = NULL;
    struct cast c = cast;
    c.src = w.grad;
    c.sums = w.m;
    says(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.sums.rows is 4, needed 1");
    c.sums.rows = 1;
    c.sums.cols = 7;
    says(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.sums.cols is 7, needed 8");
    c.sums = w.stored;
    c.sums.rows = 1;
    says(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.sums.dtype is BF16, needed F32");
    c.sums = w.grad;
    c.sums.rows = 1;
    says(qtensor_cast(rig.q, NULL, &c, "x", &t, &rig.f), "cast.sums overlaps cast.src");
    ck_assert_ptr_null(t);
}
END_TEST

/* A norm of something, told somewhere. */
START_TEST(update_refuses_norms)
{
    struct norm_report *report = (struct norm_report *)w.report;
    struct tensor x = w.grad;
    says(backend_norm(rig.q, &x, NULL, &rig.f), "norm.report is missing");
    says(backend_norm(rig.q, &x, (struct norm_report *)(void *)((char *)report + 4), &rig.f),
         "norm.report is 4 bytes behind a multiple of 8, needed 0");
    x.dtype = DTYPE_F8_E4M3;
    says(backend_norm(rig.q, &x, report, &rig.f), "norm.tensor.dtype is F8_E4M3");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("update");
    TCase *c = tcase_create("refused");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, update_accepts_good_ones);
    tcase_add_test(c, update_defaults);
    tcase_add_test(c, update_refuses_options);
    tcase_add_test(c, update_refuses_nesterov);
    tcase_add_test(c, update_refuses_step_and_scale);
    tcase_add_test(c, update_refuses_tensors);
    tcase_add_test(c, update_refuses_overlap);
    tcase_add_test(c, update_refuses_casts);
    tcase_add_test(c, update_refuses_sums);
    tcase_add_test(c, update_refuses_norms);
    suite_add_tcase(s, c);
    return run_suite(s);
}
