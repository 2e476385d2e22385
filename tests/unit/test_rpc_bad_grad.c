/* test_rpc_bad_grad.c - gradient and optimizer requests that must be refused: tensors, ids and dtypes
 * of backwards, parts of gradients, options of optimizers, numbers of steps. Nothing changes: not
 * what the other client sees, nor the gradient that is held, the context that is alive, or the step
 * that is due. */
#include "tests/scenario/ask_grad.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALIVE 6 /* a context that no backward has used */

static struct served S;
static struct picture P;
static struct ask A = {.conn = ATTACKER};
static struct ask_gradient held; /* of layer a */
static float dy[SERVED_TOKENS * SERVED_OUT];

/* --- fixture: one gradient held, one context alive, an optimizer with step 1 due --- */

static Fp8d__V1__OptimizerOptions adam(void)
{
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    return o;
}

static void open_served(void)
{
    Fp8d__V1__OptimizerOptions o = adam();
    char text[1024];
    served_open(&S, NULL, 0);
    A.desk = S.d;
    for (size_t i = 0; i < sizeof dy / sizeof *dy; i++)
        dy[i] = (float)(i % 7) - 3.0f;
    for (uint64_t id = 5; id <= ALIVE; id++)
        ck_assert_int_eq(served_code(&S, ATTACKER, served_forward(&S, ATTACKER, NULL, id), text), OK);
    struct ask_backward b = {.context_id = 5, .dy = ask_f32(dy, SERVED_TOKENS, SERVED_OUT)};
    ck_assert_msg(!ask_backward(&A, &b), "%s", A.text);
    ask_backward_free(&b);
    ck_assert_msg(!ask_optimizer(&A, "m", &o, NULL, 0), "%s", A.text);
    ck_assert(!ask_gradient(&A, "m", "a", false, &held) && held.contributions == 1);
    picture_take(&S, &P);
}

/* What the refused requests left is what was there, and goes on. */
static void close_served(void)
{
    struct ask_gradient now;
    ck_assert(!ask_gradient(&A, "m", "a", false, &now));
    ck_assert(now.contributions == 1 && now.count == held.count);
    ck_assert_mem_eq(now.data, held.data, now.count * sizeof(float));
    free(now.data);
    free(held.data);
    struct ask_backward b = {.context_id = ALIVE, .dy = ask_f32(dy, SERVED_TOKENS, SERVED_OUT)};
    ck_assert_msg(!ask_backward(&A, &b) && b.reply->accumulated, "%s", A.text);
    ask_backward_free(&b);
    struct ask_step s = {.step = 1};
    ck_assert_msg(!ask_step(&A, "m", &s), "%s", A.text);
    ck_assert_int_eq(s.reply->outcome, FP8D__V1__STEP_OUTCOME__STEP_OUTCOME_APPLIED);
    ask_step_free(&s);
    picture_fini(&P);
    served_close(&S);
}

static void refused(unsigned got, unsigned code, const char *what, const char *parts)
{
    ck_assert_msg(got == code, "%s: code %u, needed %u: %s", what, got, code, A.text);
    served_says(what, A.text, parts);
    picture_same(&S, &P);
}

/* --- Backward --- */

static struct ask_backward alive(void)
{
    return (struct ask_backward){.context_id = ALIVE,
                                 .dy = ask_f32(dy, SERVED_TOKENS, SERVED_OUT)};
}

static void backward_gets(struct ask_backward b, unsigned code, const char *parts)
{
    refused(ask_backward(&A, &b), code, "Backward", parts);
}

