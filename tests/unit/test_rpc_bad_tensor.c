/* test_rpc_bad_tensor.c - tensors that must be refused, in every request that takes one: the
 * sentence names field, value found and value needed, and nothing changes. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- fixture --- */

static struct served S;
static struct picture P;
static char text[1024];
static unsigned char payload[1 << 16];

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

/* --- helpers: a row is a TensorRef with its payload, and what is said to it --- */

enum place { NONE, INLINE, RESIDENT };

struct row {
    Fp8d__V1__DType dtype;
    unsigned rank;
    uint64_t dims[10];
    enum place place;
    uint64_t offset, length; /* RESIDENT: offset is the id */
    unsigned factors;
    float factor[2];
    Fp8d__V1__Granularity granularity;
    uint64_t payload;
    const char *says; /* parts, cut at '|', that the sentence holds; "" : accepted */
};

struct ref {
    Fp8d__V1__TensorRef ref;
    Fp8d__V1__InlinePlace inline_place;
};

static Fp8d__V1__TensorRef *ref_of(struct ref *r, const struct row *row)
{
    fp8d__v1__tensor_ref__init(&r->ref);
    fp8d__v1__inline_place__init(&r->inline_place);
    r->ref.dtype = row->dtype;
    r->ref.n_dims = row->rank;
    r->ref.dims = (uint64_t *)(uintptr_t)row->dims;
    r->ref.n_scale_inv = row->factors;
    r->ref.scale_inv = (float *)(uintptr_t)row->factor;
    r->ref.granularity = row->granularity;
    r->inline_place.offset = row->offset;
    r->inline_place.length = row->length;
    if (row->place == INLINE) {
        r->ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
        r->ref.inline_bytes = &r->inline_place;
    } else if (row->place == RESIDENT) {
        r->ref.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
        r->ref.tensor_id = row->offset;
    }
    return &r->ref;
}

enum target { PUT, FORWARD, CHECK, EDIT, TARGETS };

/* The request with this tensor, else valid; the code. */
static unsigned ask(enum target target, const struct row *row)
{
    Fp8d__V1__PutTensorRequest put = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    Fp8d__V1__ForwardRequest forward = FP8D__V1__FORWARD_REQUEST__INIT;
    Fp8d__V1__CheckNumericsRequest check = FP8D__V1__CHECK_NUMERICS_REQUEST__INIT;
    Fp8d__V1__EditWeightRequest edit = FP8D__V1__EDIT_WEIGHT_REQUEST__INIT;
    const ProtobufCMessage *const messages[] = {&put.base, &forward.base, &check.base, &edit.base};
    static const uint16_t types[] = {REQUEST_PUT_TENSOR, REQUEST_FORWARD, REQUEST_CHECK_NUMERICS,
                                     REQUEST_EDIT_WEIGHT};
    struct ref r;
    put.tensor = forward.input = check.input = edit.weight = ref_of(&r, row);
    put.tensor_id = 900;
    forward.model = check.model = edit.model = str("m");
    forward.layer = check.layer = edit.layer = str("a");
    return served_call(&S, ATTACKER, types[target], messages[target], payload, row->payload, NULL,
                       0, text);
}

static void hears(const char *field, const char *parts)
{
    ck_assert_msg(!field || strstr(text, field), "\"%s\" does not name %s", text, field);
    served_says("sentence", text, parts);
}

static const char *const fields[TARGETS] = {"tensor", "input", "input", "weight"};

static void refuse_everywhere(const struct row *rows, size_t n, unsigned code)
{
    for (size_t i = 0; i < n; i++)
        for (unsigned t = 0; t < TARGETS; t++) {
            unsigned got = ask((enum target)t, &rows[i]);
            ck_assert_msg(got == code, "row %zu of %s: code %u, \"%s\"", i, fields[t], got, text);
            hears(strncmp(rows[i].says, "payload", 7) == 0 ? NULL : fields[t], rows[i].says);
            picture_same(&S, &P);
        }
}

