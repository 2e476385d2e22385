/* test_rpc_bad_run.c - computing requests that must be refused: modes, ids and caps of forwards,
 * edits that do not fit, calibrations that were not begun. Nothing changes, and the other client's
 * forward gives the same bits. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- fixture --- */

static struct served S;
static struct picture P;
static char text[1024];
static unsigned char payload[1 << 20];

static void open_served(void)
{
    struct engine_options o = {.resident_max = 1 << 20, .contexts_max = 4, .tensors_max = 4};
    served_open(&S, &o, 0);
    picture_take(&S, &P);
}

static void close_served(void)
{
    picture_fini(&P);
    served_close(&S);
}

/* --- helpers: a forward and an edit with all their parts --- */

struct tensor_part {
    Fp8d__V1__TensorRef ref;
    Fp8d__V1__InlinePlace place;
    uint64_t dims[4];
    float factor;
};

static Fp8d__V1__TensorRef *part(struct tensor_part *p, Fp8d__V1__DType dtype, unsigned rank,
                                 uint64_t d0, uint64_t d1, uint64_t offset, uint64_t length)
{
    fp8d__v1__tensor_ref__init(&p->ref);
    fp8d__v1__inline_place__init(&p->place);
    p->dims[0] = d0;
    p->dims[1] = d1;
    p->dims[2] = 1;
    p->factor = 1.0f;
    p->ref.dtype = dtype;
    p->ref.n_dims = rank;
    p->ref.dims = p->dims;
    p->ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    p->ref.inline_bytes = &p->place;
    p->ref.n_scale_inv = dtype == FP8D__V1__DTYPE__DTYPE_F8_E4M3;
    p->ref.scale_inv = &p->factor;
    p->place.offset = offset;
    p->place.length = length;
    return &p->ref;
}

struct forward {
    Fp8d__V1__ForwardRequest m;
    struct tensor_part input;
    uint64_t bytes;
};

static void forward_init(struct forward *f)
{
    fp8d__v1__forward_request__init(&f->m);
    f->m.model = str("m");
    f->m.layer = str("a");
    f->bytes = 384;
    f->m.input = part(&f->input, FP8D__V1__DTYPE__DTYPE_F32, 2, 3, 32, 0, 384);
}

static void forward_gets(struct forward *f, unsigned code, const char *parts)
{
    unsigned got =
        served_call(&S, ATTACKER, REQUEST_FORWARD, &f->m.base, payload, f->bytes, NULL, 0, text);
    ck_assert_msg(got == code, "code %u, needed %u: %s", got, code, text);
    served_says("Forward", text, parts);
    if (code)
        picture_same(&S, &P);
    forward_init(f);
}

static void repicture(void)
{
    picture_fini(&P);
    picture_take(&S, &P);
}

/* --- forwards --- */

