/* test_rpc_bad_input.c - names, ids, expectations and frames that must be refused, in every request
 * that has them: the sentence names field, value found and value needed, and nothing changes. */
#include "daemon/rpc/table.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* --- fixture --- */

static struct served S;
static struct picture P;
static char text[1024];

static void open_served(void)
{
    served_open(&S, NULL, 0);
    picture_take(&S, &P);
}

static void close_served(void)
{
    picture_fini(&P);
    served_close(&S);
}

/* --- helpers --- */

static void refused(uint16_t type, const ProtobufCMessage *m, unsigned code, const char *parts)
{
    served_refuses(&S, &P, type, m, code, parts);
}

/* All requests that name a model, else as good as can be. */
struct named {
    Fp8d__V1__DescribeModelRequest describe;
    Fp8d__V1__QueryScalingRequest scaling;
    Fp8d__V1__DropModelRequest drop;
    Fp8d__V1__EditWeightRequest edit;
    Fp8d__V1__ForwardRequest forward;
    Fp8d__V1__CheckNumericsRequest check;
    Fp8d__V1__BeginScopeRequest scope;
    Fp8d__V1__FinishCalibrationRequest finish;
    Fp8d__V1__LoadBeginRequest load;
};

static void named_init(struct named *n, char *model, char *layer, Fp8d__V1__Expect *x)
{
    fp8d__v1__describe_model_request__init(&n->describe);
    fp8d__v1__query_scaling_request__init(&n->scaling);
    fp8d__v1__drop_model_request__init(&n->drop);
    fp8d__v1__edit_weight_request__init(&n->edit);
    fp8d__v1__forward_request__init(&n->forward);
    fp8d__v1__check_numerics_request__init(&n->check);
    fp8d__v1__begin_scope_request__init(&n->scope);
    fp8d__v1__finish_calibration_request__init(&n->finish);
    fp8d__v1__load_begin_request__init(&n->load);
    n->describe.model = n->scaling.model = n->drop.model = n->edit.model = n->forward.model =
        n->check.model = n->scope.model = n->finish.model = n->load.model = model;
    n->scaling.layer = n->edit.layer = n->forward.layer = n->check.layer = layer;
    n->drop.expect = n->edit.expect = n->forward.expect = n->scope.expect = n->finish.expect =
        n->load.expect = x;
    n->scope.scope_id = n->load.load_id = 5;
    n->finish.action = FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_FINISH;
}

static void refuse_models(char *model, unsigned code, const char *parts)
{
    struct named n;
    named_init(&n, model, str("a"), NULL);
    refused(REQUEST_DESCRIBE_MODEL, &n.describe.base, code, parts);
    refused(REQUEST_QUERY_SCALING, &n.scaling.base, code, parts);
    refused(REQUEST_DROP_MODEL, &n.drop.base, code, parts);
    refused(REQUEST_EDIT_WEIGHT, &n.edit.base, code, parts);
    refused(REQUEST_FORWARD, &n.forward.base, code, parts);
    refused(REQUEST_CHECK_NUMERICS, &n.check.base, code, parts);
    refused(REQUEST_BEGIN_SCOPE, &n.scope.base, code, parts);
    refused(REQUEST_FINISH_CALIBRATION, &n.finish.base, code, parts);
    if (code == INVALID_ARGUMENT)
        refused(REQUEST_LOAD_BEGIN, &n.load.base, code, parts);
}

/* --- names --- */

START_TEST(input_model_names)
{
    /* Empty, too long, or of other letters: INVALID_ARGUMENT with the rule; unknown ones NOT_FOUND.
     */
    char longest[130];
    memset(longest, 'm', sizeof longest);
    longest[129] = 0;
    refuse_models(str(""), INVALID_ARGUMENT, "model is \"\"|1 to 128 bytes of [A-Za-z0-9._-]");
    refuse_models(longest, INVALID_ARGUMENT, "model is \"mmm|1 to 128");
    refuse_models(str("a/../b"), INVALID_ARGUMENT, "model is \"a/../b\"|[A-Za-z0-9._-]");
    refuse_models(str("m m"), INVALID_ARGUMENT, "model is \"m m\"");
    refuse_models(str("\xc3\xa4\\"), INVALID_ARGUMENT, "model is \"\xc3\xa4\\x5c\"");
    refuse_models(str("%n%s%99999d"), INVALID_ARGUMENT, "model is \"%n%s%99999d\"");
    longest[128] = 0;
    refuse_models(longest, NOT_FOUND, "is not loaded");
    refuse_models(str("M"), NOT_FOUND, "model \"M\" is not loaded");
    refuse_models(str(".."), NOT_FOUND, "model \"..\" is not loaded");
}
END_TEST

