/* What a save holds of training, by hand: gradients that wait for a step, the optimizer's options,
 * count and moments. And how a model that is loaded from it goes on. */
#include "tests/scenario/gate.h"
#include "tests/scenario/stash.h"
#include "tests/scenario/steps.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

/* --- cases: what a file holds, by hand --- */

static Fp8d__V1__OptimizerOptions momentum(double rate, double factor)
{
    Fp8d__V1__OptimizerOptions o = sgd(rate);
    o.momentum = factor;
    return o;
}

/* Column 0 is c, all else 0. */
static void is_column(const struct blob *file, const char *name, float c)
{
    struct safetensors_tensor t;
    const float *x = blob_tensor(file, name, &t);
    ck_assert(t.dtype == DTYPE_F32 && t.rank == 2 && t.dims[0] == OUT && t.dims[1] == IN);
    for (int i = 0; i < OUT * IN; i++)
        ck_assert_msg(x[i] == (i % IN ? 0.0f : c), "%s[%d] is %g", name, i, (double)x[i]);
}

static void is_all(const struct blob *file, const char *name, float c)
{
    struct safetensors_tensor t;
    const float *x = blob_tensor(file, name, &t);
    ck_assert(t.dtype == DTYPE_F32 && t.rank == 1 && t.dims[0] == OUT);
    for (int i = 0; i < OUT; i++)
        ck_assert_msg(x[i] == c, "%s[%d] is %g", name, i, (double)x[i]);
}

/* Layer a: two microbatches and a step with momentum 0.5, then one more microbatch. Layer b is
 * frozen, and holds a gradient that no step takes. */
static struct blob half_trained(struct steps *f)
{
    Fp8d__V1__OptimizerOptions o = momentum(1.0, 0.5);
    Fp8d__V1__LayerOptions b = FP8D__V1__LAYER_OPTIONS__INIT, *layers = &b;
    char name[] = "b";
    steps_open(f);
    b.layer = name;
    b.frozen = true;
    ck_assert_msg(!ask_optimizer(&f->a, "m", &o, &layers, 1), "%s", f->a.text);
    microbatch(f, "a", 2.0f, 1.0f); /* 8 in column 0, 4 in the bias */
    microbatch(f, "a", 1.0f, 1.0f); /* 4 and 4 */
    step(f, 1, APPLIED);
    microbatch(f, "a", 0.5f, 2.0f); /* 4 and 8 */
    microbatch(f, "b", 2.0f, 1.0f);
    ck_assert(!ask_scope_end(&f->a, 1, true, NULL));
    return stash_save(&f->a, "m");
}

/* What the step left: a has moments 12 and 8, weights moved by as much, and the third microbatch's
 * gradient; b has its own only. */
START_TEST(training_file_by_hand)
{
    struct steps f;
    struct safetensors_tensor t;
    struct blob file = half_trained(&f);
    is_column(&file, "a.fp8d.optimizer.weight_m", 12.0f);
    is_all(&file, "a.fp8d.optimizer.bias_m", 8.0f);
    is_column(&file, "a.fp8d.gradient.weight", 4.0f);
    is_all(&file, "a.fp8d.gradient.bias", 8.0f);
    is_column(&file, "b.fp8d.gradient.weight", 8.0f);
    const uint64_t *n = blob_tensor(&file, "a.fp8d.gradient.counters", &t);
    ck_assert(t.dtype == DTYPE_U64 && t.rank == 1 && t.dims[0] == 2 && n[0] == 1 && n[1] == 0);
    const double *own = blob_tensor(&file, "b.fp8d.optimizer.options", &t);
    ck_assert(t.dtype == DTYPE_F64 && t.rank == 1 && t.dims[0] == 3);
    ck_assert(own[0] == 1.0 && own[1] == -1.0 && own[2] == -1.0);
    static const char *const absent[] = {
        "a.fp8d.optimizer.options",     "a.fp8d.optimizer.weight_master",
        "a.fp8d.optimizer.weight_v",    "a.fp8d.optimizer.bias_v",
        "a.fp8d.optimizer.bias_master", "b.fp8d.optimizer.weight_m",
        "b.fp8d.gradient.bias",         "a.fp8d.origin",
    };
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        ck_assert_msg(!blob_has(&file, absent[i]), "%s", absent[i]);
    struct stash s = {0};
    stash_from(&s, &file);
    size_t found = 0;
    for (size_t i = 0; i < s.meta_count; i++)
        if (!strcmp(s.meta[i].key, "fp8d_optimizer")) {
            found++;
            ck_assert_str_eq(s.meta[i].value,
                             "{\"kind\":\"sgd\",\"rate\":1,\"momentum\":0.5,\"dampening\":0,"
                             "\"beta1\":0,\"beta2\":0,\"eps\":0,\"weight_decay\":0,"
                             "\"nesterov\":false,\"steps\":1,\"updates\":1}");
        }
    ck_assert_uint_eq(found, 1);
    stash_free(&s);
    blob_free(&file);
    steps_close(&f);
}
END_TEST

