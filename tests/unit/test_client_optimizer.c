/* Optimizers and steps: requests as a server sees them, replies as structs, and replies that are
 * refused. */
#include "client/convert.h"

#include "base/mem.h"
#include "tests/unit/fake_keep.h"
#include "tests/unit/run.h"

#include <errno.h>

/* --- helpers --- */

/* Parse message m as a reply to `type` without payload. */
static int parse(uint16_t type, const void *m, struct fp8d_result **out, struct fault *f)
{
    unsigned char meta[2048];
    size_t len = protobuf_c_message_get_packed_size(m);
    ck_assert_uint_le(len, sizeof meta);
    protobuf_c_message_pack(m, meta);
    *f = (struct fault){0};
    *out = NULL;
    return result_parse(type, meta, len, 0, out, f);
}

static struct fp8d_result *good(uint16_t type, const void *m)
{
    struct fp8d_result *r;
    struct fault f;
    ck_assert_msg(parse(type, m, &r, &f) == 0, "%s", f.text);
    return r;
}

static void refused(uint16_t type, const void *m, const char *words)
{
    struct fp8d_result *r;
    struct fault f;
    ck_assert_msg(parse(type, m, &r, &f) == FP8D_EPROTOCOL, "needed: %s", words);
    ck_assert_msg(strstr(f.text, words) != NULL, "'%s', needed: %s", f.text, words);
    ck_assert_ptr_null(r);
}

/* A StepReply with up to two problems. */
struct reply {
    Fp8d__V1__StepReply m;
    Fp8d__V1__StepProblem problem[2], *list[2];
};

static void reply_init(struct reply *s, int outcome, size_t problems)
{
    fp8d__v1__step_reply__init(&s->m);
    for (int i = 0; i < 2; i++) {
        fp8d__v1__step_problem__init(&s->problem[i]);
        s->problem[i].layer = (char *)(uintptr_t)(i ? "b/x" : "a");
        s->problem[i].tensor = (char *)(uintptr_t)(i ? "grad_output" : "weight");
        s->problem[i].nonfinite = 7 + (uint64_t)i;
        s->list[i] = &s->problem[i];
    }
    s->m.outcome = (Fp8d__V1__StepOutcome)outcome;
    s->m.step = 4;
    s->m.n_problems = problems;
    s->m.problems = s->list;
    s->m.problems_total = (uint32_t)problems;
}

/* --- cases: requests --- */

/* SetOptimizer: every option, every layer's own, the expectation, the head. */
START_TEST(test_optimizer_request)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_expect expect = {4, 5};
    struct fp8d_optimizer o = {.kind = FP8D_OPTIMIZER_ADAMW,
                               .rate = 0.5,
                               .momentum = 0.25,
                               .dampening = 0.125,
                               .beta1 = 0.75,
                               .beta2 = 0.875,
                               .eps = 1e-300,
                               .weight_decay = 2};
    struct fp8d_layer_options layers[] = {{.layer = "l/x", .rate = 3, .weight_decay = 4},
                                          {.layer = "l/y", .frozen = true},
                                          {.layer = "l/z", .weight_decay_set = true}};
    KEPT(fp8d_set_optimizer(b.c, "m", &o, layers, 3, &expect, &some_call, NULL, &err));
    Fp8d__V1__SetOptimizerRequest *m = SEEN(set_optimizer);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 43);
    ck_assert_str_eq(m->model, "m");
    ck_assert(m->expect->incarnation == 4 && m->expect->weight_version == 5);
    const Fp8d__V1__OptimizerOptions *p = m->options;
    ck_assert_int_eq(p->kind, FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAMW);
    ck_assert(p->rate == 0.5 && p->momentum == 0.25 && p->dampening == 0.125 && p->beta1 == 0.75);
    ck_assert(p->beta2 == 0.875 && p->eps == 1e-300 && p->weight_decay == 2);
    ck_assert(!p->nesterov && !p->weight_decay_set);
    ck_assert_uint_eq(m->n_layers, 3);
    ck_assert_str_eq(m->layers[0]->layer, "l/x");
    ck_assert(m->layers[0]->rate == 3 && m->layers[0]->weight_decay == 4);
    ck_assert(!m->layers[0]->frozen && !m->layers[0]->weight_decay_set);
    ck_assert_str_eq(m->layers[1]->layer, "l/y");
    ck_assert(m->layers[1]->frozen && m->layers[1]->rate == 0);
    ck_assert_str_eq(m->layers[2]->layer, "l/z");
    ck_assert(m->layers[2]->weight_decay_set && !m->layers[2]->frozen);
    FREE(set_optimizer, m);
    fake_end(b);
}
END_TEST