#define F32 FP8D__V1__DTYPE__DTYPE_F32
#define BF16 FP8D__V1__DTYPE__DTYPE_BF16
#define E4M3 FP8D__V1__DTYPE__DTYPE_F8_E4M3
#define E5M2 FP8D__V1__DTYPE__DTYPE_F8_E5M2
#define COUNT(rows) (sizeof(rows) / sizeof *(rows))
#define BIG ((uint64_t)1 << 63)

/* clang-format off */ /* which gives each member of a row a line */

/* --- dtype, dims, place --- */

START_TEST(tensor_dtype_must_be_one_that_computes)
{
    /* Unset and every dtype that is only reported. */
    static const char *const names[] = {"unset", "", "", "", "", "", "F64", "BOOL", "F4"};
    for (unsigned t = 0; t <= 22; t++) {
        if (t >= 1 && t <= 5)
            continue;
        struct row row = {
            .dtype = t, .rank = 2, .dims = {3, 32}, .place = INLINE, .length = 384, .payload = 384};
        char says[64];
        (void)snprintf(says, sizeof says, "dtype is %s|needed F32, BF16, F16, F8_E4M3 or F8_E5M2",
                       t < 9 ? names[t] : "");
        row.says = says;
        refuse_everywhere(&row, 1, INVALID_ARGUMENT);
    }
}
END_TEST

START_TEST(tensor_dims_must_be_a_number_of_bytes)
{
    /* Ranks outside 1 to 8, products that overflow before or after a zero, sizes of 2^63 and more.
     */
    static const struct row rows[] = {
        {F32, 0, {0}, INLINE, 0, 384, .payload = 384, .says = "dims has 0 dimensions|1 to 8"},
        {F32, 9, {1, 1, 1, 1, 1, 1, 1, 3, 32}, INLINE, 0, 384, .payload = 384,
         .says = "dims has 9 dimensions|1 to 8"},
        {F32, 2, {BIG, 2}, INLINE, 0, 0, .payload = 0, .says = "dims|product"},
        {F32, 2, {BIG, 32}, INLINE, 0, 384, .payload = 384, .says = "dims|product"},
        {F32, 2, {1ull << 32, 1ull << 32}, INLINE, 0, 0, .payload = 0, .says = "dims|product"},
        {F32, 1, {1ull << 62}, INLINE, 0, 0, .payload = 0, .says = "dims|product"},
        {F32, 1, {UINT64_MAX}, INLINE, 0, 384, .payload = 384, .says = "dims|product"},
        {F32, 3, {BIG, 4, 0}, INLINE, 0, 0, .payload = 0, .says = "dims|product"},
        {BF16, 2, {BIG, 32}, INLINE, 0, 0, .payload = 0, .says = "dims|product"},
        {E4M3, 2, {BIG, 32}, INLINE, 0, 0, 1, {1}, .payload = 0, .says = "dims|product"},
        {E5M2, 2, {BIG, 0}, INLINE, 0, 0, 1, {2}, .payload = 0, .says = "dims|is 0|at least 1"},
    };
    refuse_everywhere(rows, COUNT(rows), INVALID_ARGUMENT);
}
END_TEST