START_TEST(run_forward_fields)
{
    /* Each field unset, wrong or at odds with the mode. */
    struct forward f;
    forward_init(&f);
    f.m.input = NULL;
    f.bytes = 0;
    forward_gets(&f, INVALID_ARGUMENT, "input is missing|needed a tensor");
    f.m.input = part(&f.input, FP8D__V1__DTYPE__DTYPE_F32, 2, 6, 16, 0, 384);
    forward_gets(&f, INVALID_ARGUMENT, "input.dims|is 16|layer a needed 32");
    f.m.input = part(&f.input, FP8D__V1__DTYPE__DTYPE_F32, 1, 96, 0, 0, 384);
    forward_gets(&f, INVALID_ARGUMENT, "input.dims|is 96|needed 32");
    static const struct {
        Fp8d__V1__DType dtype;
        const char *says;
    } outs[] = {{FP8D__V1__DTYPE__DTYPE_F8_E4M3, "output_dtype is F8_E4M3|needed F32, BF16 or F16"},
                {FP8D__V1__DTYPE__DTYPE_F64, "output_dtype is F64|needed F32, BF16 or F16"},
                {FP8D__V1__DTYPE__DTYPE_F4, "output_dtype is F4|needed F32, BF16 or F16"},
                {FP8D__V1__DTYPE__DTYPE_U64, "output_dtype is U64|needed F32, BF16 or F16"}};
    for (size_t i = 0; i < 4; i++) {
        f.m.output_dtype = outs[i].dtype;
        forward_gets(&f, INVALID_ARGUMENT, outs[i].says);
    }
    for (unsigned mode = 0; mode < 4; mode++) {
        if (mode == FP8D__V1__MODE__MODE_TRAIN)
            continue;
        f.m.mode = mode;
        f.m.context_id = 5;
        forward_gets(&f, INVALID_ARGUMENT, "context_id is 5|mode train");
        f.m.mode = mode;
        f.m.first_microbatch = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO;
        forward_gets(&f, INVALID_ARGUMENT, "first_microbatch is set|mode train");
    }
    f.m.mode = FP8D__V1__MODE__MODE_CALIBRATE;
    f.bytes = 96;
    f.m.input = part(&f.input, FP8D__V1__DTYPE__DTYPE_F8_E4M3, 2, 3, 32, 0, 96);
    forward_gets(&f, INVALID_ARGUMENT, "input.dtype is F8_E4M3|needed F32, BF16 or F16");
}
END_TEST

START_TEST(run_forward_ids_in_use)
{
    /* Output and context ids that are taken: ALREADY_EXISTS, and what was there stays. A refused
     * output id leaves no context behind, and the other way round. */
    struct forward f;
    forward_init(&f);
    f.m.mode = FP8D__V1__MODE__MODE_TRAIN;
    f.m.output_id = 1;
    f.m.context_id = 2;
    forward_gets(&f, OK, "");
    repicture();
    f.m.output_id = 1;
    forward_gets(&f, ALREADY_EXISTS, "output_id 1 is in use");
    f.m.mode = FP8D__V1__MODE__MODE_TRAIN;
    f.m.context_id = 2;
    f.m.output_id = 3;
    forward_gets(&f, ALREADY_EXISTS, "context_id 2 is in use");
    f.m.mode = FP8D__V1__MODE__MODE_TRAIN;
    f.m.context_id = 4;
    f.m.output_id = 1;
    forward_gets(&f, ALREADY_EXISTS, "output_id 1 is in use");
    Fp8d__V1__DropContextRequest c = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    Fp8d__V1__FreeTensorRequest t = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    c.context_id = 4;
    served_refuses(&S, &P, REQUEST_DROP_CONTEXT, &c.base, NOT_FOUND, "context_id 4");
    t.tensor_id = 3;
    served_refuses(&S, &P, REQUEST_FREE_TENSOR, &t.base, NOT_FOUND, "tensor_id 3");
}
END_TEST

START_TEST(run_caps_of_contexts_tensors_and_bytes)
{
    /* Contexts, resident tensors and their bytes have caps; over one, nothing of the request stays,
     * and the other client still has all of its own. */
    struct forward f;
    forward_init(&f);
    for (unsigned i = 1; i <= 5; i++) {
        f.m.mode = FP8D__V1__MODE__MODE_TRAIN;
        f.m.context_id = i;
        if (i == 5)
            repicture();
        forward_gets(&f, i < 5 ? OK : RESOURCE_EXHAUSTED,
                     i < 5 ? "" : "holds 4 contexts, the cap is 4");
    }
    for (unsigned i = 1; i <= 5; i++) {
        f.m.output_id = i;
        if (i == 5)
            repicture();
        forward_gets(&f, i < 5 ? OK : RESOURCE_EXHAUSTED,
                     i < 5 ? "" : "holds 4 resident tensors, the cap is 4");
    }
    Fp8d__V1__FreeTensorRequest t = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    t.tensor_id = 1;
    served_accepts(&S, ATTACKER, REQUEST_FREE_TENSOR, &t.base);
    repicture();
    Fp8d__V1__PutTensorRequest put = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    struct tensor_part p;
    put.tensor_id = 1;
    put.tensor = part(&p, FP8D__V1__DTYPE__DTYPE_F32, 1, sizeof payload / 4, 0, 0, sizeof payload);
    ck_assert_uint_eq(served_call(&S, ATTACKER, REQUEST_PUT_TENSOR, &put.base, payload,
                                  sizeof payload, NULL, 0, text),
                      RESOURCE_EXHAUSTED);
    served_says("PutTensor", text, "the tensor needs|this connection holds|at most 1048576");
    picture_same(&S, &P);
}
END_TEST