static void refuse_layers(char *layer, unsigned code, const char *parts)
{
    struct named n;
    named_init(&n, str("m"), layer, NULL);
    if (*layer)
        refused(REQUEST_QUERY_SCALING, &n.scaling.base, code, parts);
    refused(REQUEST_EDIT_WEIGHT, &n.edit.base, code, parts);
    refused(REQUEST_FORWARD, &n.forward.base, code, parts);
    refused(REQUEST_CHECK_NUMERICS, &n.check.base, code, parts);
}

START_TEST(input_layer_names)
{
    /* Unknown layers are NOT_FOUND with their name escaped, however hostile, and cut when long. */
    char longest[1026];
    memset(longest, 'l', sizeof longest);
    longest[1025] = 0;
    refuse_layers(str(""), INVALID_ARGUMENT, "layer has 0 bytes|1 to 1024");
    refuse_layers(longest, INVALID_ARGUMENT, "layer has 1025 bytes|1 to 1024");
    longest[1024] = 0;
    refuse_layers(longest, NOT_FOUND, "layer \"lll|...\" is not in model m");
    refuse_layers(str("a.weight"), NOT_FOUND, "layer \"a.weight\" is not in model m");
    refuse_layers(str("\\x00\"%s%n\xf0\x9f\x98\x80"), NOT_FOUND,
                  "layer \"\\x5cx00\"%s%n\xf0\x9f\x98\x80\" is not in model m");
    for (size_t i = 0; i + 3 < sizeof longest; i += 3)
        memcpy(longest + i, "\xe2\x82\xac", 3); /* cut inside a character */
    longest[1023] = 0;
    refuse_layers(longest, NOT_FOUND, "\xe2\x82\xac...\" is not in model m");
}
END_TEST

/* --- ids --- */

/* Ids that are nobody's: a property, because an id is never an address. */
static void refuse_ids(uint64_t id)
{
    char says[3][80];
    Fp8d__V1__EndScopeRequest scope = FP8D__V1__END_SCOPE_REQUEST__INIT;
    Fp8d__V1__DropContextRequest context = FP8D__V1__DROP_CONTEXT_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest load = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    scope.scope_id = context.context_id = load.load_id = id;
    (void)snprintf(says[0], sizeof says[0], "scope_id %llu", (unsigned long long)id);
    (void)snprintf(says[1], sizeof says[1], "context_id %llu", (unsigned long long)id);
    (void)snprintf(says[2], sizeof says[2], "load_id %llu", (unsigned long long)id);
    refused(REQUEST_END_SCOPE, &scope.base, NOT_FOUND, says[0]);
    refused(REQUEST_DROP_CONTEXT, &context.base, NOT_FOUND, says[1]);
    refused(REQUEST_LOAD_COMMIT, &load.base, NOT_FOUND, says[2]);
}

START_TEST(input_ids_of_nobody)
{
    /* Zero, huge, random and address-like ids, ids of the other connection, and ids that ended. */
    Fp8d__V1__BeginScopeRequest scope = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    Fp8d__V1__EndScopeRequest end = FP8D__V1__END_SCOPE_REQUEST__INIT;
    Fp8d__V1__LoadBeginRequest load = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    uint64_t id = 88172645463325252u;
    load.load_id = scope.scope_id = end.scope_id = 31;
    load.model = str("m");
    scope.model = str("m");
    served_accepts(&S, ATTACKER, REQUEST_BEGIN_SCOPE, &scope.base);
    end.discard = true;
    served_accepts(&S, ATTACKER, REQUEST_END_SCOPE, &end.base);
    refuse_ids(31); /* ended */
    served_accepts(&S, BYSTANDER, REQUEST_BEGIN_SCOPE, &scope.base);
    served_accepts(&S, BYSTANDER, REQUEST_LOAD_BEGIN, &load.base);
    picture_fini(&P);
    picture_take(&S, &P);
    refuse_ids(31); /* foreign */
    refuse_ids(0);
    refuse_ids(UINT64_MAX);
    refuse_ids((uint64_t)(uintptr_t)&S);
    refuse_ids((uint64_t)(uintptr_t)S.d->engine);
    for (unsigned i = 0; i < 50; i++) {
        id ^= id << 13;
        id ^= id >> 7;
        id ^= id << 17;
        refuse_ids(id);
    }
}
END_TEST