START_TEST(tensor_place_must_be_inside_and_cover)
{
    /* No place; lengths that dtype and dims do not say; outside, misaligned, not covering. */
    static const struct row rows[] = {
        {F32, 2, {3, 32}, NONE, .says = "has no |inline_bytes"},
        {F32, 2, {3, 32}, INLINE, 0, 0, .payload = 384, .says = "inline_bytes.length is 0|384"},
        {F32, 2, {3, 32}, INLINE, 0, 383, .payload = 384, .says = "inline_bytes.length is 383|384"},
        {F32, 2, {3, 32}, INLINE, 0, BIG, .payload = 384,
         .says = "inline_bytes.length is 9223372036854775808|384"},
        {F32, 2, {3, 32}, INLINE, 0, UINT64_MAX, .payload = 384,
         .says = "inline_bytes.length is 1844"},
        {F32, 2, {3, 32}, INLINE, 4, 384, .payload = 384,
         .says = "inline_bytes is 384 bytes at 4|the payload has 384"},
        {F32, 2, {3, 32}, INLINE, UINT64_MAX, 384, .payload = 384,
         .says = "384 bytes at 18446744073709551615|the payload has 384"},
        {F32, 2, {3, 32}, INLINE, UINT64_MAX - 383, 384, .payload = 384, .says = "inline_bytes"},
        {F32, 2, {3, 32}, INLINE, BIG, 384, .payload = 384, .says = "384 bytes at 92233"},
        {F32, 2, {3, 32}, INLINE, 0, 384, .payload = 380, .says = "384 bytes at 0|has 380"},
        {F32, 2, {3, 32}, INLINE, 0, 384, .payload = 0, .says = "384 bytes at 0|has 0"},
        {F32, 2, {3, 32}, INLINE, 2, 384, .payload = 386,
         .says = "inline_bytes.offset is 2|multiple of the element size 4"},
        {BF16, 2, {3, 32}, INLINE, 1, 192, .payload = 193,
         .says = "inline_bytes.offset is 1|multiple of the element size 2"},
        {F32, 2, {3, 32}, INLINE, 0, 384, .payload = 388,
         .says = "payload has 388 bytes|cover 384"},
        {F32, 2, {3, 32}, INLINE, 4, 384, .payload = 388,
         .says = "payload has 388 bytes|cover 384"},
        {F32, 2, {0, 32}, INLINE, 0, 0, .payload = 4, .says = "payload has 4 bytes|cover 0"},
    };
    refuse_everywhere(rows, COUNT(rows), INVALID_ARGUMENT);
}
END_TEST

START_TEST(tensor_factors_belong_to_fp8_alone)
{
    /* FP8 without a factor or with two, factors that are no scale, factors on other dtypes. */
    const struct row rows[] = {
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 0, {0}, .payload = 96,
         .says = "scale_inv has 0 factors|exactly 1"},
        {E5M2, 2, {3, 32}, INLINE, 0, 96, 2, {1, 1}, .payload = 96,
         .says = "scale_inv has 2 factors|exactly 1"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {NAN}, .payload = 96,
         .says = "scale_inv is|nan|finite"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {INFINITY}, .payload = 96, .says = "scale_inv is inf"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {-INFINITY}, .payload = 96,
         .says = "scale_inv is -inf"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {0}, .payload = 96, .says = "scale_inv is 0|2^-128"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {-0.0f}, .payload = 96, .says = "scale_inv is -0"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {-1}, .payload = 96, .says = "scale_inv is -1|2^-128"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {0x1.fffffp-129f}, .payload = 96,
         .says = "scale_inv is|2^-128"},
        {E4M3, 2, {3, 32}, INLINE, 0, 96, 1, {0x1p-149f}, .payload = 96,
         .says = "scale_inv is|2^-128"},
        {F32, 2, {3, 32}, INLINE, 0, 384, 1, {1}, .payload = 384,
         .says = "1 factors (scale_inv)|F32"},
        {BF16, 2, {3, 32}, INLINE, 0, 192, 1, {NAN}, .payload = 192, .says = "scale_inv|BF16"},
        {F32, 2, {3, 32}, INLINE, 0, 384, .granularity = 1, .payload = 384,
         .says = "granularity|F32"},
    };
    refuse_everywhere(rows, COUNT(rows), INVALID_ARGUMENT);
}
END_TEST

/* clang-format on */

/* --- resident tensors --- */

static void put(uint64_t conn, uint64_t id, const struct row *row)
{
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    struct ref r;
    m.tensor_id = id;
    m.tensor = ref_of(&r, row);
    ck_assert_msg(served_call(&S, conn, REQUEST_PUT_TENSOR, &m.base, payload, row->payload, NULL, 0,
                              text) == OK,
                  "%s", text);
}

static unsigned free_tensor(uint64_t id)
{
    Fp8d__V1__FreeTensorRequest m = FP8D__V1__FREE_TENSOR_REQUEST__INIT;
    m.tensor_id = id;
    return desk_call(S.d, ATTACKER, REQUEST_FREE_TENSOR, &m.base, NULL, 0, NULL, text);
}