/* In another daemon: the report says so, a retry of step 1 moves nothing, and step 2 moves a by
 * -(0.5 * 12 + 4) = -10 and its bias by -(0.5 * 8 + 8) = -12, but b, which is frozen, not at all.
 */
START_TEST(training_goes_on_by_hand)
{
    struct steps f;
    Fp8d__V1__LoadCommitReply *report;
    struct blob file = half_trained(&f);
    struct steps g = {.desk = desk_new(NULL, 0)};
    memcpy(g.w, f.w, sizeof g.w);
    memcpy(g.bias, f.bias, sizeof g.bias);
    g.a = ask_open(g.desk, 1);
    ck_assert_msg(!stash_load(&g.a, "m", &file, NULL, &report), "%s", g.a.text);
    ck_assert(stash_noted(report, "optimizer sgd goes on after step 1"));
    ck_assert(stash_noted(report, "gradients of 2 layers wait for a step"));
    stash_report_free(report);
    ck_assert(!ask_scope_begin(&g.a, 1, "m"));
    moved_by(&g, "a", -12.0f, -8.0f);
    step(&g, 1, REPEATED);
    moved_by(&g, "a", -12.0f, -8.0f);
    step(&g, 2, APPLIED);
    moved_by(&g, "a", -22.0f, -20.0f);
    moved_by(&g, "b", 0.0f, 0.0f);
    blob_free(&file);
    steps_close(&g);
    steps_close(&f);
}
END_TEST

/* no_optimizer: on saving, and on loading a file that has it. Training begins anew. */
START_TEST(training_can_be_left_out)
{
    struct steps f;
    Fp8d__V1__LoadCommitReply *report;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct blob whole = half_trained(&f), without = stash_save_weights(&f.a, "m");
    ck_assert(!blob_has(&without, "a.fp8d.optimizer.weight_m"));
    ck_assert(!blob_has(&without, "a.fp8d.gradient.weight"));
    ck_assert(!blob_has(&without, "b.fp8d.optimizer.options"));
    o.no_optimizer = true;
    ck_assert_msg(!stash_load(&f.a, "n", &whole, &o, &report), "%s", f.a.text);
    ck_assert(stash_noted(report, "optimizer and gradients of the file were left out"));
    stash_report_free(report);
    struct blob n = stash_save(&f.a, "n");
    blob_equal(&without, &n);
    struct ask_step s = {.step = 1};
    ck_assert(ask_step(&f.a, "n", &s));
    ck_assert_msg(strstr(f.a.text, "model n has no optimizer"), "%s", f.a.text);
    ck_assert_msg(!stash_load(&f.a, "n", &without, NULL, &report), "%s", f.a.text);
    ck_assert_uint_eq(report->report->n_notes, 0);
    stash_report_free(report);
    blob_free(&n);
    blob_free(&whole);
    blob_free(&without);
    steps_close(&f);
}
END_TEST

/* A backward beside a save that has begun adds elsewhere: the file has the gradient of before. */
START_TEST(training_saved_beside_a_backward)
{
    struct steps f;
    struct ask_gradient g;
    struct engine_options o = gate_options();
    steps_open_with(&f, &o);
    microbatch(&f, "a", 2.0f, 1.0f);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    gate_close();
    struct stash_saving w = stash_save_sent(f.desk, 2, "m");
    ck_assert(!ask_scope_begin(&f.a, 1, "m"));
    microbatch(&f, "a", 1.0f, 1.0f);
    step(&f, 1, APPLIED);
    microbatch(&f, "a", 0.5f, 1.0f);
    gate_open();
    struct blob file = stash_saved(&w);
    is_column(&file, "a.fp8d.gradient.weight", 8.0f);
    is_all(&file, "a.fp8d.gradient.bias", 4.0f);
    ck_assert(!ask_gradient(&f.a, "m", "a", false, &g));
    ck_assert(g.data[0] == 2.0f && g.contributions == 1);
    free(g.data);
    moved_by(&f, "a", -12.0f, -8.0f);
    blob_free(&file);
    steps_close(&f);
}
END_TEST

