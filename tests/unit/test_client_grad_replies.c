/* Gradients: replies as structs, replies that are refused, and where their bytes go. */
#include "client/convert.h"

#include "tests/unit/fake_keep.h"
#include "tests/unit/run.h"

/* --- helpers --- */

/* Parse message m as a reply to `type` with `payload` bytes behind it. */
static int parse(uint16_t type, const void *m, uint64_t payload, struct fp8d_result **out,
                 struct fault *f)
{
    unsigned char meta[512];
    size_t len = protobuf_c_message_get_packed_size(m);
    ck_assert_uint_le(len, sizeof meta);
    protobuf_c_message_pack(m, meta);
    *f = (struct fault){0};
    *out = NULL;
    return result_parse(type, meta, len, payload, out, f);
}

static struct fp8d_result *good(uint16_t type, const void *m, uint64_t payload)
{
    struct fp8d_result *r;
    struct fault f;
    ck_assert_msg(parse(type, m, payload, &r, &f) == 0, "%s", f.text);
    return r;
}

/* A TensorRef of a reply with what it points to. */
struct ref {
    Fp8d__V1__TensorRef m;
    Fp8d__V1__InlinePlace place;
    uint64_t dims[3];
};

/* Of `rank` dimensions 2, 3, 1; inline with `bytes`. */
static void ref_init(struct ref *t, Fp8d__V1__DType dtype, size_t rank, uint64_t bytes)
{
    fp8d__v1__tensor_ref__init(&t->m);
    fp8d__v1__inline_place__init(&t->place);
    memcpy(t->dims, (uint64_t[]){2, 3, 1}, sizeof t->dims);
    t->place.length = bytes;
    t->m.dtype = dtype;
    t->m.n_dims = rank;
    t->m.dims = t->dims;
    t->m.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    t->m.inline_bytes = &t->place;
}

static void ref_resident(struct ref *t, Fp8d__V1__DType dtype, size_t rank, uint64_t id)
{
    ref_init(t, dtype, rank, 0);
    t->m.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    t->m.tensor_id = id;
}

/* --- cases: replies --- */

/* A whole reply to Backward. */
START_TEST(test_grad_backward_reply)
{
    Fp8d__V1__BackwardReply m = FP8D__V1__BACKWARD_REPLY__INIT;
    Fp8d__V1__CastInfo cast = FP8D__V1__CAST_INFO__INIT;
    struct ref t;
    ref_init(&t, FP8D__V1__DTYPE__DTYPE_F16, 3, 12);
    cast.fp8_dtype = FP8D__V1__DTYPE__DTYPE_F8_E5M2;
    cast.scale = 1, cast.scale_inv = 2, cast.amax = 3;
    cast.saturated = 4, cast.flushed = 5, cast.nonfinite = 6;
    m.grad_input = &t.m;
    m.grad_output = &cast;
    m.accumulated = true;
    m.compute_ns = 1ull << 40;
    struct fp8d_result *r = good(REQUEST_BACKWARD, &m, 12);
    const struct fp8d_backward_result *g = fp8d_result_backward(r);
    ck_assert(g->has_grad_input && g->has_grad_output && g->accumulated && !g->scales_applied);
    ck_assert_uint_eq(g->compute_ns, 1ull << 40);
    ck_assert(g->grad_input.dtype == FP8D_F16 && g->grad_input.rank == 3);
    ck_assert(g->grad_input.dims[0] == 2 && g->grad_input.dims[1] == 3 && g->grad_input.size == 12);
    ck_assert_int_eq(g->grad_output.dtype, FP8D_F8_E5M2);
    ck_assert(g->grad_output.scale == 1 && g->grad_output.scale_inv == 2 &&
              g->grad_output.amax == 3);
    ck_assert(g->grad_output.saturated == 4 && g->grad_output.flushed == 5 &&
              g->grad_output.nonfinite == 6);
    ck_assert_ptr_null(fp8d_result_forward(r));
    fp8d_result_free(r);
}
END_TEST

/* What may be absent: grad_input if none was asked for, the cast of zero tokens. It may be
 * resident. */
START_TEST(test_grad_backward_reply_less)
{
    Fp8d__V1__BackwardReply m = FP8D__V1__BACKWARD_REPLY__INIT;
    struct ref t;
    m.scales_applied = true;
    struct fp8d_result *r = good(REQUEST_BACKWARD, &m, 0);
    const struct fp8d_backward_result *g = fp8d_result_backward(r);
    ck_assert(!g->has_grad_input && !g->has_grad_output && !g->accumulated && g->scales_applied);
    fp8d_result_free(r);
    ref_resident(&t, FP8D__V1__DTYPE__DTYPE_F32, 2, 77);
    m.grad_input = &t.m;
    r = good(REQUEST_BACKWARD, &m, 0);
    g = fp8d_result_backward(r);
    ck_assert(g->has_grad_input && g->grad_input.tensor_id == 77 && g->grad_input.size == 24);
    fp8d_result_free(r);
}
END_TEST