static const struct row good = {F32, 2, {3, 32}, INLINE, 0, 384, .payload = 384, .says = ""};
static const struct row good_fp8 = {E4M3, 2, {3, 32}, INLINE,        0,
                                    96,   1, {0.5f},  .payload = 96, .says = ""};

START_TEST(tensor_ids_are_those_of_the_connection)
{
    /* Zero, unknown, foreign, freed ids and huge ones are NOT_FOUND, with the id. */
    static const uint64_t ids[] = {0, 1, 7, 8, BIG, UINT64_MAX};
    put(BYSTANDER, 7, &good);
    put(ATTACKER, 8, &good);
    ck_assert_uint_eq(free_tensor(8), OK);
    ck_assert_uint_eq(free_tensor(8), NOT_FOUND);
    struct picture p;
    picture_take(&S, &p);
    for (size_t i = 0; i < COUNT(ids); i++) {
        char says[64];
        (void)snprintf(says, sizeof says, "tensor_id %llu", (unsigned long long)ids[i]);
        struct row row = {.place = RESIDENT, .offset = ids[i]};
        for (unsigned t = FORWARD; t < TARGETS; t++) {
            ck_assert_uint_eq(ask((enum target)t, &row), NOT_FOUND);
            hears(fields[t], says);
        }
        Fp8d__V1__GetTensorRequest g = FP8D__V1__GET_TENSOR_REQUEST__INIT;
        g.tensor_id = ids[i];
        ck_assert_uint_eq(
            desk_call(S.d, ATTACKER, REQUEST_GET_TENSOR, &g.base, NULL, 0, NULL, text), NOT_FOUND);
        hears(NULL, says);
        ck_assert_uint_eq(free_tensor(ids[i]), NOT_FOUND);
        picture_same(&S, &p);
    }
    picture_fini(&p);
}
END_TEST

START_TEST(tensor_descriptions_of_residents_must_agree)
{
    /* dtype, dims and factor beside a tensor_id may be left out; if given, they are those of the
     * tensor. */
    static const struct row rows[] = {
        {BF16, 0, {0}, RESIDENT, 1, .says = "input.dtype is BF16|F32"},
        {0, 2, {3, 31}, RESIDENT, 1, .says = "input.dims"},
        {0, 1, {96}, RESIDENT, 1, .says = "input.dims"},
        {0, 9, {1, 1, 1, 1, 1, 1, 1, 3, 32}, RESIDENT, 1, .says = "input.dims"},
        {0, 0, {0}, RESIDENT, 1, 0, 1, {1}, .says = "input.scale_inv"},
        {0, 0, {0}, RESIDENT, 2, 0, 1, {0.25f}, .says = "input.scale_inv is 0.25|0.5"},
        {0, 0, {0}, RESIDENT, 2, 0, 2, {0.5f, 0.5f}, .says = "input.scale_inv"},
        {E5M2, 0, {0}, RESIDENT, 2, .says = "input.dtype is F8_E5M2|F8_E4M3"},
    };
    const struct row fine[] = {
        {F32, 2, {3, 32}, RESIDENT, 1, .says = ""},
        {E4M3, 2, {3, 32}, RESIDENT, 2, 0, 1, {0.5f}, .granularity = 1, .says = ""}};
    put(ATTACKER, 1, &good);
    put(ATTACKER, 2, &good_fp8);
    for (size_t i = 0; i < COUNT(rows); i++) {
        unsigned code = ask(FORWARD, &rows[i]);
        ck_assert_msg(code == INVALID_ARGUMENT, "row %zu: code %u, \"%s\"", i, code, text);
        hears(NULL, rows[i].says);
    }
    for (size_t i = 0; i < COUNT(fine); i++)
        ck_assert_msg(ask(FORWARD, &fine[i]) == OK, "row %zu: %s", i, text);
    struct row inline_too = {.place = RESIDENT, .offset = 1, .payload = 4};
    ck_assert_uint_eq(ask(FORWARD, &inline_too), INVALID_ARGUMENT);
    hears(NULL, "payload has 4 bytes|cover 0");
}
END_TEST