START_TEST(grad_backward_fields)
{
    struct ask_backward b = alive();
    b.context_id = 5;
    backward_gets(b, NOT_FOUND, "context_id 5 is no context");
    b.context_id = 0;
    backward_gets(b, NOT_FOUND, "context_id 0 is no context");
    b = alive();
    b.dy.dims[1] = SERVED_IN;
    b.dy.dims[0] = 1;
    backward_gets(b, INVALID_ARGUMENT, "grad_output.dims: dimension 0 is 1|needed 3");
    b = alive();
    b.dy.dims[1] = SERVED_OUT - 1;
    backward_gets(b, INVALID_ARGUMENT, "grad_output.dims: dimension 1 is 15|layer a needed 16");
    b = alive();
    b.dy.rank = 3;
    b.dy.dims[2] = 1;
    backward_gets(b, INVALID_ARGUMENT, "grad_output.dims: rank 3|needed 2");
    b = alive();
    b.dy.dtype = FP8D__V1__DTYPE__DTYPE_F8_E4M3;
    b.dy.factor = 1.0f;
    backward_gets(b, INVALID_ARGUMENT, "grad_output.dtype is F8_E4M3|needed F32, BF16 or F16");
    b = alive();
    b.dy.id = 77;
    backward_gets(b, NOT_FOUND, "grad_output|77");
    b = alive();
    b.grad_input_dtype = FP8D__V1__DTYPE__DTYPE_F8_E4M3;
    backward_gets(b, INVALID_ARGUMENT, "grad_input_dtype is F8_E4M3|needed F32, BF16 or F16");
    b = alive();
    b.grad_input_id = 9;
    b.no_grad_input = true;
    backward_gets(b, INVALID_ARGUMENT, "grad_input_id is 9|no_grad_input is set");
}
END_TEST

START_TEST(grad_backward_without_its_tensor)
{
    Fp8d__V1__BackwardRequest m = FP8D__V1__BACKWARD_REQUEST__INIT;
    m.context_id = ALIVE;
    served_refuses(&S, &P, REQUEST_BACKWARD, &m.base, INVALID_ARGUMENT, "grad_output is missing");
}
END_TEST

/* The id of grad_input is taken, and replacing it was not asked for. */
START_TEST(grad_backward_id_in_use)
{
    float other[4] = {1, 2, 3, 4};
    struct ask_tensor t = ask_f32(other, 1, 4);
    ck_assert(!ask_put(&A, 9, &t));
    picture_fini(&P);
    picture_take(&S, &P);
    struct ask_backward b = alive();
    b.grad_input_id = 9;
    backward_gets(b, ALREADY_EXISTS, "9");
    ck_assert(!ask_free(&A, 9));
}
END_TEST

/* --- Recompute --- */

START_TEST(grad_recompute_fields)
{
    Fp8d__V1__RecomputeRequest m = FP8D__V1__RECOMPUTE_REQUEST__INIT;
    served_refuses(&S, &P, REQUEST_RECOMPUTE, &m.base, NOT_FOUND, "context_id 0 is no context");
    m.context_id = 5; /* a backward used it */
    served_refuses(&S, &P, REQUEST_RECOMPUTE, &m.base, NOT_FOUND, "context_id 5 is no context");
    m.context_id = ALIVE;
    m.output_dtype = FP8D__V1__DTYPE__DTYPE_F8_E5M2;
    served_refuses(&S, &P, REQUEST_RECOMPUTE, &m.base, INVALID_ARGUMENT,
                   "output_dtype is F8_E5M2|needed F32, BF16 or F16");
    m.output_dtype = 99;
    served_refuses(&S, &P, REQUEST_RECOMPUTE, &m.base, INVALID_ARGUMENT, "output_dtype is 99");
}
END_TEST

/* --- ZeroGrad, GetGradient --- */

START_TEST(grad_zero_and_get_fields)
{
    Fp8d__V1__ZeroGradRequest z = FP8D__V1__ZERO_GRAD_REQUEST__INIT;
    Fp8d__V1__GetGradientRequest g = FP8D__V1__GET_GRADIENT_REQUEST__INIT;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    z.model = g.model = str("absent");
    g.layer = str("a");
    served_refuses(&S, &P, REQUEST_ZERO_GRAD, &z.base, NOT_FOUND, "absent");
    served_refuses(&S, &P, REQUEST_GET_GRADIENT, &g.base, NOT_FOUND, "absent");
    z.model = g.model = str("m");
    x.weight_version = 77;
    z.expect = &x;
    served_refuses(&S, &P, REQUEST_ZERO_GRAD, &z.base, FAILED_PRECONDITION,
                   "expect.weight_version is 77");
    g.layer = str("c");
    served_refuses(&S, &P, REQUEST_GET_GRADIENT, &g.base, NOT_FOUND, "c");
    g.layer = str("b");
    served_refuses(&S, &P, REQUEST_GET_GRADIENT, &g.base, FAILED_PRECONDITION,
                   "layer b holds no gradient");
    g.layer = str("a");
    g.part = 7;
    served_refuses(&S, &P, REQUEST_GET_GRADIENT, &g.base, INVALID_ARGUMENT, "part is 7");
}
END_TEST

