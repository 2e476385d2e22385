/* test_rpc_bad_state.c - changes of scaling state and models made from tensors, asked for in ways
 * that must be refused: the sentence has field, value found and value needed, nothing of the served
 * model moves, and the other client goes on. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- fixture --- */

static struct served S;
static struct picture P;
static char text[1024];
static char root[64]; /* below load_roots */

static void open_served(void)
{
    struct engine_options o = {.load_roots = root};
    (void)snprintf(root, sizeof root, "/tmp/fp8d-bad-state-XXXXXX");
    ck_assert(mkdtemp(root) != NULL);
    served_open(&S, &o, 0);
    picture_take(&S, &P);
}

static void close_served(void)
{
    picture_fini(&P);
    served_close(&S);
    ck_assert_int_eq(rmdir(root), 0); /* nothing was written there, or it was taken away */
}

/* --- helpers --- */

static void refuse(uint16_t type, const ProtobufCMessage *m, unsigned code, const char *parts)
{
    served_refuses(&S, &P, type, m, code, parts);
}

static uint64_t incarnation(void)
{
    Fp8d__V1__ErrorReply *head = desk_head(P.layers);
    uint64_t v = head->head->incarnation;
    fp8d__v1__error_reply__free_unpacked(head, NULL);
    return v;
}

static void scope(bool open)
{
    Fp8d__V1__BeginScopeRequest b = FP8D__V1__BEGIN_SCOPE_REQUEST__INIT;
    Fp8d__V1__EndScopeRequest e = FP8D__V1__END_SCOPE_REQUEST__INIT;
    b.scope_id = e.scope_id = 7;
    b.model = str("m");
    e.discard = true;
    served_accepts(&S, BYSTANDER, open ? REQUEST_BEGIN_SCOPE : REQUEST_END_SCOPE,
                   open ? &b.base : &e.base);
    picture_fini(&P);
    picture_take(&S, &P); /* "scope open" is seen */
}

/* --- scaling --- */

START_TEST(input_set_scaling)
{
    /* Unset and unknown actions, models that are not there, and another model than expected. */
    Fp8d__V1__SetScalingRequest m = FP8D__V1__SET_SCALING_REQUEST__INIT;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    m.model = str("m");
    refuse(REQUEST_SET_SCALING, &m.base, INVALID_ARGUMENT, "action is|RESET, FREEZE or UNFREEZE");
    m.action = 4;
    refuse(REQUEST_SET_SCALING, &m.base, INVALID_ARGUMENT, "action is 4|ScalingAction");
    for (m.action = 1; m.action <= 3; m.action++) {
        m.model = str("absent");
        refuse(REQUEST_SET_SCALING, &m.base, NOT_FOUND, "absent");
        m.model = str("");
        refuse(REQUEST_SET_SCALING, &m.base, INVALID_ARGUMENT, "model is \"\"|1 to 128 bytes");
        m.model = str("m/..");
        refuse(REQUEST_SET_SCALING, &m.base, INVALID_ARGUMENT, "model is \"m/..\"|1 to 128 bytes");
        m.model = str("m");
        m.expect = &x;
        x.incarnation = incarnation() + 1;
        refuse(REQUEST_SET_SCALING, &m.base, FAILED_PRECONDITION,
               "expect.incarnation is|model m has");
        x.incarnation = incarnation();
        x.weight_version = 77;
        refuse(REQUEST_SET_SCALING, &m.base, FAILED_PRECONDITION,
               "expect.weight_version is 77|model m has 1");
        x.weight_version = 0;
        m.expect = NULL;
    }
}
END_TEST