/* A reply to Recompute: its output, inline or resident, is there and of high precision. */
START_TEST(test_grad_recompute_reply)
{
    Fp8d__V1__RecomputeReply m = FP8D__V1__RECOMPUTE_REPLY__INIT;
    struct ref t;
    struct fault f;
    ref_init(&t, FP8D__V1__DTYPE__DTYPE_F16, 2, 12);
    m.output = &t.m;
    m.compute_ns = 9;
    struct fp8d_result *r = good(REQUEST_RECOMPUTE, &m, 12);
    ck_assert_uint_eq(fp8d_result_recompute(r)->output.size, 12);
    ck_assert_uint_eq(fp8d_result_recompute(r)->compute_ns, 9);
    fp8d_result_free(r);
    ref_resident(&t, FP8D__V1__DTYPE__DTYPE_F32, 2, 77);
    r = good(REQUEST_RECOMPUTE, &m, 0);
    ck_assert_uint_eq(fp8d_result_recompute(r)->output.tensor_id, 77);
    fp8d_result_free(r);
    ref_resident(&t, FP8D__V1__DTYPE__DTYPE_U8, 2, 77);
    ck_assert_int_eq(parse(REQUEST_RECOMPUTE, &m, 0, &r, &f), FP8D_EPROTOCOL);
    ck_assert_ptr_nonnull(strstr(f.text, "field output is U8, needed F32"));
    m.output = NULL;
    ck_assert(parse(REQUEST_RECOMPUTE, &m, 0, &r, &f) == FP8D_EPROTOCOL &&
              strstr(f.text, "field output is missing"));
}
END_TEST

/* ZeroGrad and GetGradient: each number its own. */
START_TEST(test_grad_small_replies)
{
    Fp8d__V1__ZeroGradReply zero = FP8D__V1__ZERO_GRAD_REPLY__INIT;
    Fp8d__V1__GetGradientReply get = FP8D__V1__GET_GRADIENT_REPLY__INIT;
    struct ref t;
    zero.layers = 3;
    struct fp8d_result *r = good(REQUEST_ZERO_GRAD, &zero, 0);
    ck_assert_uint_eq(fp8d_result_grad_zeroed(r)->layers, 3);
    ck_assert_ptr_null(fp8d_result_gradient(r));
    fp8d_result_free(r);
    ref_init(&t, FP8D__V1__DTYPE__DTYPE_F32, 2, 24);
    get.gradient = &t.m;
    get.contributions = 4;
    get.nonfinite = 5;
    r = good(REQUEST_GET_GRADIENT, &get, 24);
    const struct fp8d_gradient *g = fp8d_result_gradient(r);
    ck_assert(g->contributions == 4 && g->nonfinite == 5);
    ck_assert(g->tensor.dtype == FP8D_F32 && g->tensor.rank == 2 && g->tensor.dims[1] == 3);
    ck_assert_ptr_null(fp8d_result_grad_zeroed(r));
    fp8d_result_free(r);
}
END_TEST

struct bad_case {
    const char *what;
    int dtype; /* 0: no tensor */
    size_t rank;
    uint64_t bytes, payload;
    bool resident;
    int backward, gradient; /* what each reply comes to */
};

#define BAD FP8D_EPROTOCOL

static const struct bad_case bad_cases[] = {
    {"as it should be", 1, 2, 24, 24, false, 0, 0},
    {"no tensor", 0, 0, 0, 0, false, 0, BAD},
    {"no tensor, but bytes", 0, 0, 0, 24, false, BAD, BAD},
    {"a dtype of 16 bits", 2, 2, 12, 12, false, 0, BAD},
    {"FP8", 4, 2, 6, 6, false, BAD, BAD},
    {"an integer", 20, 2, 24, 24, false, BAD, BAD},
    {"three dims", 1, 3, 24, 24, false, 0, BAD},
    {"no dims", 1, 0, 4, 4, false, BAD, BAD},
    {"resident", 1, 2, 0, 0, true, 0, BAD},
    {"resident, but bytes came", 1, 2, 0, 24, true, BAD, BAD},
    {"fewer bytes than dims say", 1, 2, 20, 20, false, BAD, BAD},
    {"more bytes than the payload", 1, 2, 24, 20, false, BAD, BAD},
};