/* The kinds have the wire's numbers, flags are their own, and what is not said is not sent. */
START_TEST(test_optimizer_request_less)
{
    static const Fp8d__V1__OptimizerKind want[] = {
        FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_UNSPECIFIED,
        FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_SGD, FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM,
        FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAMW};
    static const enum fp8d_optimizer_kind kinds[] = {
        (enum fp8d_optimizer_kind)0, FP8D_OPTIMIZER_SGD, FP8D_OPTIMIZER_ADAM, FP8D_OPTIMIZER_ADAMW};
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    for (int i = 0; i < 4; i++) {
        struct fp8d_optimizer o = {
            .kind = kinds[i], .nesterov = i == 1, .weight_decay_set = i == 2};
        KEPT(fp8d_set_optimizer(b.c, NULL, &o, NULL, 0, NULL, NULL, NULL, &err));
        Fp8d__V1__SetOptimizerRequest *m = SEEN(set_optimizer);
        ck_assert_str_eq(m->model, "");
        ck_assert_int_eq(m->options->kind, want[i]);
        ck_assert_int_eq(m->options->nesterov, i == 1);
        ck_assert_int_eq(m->options->weight_decay_set, i == 2);
        ck_assert(m->options->rate == 0 && m->n_layers == 0 && !m->expect);
        FREE(set_optimizer, m);
    }
    fake_end(b);
}
END_TEST

/* More layers than a request may have are refused here; nothing goes out. */
START_TEST(test_optimizer_request_refused)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_optimizer o = {.kind = FP8D_OPTIMIZER_SGD};
    seen = (struct seen){0};
    ck_assert_int_eq(fp8d_set_optimizer(b.c, "m", &o, NULL, 4097, NULL, NULL, NULL, &err),
                     FP8D_EINVALID_ARGUMENT);
    ck_assert_str_eq(err.text, "layers has 4097 entries, needed at most 4096");
    ck_assert_uint_eq(seen.type, 0);
    fake_end(b);
}
END_TEST

/* A request for which memory is short is an error of the call, whichever allocation it is. */
START_TEST(test_optimizer_memory)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_optimizer o = {.kind = FP8D_OPTIMIZER_SGD};
    struct fp8d_layer_options layer = {.layer = "l"};
    seen = (struct seen){0};
    for (int64_t n = 0; n < 2; n++) {
        mem_fault_arm(n, false);
        int rc = fp8d_set_optimizer(b.c, "m", &o, &layer, 1, NULL, NULL, NULL, &err);
        mem_fault_arm(-1, false);
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_str_eq(err.text, "no memory for the options of 1 layers");
        ck_assert_uint_eq(seen.type, 0);
    }
    KEPT(fp8d_set_optimizer(b.c, "m", &o, &layer, 1, NULL, NULL, NULL, &err));
    fake_end(b);
}
END_TEST

/* Step: each number its own, also sent ahead. */
START_TEST(test_step_request)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_step q = {
        .model = "m", .step = UINT64_MAX, .loss_scale = 65536, .max_norm = 0.1, .expect = {4, 5},
        .time_compute = true};
    uint64_t id;
    ck_assert_int_eq(fp8d_submit_step(b.c, &q, &some_call, &id, &err), 0);
    KEPT(fp8d_wait(b.c, id, NULL, &err));
    Fp8d__V1__StepRequest *m = SEEN(step);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 44);
    ck_assert_str_eq(m->model, "m");
    ck_assert_uint_eq(m->step, UINT64_MAX);
    ck_assert(m->loss_scale == 65536 && m->max_norm == 0.1 && m->time_compute);
    ck_assert(m->expect->incarnation == 4 && m->expect->weight_version == 5);
    FREE(step, m);
    KEPT(fp8d_step(b.c, &(struct fp8d_step){.model = "m", .step = 1}, NULL, NULL, &err));
    m = SEEN(step);
    ck_assert(m->step == 1 && m->loss_scale == 0 && m->max_norm == 0 && !m->time_compute && !m->expect);
    FREE(step, m);
    fake_end(b);
}
END_TEST