START_TEST(input_ids_that_are_zero_or_taken)
{
    /* A new scope or load needs a number that is neither 0 nor in use. */
    Fp8d__V1__BeginScopeRequest scope = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    Fp8d__V1__LoadBeginRequest load = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    load.model = str("m");
    scope.model = str("m");
    refused(REQUEST_BEGIN_SCOPE, &scope.base, INVALID_ARGUMENT, "scope_id is 0|from 1 up");
    refused(REQUEST_LOAD_BEGIN, &load.base, INVALID_ARGUMENT, "load_id is 0|from 1 up");
    load.load_id = scope.scope_id = UINT64_MAX;
    served_accepts(&S, ATTACKER, REQUEST_LOAD_BEGIN, &load.base);
    refused(REQUEST_LOAD_BEGIN, &load.base, ALREADY_EXISTS,
            "load_id 18446744073709551615 is in use");
    served_accepts(&S, ATTACKER, REQUEST_BEGIN_SCOPE, &scope.base);
    picture_fini(&P);
    picture_take(&S, &P);
    refused(REQUEST_BEGIN_SCOPE, &scope.base, ALREADY_EXISTS, "scope_id 1844|is in use");
    scope.scope_id = 2;
    refused(REQUEST_BEGIN_SCOPE, &scope.base, FAILED_PRECONDITION,
            "scope 1844|already open|model m");
}
END_TEST

/* --- expectations --- */

static void refuse_expect(Fp8d__V1__Expect *x, const char *parts)
{
    struct named n;
    named_init(&n, str("m"), str("a"), x);
    refused(REQUEST_DROP_MODEL, &n.drop.base, FAILED_PRECONDITION, parts);
    refused(REQUEST_EDIT_WEIGHT, &n.edit.base, FAILED_PRECONDITION, parts);
    refused(REQUEST_FORWARD, &n.forward.base, FAILED_PRECONDITION, parts);
    refused(REQUEST_BEGIN_SCOPE, &n.scope.base, FAILED_PRECONDITION, parts);
    refused(REQUEST_FINISH_CALIBRATION, &n.finish.base, FAILED_PRECONDITION, parts);
    refused(REQUEST_LOAD_BEGIN, &n.load.base, FAILED_PRECONDITION, parts);
}

START_TEST(input_expectations)
{
    /* Another incarnation or version than the model's, in each request that may expect one. */
    struct named n;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    x.incarnation = 1;
    refuse_expect(&x, "expect.incarnation is 1, model m has ");
    x.incarnation = UINT64_MAX;
    refuse_expect(&x, "expect.incarnation is 18446744073709551615");
    x.incarnation = 0;
    x.weight_version = 2;
    refuse_expect(&x, "expect.weight_version is 2, model m has 1");
    named_init(&n, str("absent"), str("a"), &x);
    refused(REQUEST_LOAD_BEGIN, &n.load.base, FAILED_PRECONDITION,
            "expect|weight_version 2|absent");
    x.incarnation = 9;
    refused(REQUEST_LOAD_BEGIN, &n.load.base, FAILED_PRECONDITION, "expect|incarnation 9|absent");
}
END_TEST

/* --- what a frame may carry --- */

START_TEST(input_payload_where_none_is_taken)
{
    /* Each type that takes no payload says so and discards it; descriptors likewise. */
    for (unsigned type = 1; type < 64; type++) {
        const struct request_row *row = request_row((uint16_t)type);
        struct fault f = {0};
        enum net_verdict v;
        if (!row)
            continue;
        struct frame_header h = {.type = (uint16_t)type, .id = 7000 + type, .payload_len = 8};
        if (!row->payload) {
            desk_send_raw(S.d, ATTACKER, &h, "", "12345678", NULL, &v, &f);
            ck_assert_int_eq(v, NET_DISCARD);
            ck_assert_int_eq(served_code(&S, ATTACKER, h.id, text), INVALID_ARGUMENT);
            served_says(row->name, text, "takes no payload, found 8 bytes");
        }
        h.payload_len = 0;
        h.fds = 1;
        if (!row->fds) {
            int fd = open("/dev/null", O_RDONLY);
            desk_send_raw(S.d, ATTACKER, &h, "", NULL, &fd, &v, &f);
            ck_assert_int_eq(v, NET_DISCARD);
            ck_assert_int_eq(served_code(&S, ATTACKER, h.id, text), INVALID_ARGUMENT);
            served_says(row->name, text, "takes no descriptors, found 1");
        }
    }
    picture_same(&S, &P);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_input");
    TCase *t = tcase_create("input");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, input_model_names);
    tcase_add_test(t, input_layer_names);
    tcase_add_test(t, input_ids_of_nobody);
    tcase_add_test(t, input_ids_that_are_zero_or_taken);
    tcase_add_test(t, input_expectations);
    tcase_add_test(t, input_payload_where_none_is_taken);
    suite_add_tcase(s, t);
    return run_suite(s);
}
