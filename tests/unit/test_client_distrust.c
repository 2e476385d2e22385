/* What a server says is checked before it is believed. */
#include "client/convert.h"

#include "tests/unit/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- helpers --- */

/* Parse message m as a reply to `type` with `payload` bytes behind it. */
static int parse(uint16_t type, const void *m, uint64_t payload, struct fp8d_result **out,
                 struct fault *f)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    unsigned char *meta = malloc(len + 1);
    protobuf_c_message_pack(m, meta);
    *f = (struct fault){0};
    *out = NULL;
    int rc = result_parse(type, meta, len, payload, out, f);
    free(meta);
    return rc;
}

/* --- cases --- */

struct tensor_case {
    const char *what;
    int dtype;
    size_t rank;
    uint64_t dim, offset, length, payload;
    size_t factors;
    bool resident;
    int rc;
};

static const struct tensor_case tensors[] = {
    {"as it should be", 1, 1, 4, 0, 16, 16, 0, false, 0},
    {"nothing in it", 1, 1, 0, 0, 0, 0, 0, false, 0},
    {"FP8 with its factor", 4, 1, 4, 0, 4, 4, 1, false, 0},
    {"FP8 without", 4, 1, 4, 0, 4, 4, 0, false, FP8D_EPROTOCOL},
    {"not at the beginning", 1, 1, 4, 4, 16, 16, 0, false, FP8D_EPROTOCOL},
    {"shorter than the payload", 1, 1, 4, 0, 16, 20, 0, false, FP8D_EPROTOCOL},
    {"longer than the payload", 1, 1, 4, 0, 16, 12, 0, false, FP8D_EPROTOCOL},
    {"not what the dims say", 1, 1, 5, 0, 16, 16, 0, false, FP8D_EPROTOCOL},
    {"dims that overflow", 1, 2, UINT64_MAX, 0, 16, 16, 0, false, FP8D_EPROTOCOL},
    {"2^62 elements", 1, 1, (uint64_t)1 << 62, 0, 0, 0, 0, false, FP8D_EPROTOCOL},
    {"nine dims", 1, 9, 1, 0, 4, 4, 0, false, FP8D_EPROTOCOL},
    {"a dtype nobody knows", 99, 1, 4, 0, 16, 16, 0, false, FP8D_EPROTOCOL},
    {"no dtype", 0, 1, 4, 0, 16, 16, 0, false, FP8D_EPROTOCOL},
    {"resident, but bytes came", 1, 1, 4, 0, 0, 16, 0, true, FP8D_EPROTOCOL},
};

/* A tensor of a reply is taken only if dtype, dims, place and payload say the same. */
START_TEST(test_tensor)
{
    const struct tensor_case *k = &tensors[_i];
    Fp8d__V1__GetTensorReply m = FP8D__V1__GET_TENSOR_REPLY__INIT;
    Fp8d__V1__TensorRef t = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    struct fp8d_result *r;
    struct fault f;
    uint64_t dims[9];
    float factor = 0.5f;
    for (int i = 0; i < 9; i++)
        dims[i] = k->dim;
    place.offset = k->offset;
    place.length = k->length;
    t.dtype = (Fp8d__V1__DType)k->dtype;
    t.dims = dims;
    t.n_dims = k->rank;
    t.scale_inv = &factor;
    t.n_scale_inv = k->factors;
    t.place_case = k->resident ? FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID
                               : FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    if (k->resident)
        t.tensor_id = 5;
    else
        t.inline_bytes = &place;
    m.tensor = &t;
    int rc = parse(REQUEST_GET_TENSOR, &m, k->payload, &r, &f);
    ck_assert_msg(rc == k->rc, "%s: %d %s", k->what, rc, f.text);
    fp8d_result_free(r);
}
END_TEST

/* Replies that lack what they must have. */
START_TEST(test_missing)
{
    static const uint16_t types[] = {REQUEST_FORWARD, REQUEST_GET_TENSOR, REQUEST_LOAD_COMMIT,
                                     REQUEST_DESCRIBE_MODEL};
    Fp8d__V1__PingReply m = FP8D__V1__PING_REPLY__INIT;
    struct fp8d_result *r;
    struct fault f;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        ck_assert_int_eq(parse(types[i], &m, 0, &r, &f), FP8D_EPROTOCOL);
    ck_assert_int_eq(parse(9999, &m, 0, &r, &f), FP8D_EINTERNAL);
}
END_TEST

/* 30 000 metas of a fixed random sequence, for all types: parsed or refused, never worse. */
START_TEST(test_random_metas)
{
    static const uint16_t types[] = {
#define X(Name, NAME, type, class, order, snake) (type),
        REQUEST_LIST(X)
#undef X
    };
    unsigned char meta[64];
    uint32_t state = 1;
    for (int n = 0; n < 30000; n++) {
        struct fp8d_result *r = NULL;
        struct fault f = {0};
        for (size_t i = 0; i < sizeof meta; i++) {
            state = state * 1664525u + 1013904223u;
            meta[i] = (unsigned char)(state >> 24) & (n % 3 ? 0x3f : 0xff);
        }
        size_t len = (size_t)n % sizeof meta;
        uint16_t type = types[(size_t)n % (sizeof types / sizeof types[0])];
        int rc = result_parse(type, meta, len, (uint64_t)n % 5, &r, &f);
        ck_assert(rc == 0 || rc == FP8D_EPROTOCOL);
        ck_assert((rc == 0) == (r != NULL));
        fp8d_result_free(r);
    }
}
END_TEST

/* A meta made to cost much memory is refused by the arena's cap: 1 MiB of empty sub-messages. */
START_TEST(test_amplification)
{
    size_t len = 1 << 20;
    unsigned char *meta = malloc(len);
    struct fp8d_result *r = NULL;
    struct fault f = {0};
    for (size_t i = 0; i < len; i += 2)
        memcpy(meta + i, "\x12\x00", 2); /* field 2, length 0: a ModelInfo */
    int rc = result_parse(REQUEST_LIST_MODELS, meta, len, 0, &r, &f);
    ck_assert_msg(rc == FP8D_EPROTOCOL || rc == -ENOMEM, "%d %s", rc, f.text);
    ck_assert_ptr_null(r);
    free(meta);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_distrust");
    TCase *t = tcase_create("distrust");
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, test_tensor, 0, sizeof tensors / sizeof tensors[0]);
    tcase_add_test(t, test_missing);
    tcase_add_test(t, test_random_metas);
    tcase_add_test(t, test_amplification);
    suite_add_tcase(s, t);
    return run_suite(s);
}