/* --- SetOptimizer --- */

static void optimizer_gets(const Fp8d__V1__OptimizerOptions *o, const char *parts)
{
    refused(ask_optimizer(&A, "m", o, NULL, 0), INVALID_ARGUMENT, "SetOptimizer", parts);
}

START_TEST(grad_optimizer_numbers)
{
    static const double bad[] = {-1.0, (double)NAN, (double)INFINITY, 1e300};
    for (unsigned i = 0; i < 4; i++) {
        Fp8d__V1__OptimizerOptions o = adam();
        o.rate = bad[i];
        optimizer_gets(&o, "rate is|needed a finite float32 of at least 0");
        o = adam();
        o.eps = bad[i];
        optimizer_gets(&o, "eps is|needed a finite float32 of at least 0");
        o = adam();
        o.weight_decay = bad[i];
        optimizer_gets(&o, "weight_decay is|needed a finite float32 of at least 0");
        o = adam();
        o.beta1 = bad[i];
        optimizer_gets(&o, "beta1 is|needed at least 0 and below 1");
        o = adam();
        o.beta2 = bad[i];
        optimizer_gets(&o, "beta2 is|needed at least 0 and below 1");
        o = adam();
        o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_SGD;
        o.momentum = bad[i];
        optimizer_gets(&o, "momentum is|needed a finite float32 of at least 0");
        o.momentum = 0;
        o.dampening = bad[i];
        optimizer_gets(&o, "dampening is|needed 0 to 1");
    }
}
END_TEST

/* What is computed with is float32: a number must be in its range there, too. */
START_TEST(grad_optimizer_in_float32)
{
    Fp8d__V1__OptimizerOptions o = adam();
    o.eps = 1e-46;
    optimizer_gets(&o, "options.eps is 1e-46|which is 0 in float32, needed above 0 there");
    o = adam();
    o.rate = 1e-300;
    optimizer_gets(&o, "options.rate is|which is 0 in float32, needed above 0 there");
    o = adam();
    o.beta2 = 0.99999999999;
    optimizer_gets(&o, "options.beta2 is 0.99999999999|which is 1 in float32, needed below 1 there");
    o = adam();
    o.beta1 = nextafter(1.0, 0.0);
    optimizer_gets(&o, "options.beta1 is|which is 1 in float32, needed below 1 there");
}
END_TEST

START_TEST(grad_optimizer_choices)
{
    Fp8d__V1__OptimizerOptions o = adam();
    o.kind = 4;
    optimizer_gets(&o, "kind is 4");
    o.kind = 0;
    optimizer_gets(&o, "options.kind is 0|1 (SGD), 2 (ADAM) or 3 (ADAMW)");
    optimizer_gets(NULL, "options is absent");
    o = adam();
    o.nesterov = true;
    optimizer_gets(&o, "nesterov is set|needed unset for kind 2");
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_SGD;
    optimizer_gets(&o, "momentum is 0|needed above 0 with nesterov");
    o.momentum = 0.9;
    o.dampening = 0.1;
    optimizer_gets(&o, "dampening is 0.1|needed 0 with nesterov");
}
END_TEST

START_TEST(grad_optimizer_layers)
{
    Fp8d__V1__LayerOptions one = FP8D__V1__LAYER_OPTIONS__INIT, two = one;
    Fp8d__V1__LayerOptions *list[2] = {&one, &two};
    Fp8d__V1__OptimizerOptions o = adam();
    one.layer = str("a");
    two.layer = str("c");
    refused(ask_optimizer(&A, "m", &o, list, 2), NOT_FOUND, "SetOptimizer", "layers[1]|c");
    two.layer = str("a");
    refused(ask_optimizer(&A, "m", &o, list, 2), INVALID_ARGUMENT, "SetOptimizer",
            "layers[1].layer a is there twice");
    one.rate = -1;
    refused(ask_optimizer(&A, "m", &o, list, 1), INVALID_ARGUMENT, "SetOptimizer",
            "layer a|rate is -1");
    static Fp8d__V1__LayerOptions *many[4097];
    for (size_t i = 0; i < 4097; i++)
        many[i] = &two;
    refused(ask_optimizer(&A, "m", &o, many, 4097), INVALID_ARGUMENT, "SetOptimizer",
            "layers has more than 4096 elements");
    refused(ask_optimizer(&A, "absent", &o, NULL, 0), NOT_FOUND, "SetOptimizer", "absent");
}
END_TEST