START_TEST(input_set_recipe)
{
    /* Values out of range; models as above. */
    Fp8d__V1__SetRecipeRequest m = FP8D__V1__SET_RECIPE_REQUEST__INIT;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    m.model = str("m");
    m.recipe = &r;
    r.margin = 32;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "recipe.margin is 32|0 to 31");
    r.margin_set = true;
    r.margin = UINT32_MAX;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "recipe.margin is 4294967295|0 to 31");
    r.margin = 1;
    r.amax_history_len = 65537;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT,
           "recipe.amax_history_len is 65537|1 to 65536");
    r.amax_history_len = UINT32_MAX;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "recipe.amax_history_len is 4294967295");
    r.amax_history_len = 2;
    r.kind = 3;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "recipe.kind is 3|RecipeKind");
    r.kind = 2;
    r.fp8_format = 3;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "recipe.fp8_format is 3|Fp8Format");
    r.fp8_format = 2;
    r.amax_algo = 1000;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "recipe.amax_algo is 1000|AmaxAlgo");
    r.amax_algo = 2;
    r.fprop_accumulation = 3;
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT,
           "recipe.fprop_accumulation is 3|FpropAccumulation");
    r.fprop_accumulation = 2;
    m.model = str("absent");
    refuse(REQUEST_SET_RECIPE, &m.base, NOT_FOUND, "absent");
    m.model = str(" ");
    refuse(REQUEST_SET_RECIPE, &m.base, INVALID_ARGUMENT, "model is \" \"|1 to 128 bytes");
    m.model = str("m");
    m.expect = &x;
    x.incarnation = 999;
    refuse(REQUEST_SET_RECIPE, &m.base, FAILED_PRECONDITION,
           "expect.incarnation is 999|model m has");
    x.incarnation = 0;
    x.weight_version = 2;
    refuse(REQUEST_SET_RECIPE, &m.base, FAILED_PRECONDITION,
           "expect.weight_version is 2|model m has 1");
}
END_TEST

START_TEST(input_changes_under_a_scope)
{
    /* The bystander's scope keeps its model from reset, recipe and save, and it is named. */
    Fp8d__V1__SetScalingRequest s = FP8D__V1__SET_SCALING_REQUEST__INIT;
    Fp8d__V1__SetRecipeRequest r = FP8D__V1__SET_RECIPE_REQUEST__INIT;
    Fp8d__V1__SaveBeginRequest b = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    Fp8d__V1__SaveCommitRequest c = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/out", root);
    s.model = r.model = b.model = str("m");
    s.action = FP8D__V1__SCALING_ACTION__SCALING_ACTION_RESET;
    b.save_id = c.save_id = 5;
    b.target = FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    b.server_path = path;
    served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &b.base);
    scope(true);
    refuse(REQUEST_SET_SCALING, &s.base, FAILED_PRECONDITION, "model m|scope 7 of connection 2");
    refuse(REQUEST_SET_RECIPE, &r.base, FAILED_PRECONDITION, "model m|scope 7 of connection 2");
    refuse(REQUEST_SAVE_COMMIT, &c.base, FAILED_PRECONDITION, "model m|scope 7 of connection 2");
    scope(false);
    served_accepts(&S, ATTACKER, REQUEST_SAVE_COMMIT, &c.base); /* it was kept */
    ck_assert_int_eq(unlink(path), 0);
    picture_same(&S, &P);
}
END_TEST

/* --- models from tensors --- */

/* Two layers of 16 x 16 F32 of a payload of 2048 bytes. */
struct making {
    Fp8d__V1__CreateModelRequest m;
    Fp8d__V1__LayerSpec spec[2], *list[2];
    Fp8d__V1__TensorRef ref[2];
    Fp8d__V1__InlinePlace place[2];
    uint64_t dims[2];
};

static void making_init(struct making *k)
{
    fp8d__v1__create_model_request__init(&k->m);
    k->m.model = str("x");
    k->m.layers = k->list;
    k->m.n_layers = 2;
    k->dims[0] = k->dims[1] = 16;
    for (unsigned i = 0; i < 2; i++) {
        fp8d__v1__layer_spec__init(&k->spec[i]);
        fp8d__v1__tensor_ref__init(&k->ref[i]);
        fp8d__v1__inline_place__init(&k->place[i]);
        k->list[i] = &k->spec[i];
        k->spec[i].name = str(i ? "two" : "one");
        k->spec[i].weight = &k->ref[i];
        k->ref[i].dtype = FP8D__V1__DTYPE__DTYPE_F32;
        k->ref[i].n_dims = 2;
        k->ref[i].dims = k->dims;
        k->ref[i].place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
        k->ref[i].inline_bytes = &k->place[i];
        k->place[i].offset = i * 1024;
        k->place[i].length = 1024;
    }
}