/* --- cases: replies --- */

START_TEST(test_optimizer_reply)
{
    Fp8d__V1__SetOptimizerReply m = FP8D__V1__SET_OPTIMIZER_REPLY__INIT;
    m.step = UINT64_MAX;
    m.updates = 8;
    struct fp8d_result *r = good(REQUEST_SET_OPTIMIZER, &m);
    ck_assert(fp8d_result_optimizer_set(r)->step == UINT64_MAX);
    ck_assert_uint_eq(fp8d_result_optimizer_set(r)->updates, 8);
    ck_assert_ptr_null(fp8d_result_step(r));
    fp8d_result_free(r);
    m.step = 0;
    refused(REQUEST_SET_OPTIMIZER, &m, "field step is 0, needed the next step's number");
}
END_TEST

/* DescribeModel: the optimizer in force, and what layers have of their own or hold; or nothing. */
START_TEST(test_optimizer_described)
{
    Fp8d__V1__DescribeModelReply m = FP8D__V1__DESCRIBE_MODEL_REPLY__INIT;
    Fp8d__V1__ModelInfo info = FP8D__V1__MODEL_INFO__INIT;
    Fp8d__V1__OptimizerInfo set = FP8D__V1__OPTIMIZER_INFO__INIT;
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    Fp8d__V1__LayerInfo layer[2] = {FP8D__V1__LAYER_INFO__INIT, FP8D__V1__LAYER_INFO__INIT};
    Fp8d__V1__LayerInfo *layers[2] = {&layer[0], &layer[1]};
    Fp8d__V1__LayerOptions own = FP8D__V1__LAYER_OPTIONS__INIT;
    m.model = &info;
    m.layers = layers;
    m.n_layers = 2;
    struct fp8d_result *r = good(REQUEST_DESCRIBE_MODEL, &m);
    const struct fp8d_description *d = fp8d_result_description(r);
    ck_assert(!d->optimizer && !d->next_step && !d->updates);
    ck_assert(!d->layers[0].optimizer && !d->layers[0].gradients);
    fp8d_result_free(r);
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAMW;
    o.rate = 1, o.momentum = 2, o.dampening = 3, o.beta1 = 4, o.beta2 = 5, o.eps = 6;
    o.weight_decay = 7;
    o.nesterov = o.weight_decay_set = true;
    set.step = UINT64_MAX;
    set.updates = 8;
    own.layer = (char *)(uintptr_t) "b/x";
    own.rate = 9, own.weight_decay = 10;
    own.frozen = true;
    layer[1].optimizer = &own;
    layer[1].gradients = 11;
    info.optimizer = &set;
    refused(REQUEST_DESCRIBE_MODEL, &m, "field model.optimizer.options is missing");
    set.options = &o;
    r = good(REQUEST_DESCRIBE_MODEL, &m);
    d = fp8d_result_description(r);
    const struct fp8d_optimizer *k = d->optimizer;
    const struct fp8d_layer_options *l = d->layers[1].optimizer;
    const double got[] = {k->rate,  k->momentum,     k->dampening, k->beta1,       k->beta2,
                          k->eps,   k->weight_decay, 8,            l->rate,        l->weight_decay};
    for (int i = 0; i < 10; i++)
        ck_assert(got[i] == 1 + i);
    ck_assert(k->kind == FP8D_OPTIMIZER_ADAMW && k->nesterov && k->weight_decay_set);
    ck_assert(d->next_step == UINT64_MAX && d->updates == 8 && d->layers[1].gradients == 11);
    ck_assert(l->frozen && !l->weight_decay_set && !strcmp(l->layer, "b/x"));
    fp8d_result_free(r);
}
END_TEST