/* --- Step --- */

START_TEST(grad_step_fields)
{
    static const struct {
        uint64_t step;
        double loss_scale, max_norm;
        unsigned code;
        const char *says;
    } rows[] = {
        {0, 0, 0, FAILED_PRECONDITION, "step is 0, needed 1"},
        {2, 0, 0, FAILED_PRECONDITION, "step is 2, needed 1"},
        {UINT64_MAX, 0, 0, FAILED_PRECONDITION, "step is 18446744073709551615, needed 1"},
        {1, -1, 0, INVALID_ARGUMENT, "loss_scale is -1, needed a number above 0 and at most 3.4"},
        {1, (double)NAN, 0, INVALID_ARGUMENT, "loss_scale is|needed a number above 0 and at most"},
        {1, 1e300, 0, INVALID_ARGUMENT, "loss_scale is 1e+300"},
        {1, 1e-39, 0, INVALID_ARGUMENT, "loss_scale is 1e-39, which makes the gradients' norm"},
        {1, 0, -0.5, INVALID_ARGUMENT, "max_norm is -0.5, needed a number from 0 to 3.40282e+38"},
        {1, 0, (double)INFINITY, INVALID_ARGUMENT, "max_norm is inf"},
        {1, 0, (double)NAN, INVALID_ARGUMENT, "max_norm is"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ask_step s = {
            .step = rows[i].step, .loss_scale = rows[i].loss_scale, .max_norm = rows[i].max_norm};
        refused(ask_step(&A, "m", &s), rows[i].code, "Step", rows[i].says);
    }
    struct ask_step s = {.step = 1};
    refused(ask_step(&A, "absent", &s), NOT_FOUND, "Step", "absent");
    Fp8d__V1__StepRequest m = FP8D__V1__STEP_REQUEST__INIT;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    x.incarnation = 99;
    m.model = str("m");
    m.step = 1;
    m.expect = &x;
    served_refuses(&S, &P, REQUEST_STEP, &m.base, FAILED_PRECONDITION, "expect.incarnation is 99");
}
END_TEST

/* --- another connection's scope --- */

/* Who holds the scope has the gradients and the optimizer to itself. */
START_TEST(grad_under_anothers_scope)
{
    struct ask other = {.desk = S.d, .conn = BYSTANDER};
    Fp8d__V1__OptimizerOptions o = adam();
    struct ask_step s = {.step = 1};
    ck_assert(!ask_scope_begin(&other, 1, "m"));
    picture_fini(&P);
    picture_take(&S, &P);
    const char *says = "model m has an open scope 1, held by connection 2";
    backward_gets(alive(), FAILED_PRECONDITION, says);
    refused(ask_zero_grad(&A, "m", NULL), FAILED_PRECONDITION, "ZeroGrad", says);
    refused(ask_optimizer(&A, "m", &o, NULL, 0), FAILED_PRECONDITION, "SetOptimizer", says);
    refused(ask_step(&A, "m", &s), FAILED_PRECONDITION, "Step", says);
    ck_assert(!ask_scope_end(&other, 1, true, NULL));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_grad");
    TCase *t = tcase_create("grad");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, grad_backward_fields);
    tcase_add_test(t, grad_backward_without_its_tensor);
    tcase_add_test(t, grad_backward_id_in_use);
    tcase_add_test(t, grad_recompute_fields);
    tcase_add_test(t, grad_zero_and_get_fields);
    tcase_add_test(t, grad_optimizer_numbers);
    tcase_add_test(t, grad_optimizer_in_float32);
    tcase_add_test(t, grad_optimizer_choices);
    tcase_add_test(t, grad_optimizer_layers);
    tcase_add_test(t, grad_step_fields);
    tcase_add_test(t, grad_under_anothers_scope);
    suite_add_tcase(s, t);
    return run_suite(s);
}