START_TEST(run_forward_output_over_the_payload_cap)
{
    /* An output that no frame can carry is refused before it is computed, not sent. */
    struct forward f;
    S.d->rpc->o.caps.payload = 100;
    forward_init(&f);
    unsigned got =
        served_call(&S, ATTACKER, REQUEST_FORWARD, &f.m.base, payload, f.bytes, NULL, 0, text);
    ck_assert_msg(got == RESOURCE_EXHAUSTED, "code %u: %s", got, text);
    served_says("Forward", text, "the output has 192 bytes|at most 100|output_id");
    f.m.output_id = 1;
    served_call(&S, ATTACKER, REQUEST_FORWARD, &f.m.base, payload, f.bytes, NULL, 0, text);
    Fp8d__V1__GetTensorRequest g = FP8D__V1__GET_TENSOR_REQUEST__INIT;
    g.tensor_id = 1;
    got = desk_call(S.d, ATTACKER, REQUEST_GET_TENSOR, &g.base, NULL, 0, NULL, text);
    ck_assert_msg(got == RESOURCE_EXHAUSTED, "code %u: %s", got, text);
    served_says("GetTensor", text, "192 bytes|100");
    S.d->rpc->o.caps.payload = 1 << 20;
}
END_TEST

/* --- edits --- */

static void edit_gets(Fp8d__V1__TensorRef *weight, Fp8d__V1__TensorRef *bias, uint64_t bytes,
                      unsigned code, const char *parts)
{
    Fp8d__V1__EditWeightRequest m = FP8D__V1__EDIT_WEIGHT_REQUEST__INIT;
    m.model = str("m");
    m.layer = str("a");
    m.weight = weight;
    m.bias = bias;
    unsigned got =
        served_call(&S, ATTACKER, REQUEST_EDIT_WEIGHT, &m.base, payload, bytes, NULL, 0, text);
    ck_assert_msg(got == code, "code %u, needed %u: %s", got, code, text);
    served_says("EditWeight", text, parts);
    if (code)
        picture_same(&S, &P);
}