/* A step that was applied: each number its own. */
START_TEST(test_step_reply)
{
    struct reply s;
    reply_init(&s, 1, 0);
    s.m.updates = 3;
    s.m.grad_norm = 12.5;
    s.m.clip = 0.25;
    s.m.layers = 6;
    struct fp8d_result *r = good(REQUEST_STEP, &s.m);
    const struct fp8d_step_result *k = fp8d_result_step(r);
    ck_assert_int_eq(k->outcome, FP8D_STEP_APPLIED);
    ck_assert(k->step == 4 && k->updates == 3 && k->layers == 6);
    ck_assert(k->grad_norm == 12.5 && k->clip == 0.25);
    ck_assert(k->count == 0 && k->problems_total == 0);
    ck_assert_ptr_null(fp8d_result_optimizer_set(r));
    fp8d_result_free(r);
}
END_TEST

/* A step that was skipped says where, also of a list that is cut; one that was repeated says less.
 */
START_TEST(test_step_reply_problems)
{
    struct reply s;
    reply_init(&s, 2, 2);
    s.m.problems_total = 30;
    s.m.compute_ns = 1ull << 33;
    struct fp8d_result *r = good(REQUEST_STEP, &s.m);
    const struct fp8d_step_result *k = fp8d_result_step(r);
    ck_assert_int_eq(k->outcome, FP8D_STEP_SKIPPED);
    ck_assert(k->count == 2 && k->problems_total == 30 && k->compute_ns == 1ull << 33);
    ck_assert_str_eq(k->problems[0].layer, "a");
    ck_assert_str_eq(k->problems[0].tensor, "weight");
    ck_assert_str_eq(k->problems[1].layer, "b/x");
    ck_assert_str_eq(k->problems[1].tensor, "grad_output");
    ck_assert(k->problems[0].nonfinite == 7 && k->problems[1].nonfinite == 8);
    fp8d_result_free(r);
    reply_init(&s, 3, 0);
    r = good(REQUEST_STEP, &s.m);
    ck_assert_int_eq(fp8d_result_step(r)->outcome, FP8D_STEP_REPEATED);
    fp8d_result_free(r);
}
END_TEST

/* Outcomes outside the list, a next step 0, and lists that disagree with their count. */
START_TEST(test_step_distrust)
{
    static const int outcomes[] = {0, 4, -1, INT32_MAX};
    struct reply s;
    for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++) {
        reply_init(&s, outcomes[i], 0);
        refused(REQUEST_STEP, &s.m, "needed 1 (APPLIED), 2 (SKIPPED) or 3 (REPEATED)");
    }
    reply_init(&s, 1, 0);
    s.m.step = 0;
    refused(REQUEST_STEP, &s.m, "field step is 0");
    reply_init(&s, 2, 2);
    s.m.problems_total = 1;
    refused(REQUEST_STEP, &s.m, "field problems_total is 1, needed at least the 2 listed");
    reply_init(&s, 1, 2);
    refused(REQUEST_STEP, &s.m, "field outcome is APPLIED, with 2 problems");
    reply_init(&s, 2, 2);
    s.problem[1].layer = (char *)(uintptr_t) "";
    refused(REQUEST_STEP, &s.m, "field problems[1].layer is empty");
    reply_init(&s, 2, 2);
    s.problem[0].tensor = (char *)(uintptr_t) "";
    refused(REQUEST_STEP, &s.m, "field problems[0].tensor is empty");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_optimizer");
    TCase *t = tcase_create("optimizer");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_optimizer_request);
    tcase_add_test(t, test_optimizer_request_less);
    tcase_add_test(t, test_optimizer_request_refused);
    tcase_add_test(t, test_optimizer_memory);
    tcase_add_test(t, test_step_request);
    tcase_add_test(t, test_optimizer_reply);
    tcase_add_test(t, test_optimizer_described);
    tcase_add_test(t, test_step_reply);
    tcase_add_test(t, test_step_reply_problems);
    tcase_add_test(t, test_step_distrust);
    suite_add_tcase(s, t);
    return run_suite(s);
}