static unsigned make(struct making *k)
{
    static const float payload[512];
    return served_call(&S, ATTACKER, REQUEST_CREATE_MODEL, &k->m.base, payload, sizeof payload,
                       NULL, 0, text);
}

static void refuse_making(struct making *k, unsigned code, const char *parts)
{
    unsigned got = make(k);
    ck_assert_msg(got == code, "CreateModel: code %u, needed %u: %s", got, code, text);
    served_says("CreateModel", text, parts);
    picture_same(&S, &P);
    making_init(k);
}

START_TEST(input_create_model)
{
    /* Names, tensors and recipes that are none; a payload not used once and whole. */
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    Fp8d__V1__DropModelRequest drop = FP8D__V1__DROP_MODEL_REQUEST__INIT;
    struct making k;
    making_init(&k);
    k.m.model = str("m");
    refuse_making(&k, ALREADY_EXISTS, "model m|loaded");
    k.m.model = str("x y");
    refuse_making(&k, INVALID_ARGUMENT, "model is \"x y\"|1 to 128 bytes");
    k.m.n_layers = 0;
    refuse_making(&k, INVALID_ARGUMENT, "layers has 0 entries|1 to 4096");
    k.m.n_layers = 1;
    refuse_making(&k, INVALID_ARGUMENT, "1024|2048");
    k.spec[1].name = str("one");
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].name is that of layers[0]");
    k.spec[1].name = str("");
    refuse_making(&k, INVALID_ARGUMENT, "layers.name has 0 bytes|1 to 984");
    k.spec[1].weight = NULL;
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].weight is missing");
    k.ref[1].place_case = FP8D__V1__TENSOR_REF__PLACE__NOT_SET;
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].weight has no place");
    k.ref[1].place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    k.ref[1].tensor_id = 9;
    refuse_making(&k, NOT_FOUND, "layers[1].weight.tensor_id|9");
    k.place[1].offset = 0;
    refuse_making(&k, INVALID_ARGUMENT, "overlap");
    k.place[1].offset = 1025;
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].weight.inline_bytes|1025|2048");
    k.place[1].offset = UINT64_MAX;
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].weight.inline_bytes|2048");
    k.place[1].length = 1020;
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].weight.inline_bytes.length is 1020|1024");
    k.dims[0] = UINT64_MAX;
    refuse_making(&k, INVALID_ARGUMENT, "layers[0].weight.dims");
    k.ref[0].n_dims = 1;
    k.dims[0] = 256;
    k.m.n_layers = 2;
    k.ref[1].n_dims = 1;
    refuse_making(&k, INVALID_ARGUMENT, "layer \"one\"|weight.dims has rank 1|[out, in]");
    k.ref[1].dtype = FP8D__V1__DTYPE__DTYPE_F64;
    refuse_making(&k, INVALID_ARGUMENT, "layers[1].weight.dtype is F64|needed F32");
    k.ref[1].dtype = 77;
    refuse_making(&k, INVALID_ARGUMENT, "weight.dtype is 77|DType");
    k.spec[0].bias = &k.ref[1];
    k.m.n_layers = 1;
    refuse_making(&k, INVALID_ARGUMENT,
                  "layer \"one\"|bias|rank 2|needed F32, BF16 or F16 of [16]");
    k.m.recipe = &r;
    r.margin = 32;
    refuse_making(&k, INVALID_ARGUMENT, "recipe.margin is 32|0 to 31");
    k.m.recipe = &r;
    r.margin = 0;
    r.amax_history_len = 65537;
    refuse_making(&k, INVALID_ARGUMENT, "recipe.amax_history_len is 65537|1 to 65536");
    ck_assert_msg(make(&k) == OK, "%s", text); /* without a fault it is taken */
    drop.model = str("x");
    served_accepts(&S, ATTACKER, REQUEST_DROP_MODEL, &drop.base);
    picture_same(&S, &P);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_state");
    TCase *c = tcase_create("rpc_bad_state");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, open_served, close_served);
    tcase_add_test(c, input_set_scaling);
    tcase_add_test(c, input_set_recipe);
    tcase_add_test(c, input_changes_under_a_scope);
    tcase_add_test(c, input_create_model);
    suite_add_tcase(s, c);
    return run_suite(s);
}