START_TEST(run_edit_fields)
{
    /* Weights and biases of another shape, rank or dtype, missing ones, and ones that overlap or
     * leave a gap. */
    struct tensor_part w, b;
    const Fp8d__V1__DType f32 = FP8D__V1__DTYPE__DTYPE_F32, e4m3 = FP8D__V1__DTYPE__DTYPE_F8_E4M3;
    edit_gets(NULL, NULL, 0, INVALID_ARGUMENT, "weight is missing");
    edit_gets(part(&w, f32, 2, 32, 16, 0, 2048), NULL, 2048, INVALID_ARGUMENT,
              "weight.dims|32 x 16|layer a needed [16, 32]");
    edit_gets(part(&w, f32, 1, 512, 0, 0, 2048), NULL, 2048, INVALID_ARGUMENT,
              "weight.dims: rank 1|[16, 32]");
    edit_gets(part(&w, f32, 3, 16, 32, 0, 2048), NULL, 2048, INVALID_ARGUMENT,
              "weight.dims: rank 3|[16, 32]");
    edit_gets(part(&w, e4m3, 2, 16, 32, 0, 512), NULL, 512, UNIMPLEMENTED,
              "weight.dtype is F8_E4M3");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, f32, 1, 17, 0, 2048, 68), 2116,
              INVALID_ARGUMENT, "bias|17|needed F32, BF16 or F16 of [16]");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, f32, 2, 1, 16, 2048, 64), 2112,
              INVALID_ARGUMENT, "bias|rank 2|[16]");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, e4m3, 1, 16, 0, 2048, 16), 2064,
              INVALID_ARGUMENT, "bias: F8_E4M3|[16]");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, f32, 1, 16, 0, 2044, 64), 2108,
              INVALID_ARGUMENT, "overlap|0 to 2048 and 2044 to 2108");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, f32, 1, 16, 0, 1000, 64), 2048,
              INVALID_ARGUMENT, "overlap|1000 to 1064");
    edit_gets(part(&w, f32, 2, 16, 32, 64, 2048), part(&b, f32, 1, 16, 0, 64, 64), 2112,
              INVALID_ARGUMENT, "overlap");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, f32, 1, 16, 0, 2052, 64), 2116,
              INVALID_ARGUMENT, "the payload has 2116 bytes|cover 2112");
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), part(&b, f32, 1, 16, 0, 2048, 0), 2112,
              INVALID_ARGUMENT, "bias.inline_bytes.length is 0|64");
    b.ref.place_case = FP8D__V1__TENSOR_REF__PLACE__NOT_SET;
    edit_gets(part(&w, f32, 2, 16, 32, 0, 2048), &b.ref, 2048, INVALID_ARGUMENT,
              "bias has no place");
    edit_gets(part(&w, f32, 2, 16, 32, 64, 2048), part(&b, f32, 1, 16, 0, 0, 64), 2112, OK, "");
}
END_TEST

/* --- calibration, check --- */

START_TEST(run_calibration_and_check)
{
    /* No action, nothing calibrated yet, an open scope; FP8 input where high precision is needed.
     */
    Fp8d__V1__FinishCalibrationRequest c = FP8D__V1__FINISH_CALIBRATION_REQUEST__INIT;
    Fp8d__V1__CheckNumericsRequest k = FP8D__V1__CHECK_NUMERICS_REQUEST__INIT;
    struct tensor_part in;
    struct forward f;
    c.model = k.model = str("m");
    k.layer = str("a");
    served_refuses(&S, &P, REQUEST_FINISH_CALIBRATION, &c.base, INVALID_ARGUMENT,
                   "action is unset");
    for (unsigned action = 1; action < 3; action++) {
        c.action = action;
        served_refuses(&S, &P, REQUEST_FINISH_CALIBRATION, &c.base, FAILED_PRECONDITION,
                       "no calibrate request reached model m");
    }
    k.input = part(&in, FP8D__V1__DTYPE__DTYPE_F8_E4M3, 2, 3, 32, 0, 96);
    ck_assert_uint_eq(
        served_call(&S, ATTACKER, REQUEST_CHECK_NUMERICS, &k.base, payload, 96, NULL, 0, text),
        INVALID_ARGUMENT);
    served_says("CheckNumerics", text, "input.dtype is F8_E4M3|needed F32, BF16 or F16");
    forward_init(&f);
    f.m.mode = FP8D__V1__MODE__MODE_CALIBRATE;
    forward_gets(&f, OK, "");
    Fp8d__V1__BeginScopeRequest b = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    b.model = str("m");
    b.scope_id = 1;
    served_accepts(&S, BYSTANDER, REQUEST_BEGIN_SCOPE, &b.base);
    repicture();
    c.action = FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_FINISH;
    served_refuses(&S, &P, REQUEST_FINISH_CALIBRATION, &c.base, FAILED_PRECONDITION, "open scope");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_run");
    TCase *t = tcase_create("run");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, run_forward_fields);
    tcase_add_test(t, run_forward_ids_in_use);
    tcase_add_test(t, run_caps_of_contexts_tensors_and_bytes);
    tcase_add_test(t, run_forward_output_over_the_payload_cap);
    tcase_add_test(t, run_edit_fields);
    tcase_add_test(t, run_calibration_and_check);
    suite_add_tcase(s, t);
    return run_suite(s);
}