/* A step beside a save moves weight, bias and moments elsewhere. */
START_TEST(training_saved_beside_a_step)
{
    struct steps f;
    Fp8d__V1__OptimizerOptions o = momentum(1.0, 0.5);
    struct engine_options gated = gate_options();
    steps_open_with(&f, &gated);
    ck_assert_msg(!ask_optimizer(&f.a, "m", &o, NULL, 0), "%s", f.a.text);
    microbatch(&f, "a", 2.0f, 1.0f);
    step(&f, 1, APPLIED);
    microbatch(&f, "a", 2.0f, 1.0f);
    ck_assert(!ask_scope_end(&f.a, 1, true, NULL));
    gate_close();
    struct stash_saving w = stash_save_sent(f.desk, 2, "m");
    step(&f, 2, APPLIED); /* 0.5 * 8 + 8 = 12 */
    gate_open();
    struct blob file = stash_saved(&w);
    is_column(&file, "a.fp8d.optimizer.weight_m", 8.0f);
    is_all(&file, "a.fp8d.optimizer.bias_m", 4.0f);
    const float *weight = blob_tensor(&file, "a.weight", NULL),
                *bias = blob_tensor(&file, "a.bias", NULL);
    for (int i = 0; i < OUT * IN; i++)
        ck_assert(weight[i] == f.w[i] - (i % IN ? 0.0f : 8.0f));
    for (int i = 0; i < OUT; i++)
        ck_assert(bias[i] == f.bias[i] - 4.0f);
    blob_free(&file);
    file = stash_save(&f.a, "m");
    is_column(&file, "a.fp8d.optimizer.weight_m", 12.0f);
    is_all(&file, "a.fp8d.optimizer.bias_m", 6.0f);
    blob_free(&file);
    moved_by(&f, "a", -20.0f, -10.0f);
    steps_close(&f);
}
END_TEST

/* A file whose counts are the last that a save can hold: what would count on is refused, and the
 * save stays the same, and readable. A retry of the step is no new one. */
START_TEST(training_counts_end)
{
    static float zeros[OUT * IN];
    struct ask_tensor w = ask_f32(zeros, OUT, IN);
    struct ask_step next = {.step = 2};
    struct steps f;
    struct stash s = {0};
    struct blob file = half_trained(&f);
    stash_from(&s, &file);
    ((uint64_t *)(void *)stash_find(&s, "fp8d.model")->data)[1] = INT64_MAX;
    struct blob last = stash_blob(&s);
    ck_assert_msg(!stash_load(&f.a, "n", &last, NULL, NULL), "%s", f.a.text);
    struct blob before = stash_save(&f.a, "n");
    ck_assert_uint_eq(ask_step(&f.a, "n", &next), ASK_FAILED_PRECONDITION);
    ck_assert_msg(strstr(f.a.text, "weight_version 9223372036854775807 and 1 steps, needed less "
                                   "than 2^62") != NULL,
                  "%s", f.a.text);
    ck_assert_uint_eq(ask_edit(&f.a, "n", "a", &w, NULL, NULL, NULL), ASK_FAILED_PRECONDITION);
    ck_assert_uint_eq(stash_load(&f.a, "n", &file, NULL, NULL), ASK_FAILED_PRECONDITION);
    next.step = 1;
    ck_assert_msg(!ask_step(&f.a, "n", &next), "%s", f.a.text);
    ask_step_free(&next);
    struct blob after = stash_save(&f.a, "n");
    blob_equal(&before, &after);
    ck_assert_msg(!stash_load(&f.a, "o", &after, NULL, NULL), "%s", f.a.text);
    stash_free(&s);
    blob_free(&file);
    blob_free(&last);
    blob_free(&before);
    blob_free(&after);
    steps_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("training_file");
    TCase *c = tcase_create("training_file");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, training_file_by_hand);
    tcase_add_test(c, training_goes_on_by_hand);
    tcase_add_test(c, training_can_be_left_out);
    tcase_add_test(c, training_saved_beside_a_backward);
    tcase_add_test(c, training_saved_beside_a_step);
    tcase_add_test(c, training_counts_end);
    suite_add_tcase(s, c);
    return run_suite(s);
}