/* A tensor is taken only where its dtype, dimensions, place and bytes are those of a gradient. */
START_TEST(test_grad_distrust)
{
    const struct bad_case *k = &bad_cases[_i];
    Fp8d__V1__BackwardReply back = FP8D__V1__BACKWARD_REPLY__INIT;
    Fp8d__V1__GetGradientReply get = FP8D__V1__GET_GRADIENT_REPLY__INIT;
    struct fp8d_result *r;
    struct fault f;
    struct ref t;
    float factor = 1;
    if (k->resident)
        ref_resident(&t, (Fp8d__V1__DType)k->dtype, k->rank, 5);
    else
        ref_init(&t, (Fp8d__V1__DType)k->dtype, k->rank, k->bytes);
    if (k->dtype == 4) /* its factor is there: that is not what is wrong */
        t.m.scale_inv = &factor, t.m.n_scale_inv = 1;
    back.grad_input = get.gradient = k->dtype ? &t.m : NULL;
    int rc = parse(REQUEST_BACKWARD, &back, k->payload, &r, &f);
    ck_assert_msg(rc == k->backward, "%s: %d %s", k->what, rc, f.text);
    fp8d_result_free(r);
    rc = parse(REQUEST_GET_GRADIENT, &get, k->payload, &r, &f);
    ck_assert_msg(rc == k->gradient, "%s: %d %s", k->what, rc, f.text);
    fp8d_result_free(r);
}
END_TEST

/* --- cases: the wire --- */

/* Backward and GetGradient are answered with the six numbers 0, 1, ... 5. */
static bool serve_grad(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    static const float numbers[6] = {0, 1, 2, 3, 4, 5};
    Fp8d__V1__BackwardReply back = FP8D__V1__BACKWARD_REPLY__INIT;
    Fp8d__V1__GetGradientReply get = FP8D__V1__GET_GRADIENT_REPLY__INIT;
    struct ref t;
    ref_init(&t, FP8D__V1__DTYPE__DTYPE_F32, 2, sizeof numbers);
    back.grad_input = get.gradient = &t.m;
    if (!fake_skip(s, fd, h->payload_len))
        return false;
    if (h->type == REQUEST_PING)
        return fake_answer(fd, h, n);
    return fake_send(fd, h->type, h->id, FRAME_FLAG_REPLY,
                     h->type == REQUEST_BACKWARD ? (void *)&back : (void *)&get, numbers,
                     sizeof numbers);
}

/* Both go straight into the caller's buffer; one too small is an error of that request alone. */
START_TEST(test_grad_buffers)
{
    struct fake_pair b = fake_begin(serve_grad, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    float mine[6] = {0};
    struct fp8d_buffer small = {mine, sizeof mine - 1}, room = {mine, sizeof mine};
    struct fp8d_backward q = {.context_id = 1, .grad_output = {.tensor_id = 2}, .grad_input = room};
    ck_assert_int_eq(fp8d_backward(b.c, &q, NULL, &r, &err), 0);
    ck_assert_ptr_eq(fp8d_result_backward(r)->grad_input.data, mine);
    ck_assert(mine[1] == 1 && mine[5] == 5);
    fp8d_result_free(r);
    mine[5] = 0;
    ck_assert_int_eq(fp8d_get_gradient(b.c, "m", "l", FP8D_GRADIENT_WEIGHT, &room, NULL, &r, &err),
                     0);
    ck_assert_ptr_eq(fp8d_result_gradient(r)->tensor.data, mine);
    ck_assert(mine[5] == 5);
    fp8d_result_free(r);
    ck_assert_int_eq(fp8d_get_gradient(b.c, "m", "l", FP8D_GRADIENT_WEIGHT, &small, NULL, &r, &err),
                     FP8D_EOUT_OF_RANGE);
    q.grad_input = small;
    ck_assert_int_eq(fp8d_backward(b.c, &q, NULL, &r, &err), FP8D_EOUT_OF_RANGE);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 4);
    fake_end(b);
}
END_TEST

/* Backward and GetGradient sent ahead, answered in memory of the library. */
START_TEST(test_grad_submitted)
{
    struct fake_pair b = fake_begin(serve_grad, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    uint64_t back, get;
    struct fp8d_backward q = {
        .context_id = 1,
        .grad_output = {.dtype = FP8D_F32, .rank = 1, .dims = {1}, .data = "four", .size = 4}};
    ck_assert_int_eq(fp8d_submit_backward(b.c, &q, NULL, &back, &err), 0);
    ck_assert_int_eq(
        fp8d_submit_get_gradient(b.c, "m", "l", FP8D_GRADIENT_BIAS, NULL, NULL, &get, &err), 0);
    ck_assert_int_eq(fp8d_wait(b.c, get, &r, &err), 0);
    ck_assert(((const float *)fp8d_result_gradient(r)->tensor.data)[4] == 4);
    fp8d_result_free(r);
    ck_assert_int_eq(fp8d_wait(b.c, back, &r, &err), 0);
    ck_assert(((const float *)fp8d_result_backward(r)->grad_input.data)[3] == 3);
    fp8d_result_free(r);
    fake_end(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_grad_replies");
    TCase *t = tcase_create("replies");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_grad_backward_reply);
    tcase_add_test(t, test_grad_backward_reply_less);
    tcase_add_test(t, test_grad_recompute_reply);
    tcase_add_test(t, test_grad_small_replies);
    tcase_add_loop_test(t, test_grad_distrust, 0, sizeof bad_cases / sizeof bad_cases[0]);
    tcase_add_test(t, test_grad_buffers);
    tcase_add_test(t, test_grad_submitted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