START_TEST(tensor_put_is_inline_and_under_a_free_id)
{
    /* Put of a resident, of nothing, under 0, under an id in use. */
    Fp8d__V1__PutTensorRequest m = FP8D__V1__PUT_TENSOR_REQUEST__INIT;
    struct ref r;
    put(ATTACKER, 1, &good);
    struct row resident = {.place = RESIDENT, .offset = 1};
    ck_assert_uint_eq(ask(PUT, &resident), INVALID_ARGUMENT);
    hears("tensor", "inline_bytes");
    m.tensor_id = 5;
    ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_PUT_TENSOR, &m.base, NULL, 0, NULL, text),
                      INVALID_ARGUMENT);
    hears("tensor", "is missing");
    for (unsigned fp8 = 0; fp8 < 2; fp8++) {
        const struct row *row = fp8 ? &good_fp8 : &good;
        m.tensor = ref_of(&r, row);
        m.tensor_id = 0;
        ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_PUT_TENSOR, &m.base, payload,
                                    row->payload, NULL, text),
                          INVALID_ARGUMENT);
        hears("tensor_id", "is 0");
        m.tensor_id = 1;
        ck_assert_uint_eq(desk_call(S.d, ATTACKER, REQUEST_PUT_TENSOR, &m.base, payload,
                                    row->payload, NULL, text),
                          ALREADY_EXISTS);
        hears("tensor_id", "1 is in use");
    }
    ck_assert_uint_eq(free_tensor(1), OK);
    picture_same(&S, &P);
}
END_TEST

START_TEST(tensor_of_size_zero_is_defined)
{
    /* Zero dimensions are fine where the shape fits: put, get, forward give empty tensors. */
    static const struct row rows[] = {
        {F32, 2, {0, 32}, INLINE, 0, 0, .says = ""},
        {F32, 3, {5, 0, 32}, INLINE, 0, 0, .says = ""},
        {F32, 3, {BIG, 0, 32}, INLINE, 0, 0, .says = ""},
        {E4M3, 2, {0, 32}, INLINE, 0, 0, 1, {2}, .says = ""},
    };
    static const struct row odd[] = {
        {F32, 2, {0, BIG}, INLINE, 0, 0, .says = ""},
        {F32, 2, {BIG, 0}, INLINE, 0, 0, .says = ""},
        {E4M3, 2, {0, BIG}, INLINE, 0, 0, 1, {2}, .says = ""},
        {F32, 1, {0}, INLINE, 0, 0, .says = ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        ck_assert_msg(ask(FORWARD, &rows[i]) == OK, "row %zu: %s", i, text);
    for (size_t i = 0; i < COUNT(odd); i++) {
        Fp8d__V1__GetTensorRequest g = FP8D__V1__GET_TENSOR_REQUEST__INIT;
        put(ATTACKER, 3, &odd[i]);
        g.tensor_id = 3;
        ck_assert_uint_eq(
            desk_call(S.d, ATTACKER, REQUEST_GET_TENSOR, &g.base, NULL, 0, NULL, text), OK);
        for (unsigned t = FORWARD; t < TARGETS; t++) {
            unsigned code = ask((enum target)t, &odd[i]);
            ck_assert(code == INVALID_ARGUMENT ||
                      (t == EDIT && odd[i].factors && code == UNIMPLEMENTED));
        }
        ck_assert_uint_eq(free_tensor(3), OK);
    }
    picture_same(&S, &P);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_tensor");
    TCase *t = tcase_create("tensor");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, tensor_dtype_must_be_one_that_computes);
    tcase_add_test(t, tensor_dims_must_be_a_number_of_bytes);
    tcase_add_test(t, tensor_place_must_be_inside_and_cover);
    tcase_add_test(t, tensor_factors_belong_to_fp8_alone);
    tcase_add_test(t, tensor_ids_are_those_of_the_connection);
    tcase_add_test(t, tensor_descriptions_of_residents_must_agree);
    tcase_add_test(t, tensor_put_is_inline_and_under_a_free_id);
    tcase_add_test(t, tensor_of_size_zero_is_defined);
    suite_add_tcase(s, t);
    return run_suite(s);
}
