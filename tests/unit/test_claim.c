/* test_claim.c - which tensors become layers: over headers written here, friendly and hostile. */
#include "base/mem.h"
#include "daemon/engine/claim.h"
#include "tests/unit/run.h"

#include <inttypes.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- fixture: a header made of rows --- */

struct row {
    const char *name, *dtype;
    unsigned rank;
    uint64_t dims[3];
};

static char json[4 << 20];
static size_t json_len;
static uint64_t data_bytes;
static struct safetensors *header;
static struct claim claim;
static struct fault fault;
static int64_t blocks;

static unsigned element_bytes(const char *dtype)
{
    return !strncmp(dtype, "F8", 2) || dtype[1] == '8' ? 1 : !strcmp(dtype, "F32") ? 4 : 2;
}

static void start(void)
{
    blocks = mem_live_blocks();
    json_len = 0;
    data_bytes = 0;
    header = NULL;
    claim = (struct claim){0};
    fault = (struct fault){0};
}

static void stop(void)
{
    claim_fini(&claim);
    safetensors_free(header);
    ck_assert_int_eq(mem_live_blocks(), blocks);
}

static void add(const struct row *r)
{
    uint64_t bytes = element_bytes(r->dtype);
    json_len += (size_t)snprintf(json + json_len, sizeof json - json_len,
                                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", json_len ? "," : "{",
                                 r->name, r->dtype);
    for (unsigned i = 0; i < r->rank; i++) {
        json_len += (size_t)snprintf(json + json_len, sizeof json - json_len, "%s%" PRIu64,
                                     i ? "," : "", r->dims[i]);
        bytes *= r->dims[i];
    }
    json_len += (size_t)snprintf(json + json_len, sizeof json - json_len,
                                 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", data_bytes,
                                 data_bytes + bytes);
    data_bytes += bytes;
    ck_assert_uint_lt(json_len + 2048, sizeof json);
}

/* Claim what was added. */
static int make(const struct claim_options *o)
{
    json[json_len++] = '}';
    int rc = safetensors_parse(json, json_len, 8 + json_len + data_bytes, NULL, &header, &fault);
    ck_assert_msg(rc == 0, "the header: %s", fault.text);
    return claim_make(header, o, &claim, &fault);
}

static int make_rows(const struct row *rows, size_t n, const struct claim_options *o)
{
    for (size_t i = 0; i < n; i++)
        add(&rows[i]);
    return make(o);
}

#define MAKE(o, ...)                                                                               \
    make_rows((const struct row[]){__VA_ARGS__},                                                   \
              sizeof((const struct row[]){__VA_ARGS__}) / sizeof(struct row), o)

static const struct claim_options strict, lax = {.no_strict = true};

static void says(const char *what)
{
    ck_assert_msg(strstr(fault.text, what), "\"%s\" does not say \"%s\"", fault.text, what);
}

static bool has(const struct claim_lines *l, const char *what)
{
    for (size_t i = 0; i < l->count; i++)
        if (strstr(l->line[i], what))
            return true;
    return false;
}

/* --- what is claimed --- */

START_TEST(claim_takes_matrices_with_their_biases)
{
    /* Every 2-D X.weight is the layer X, with X.bias where there is one; norms and other tensors
     * are ignored with a reason. */
    ck_assert_int_eq(MAKE(&strict, {"a.weight", "F32", 2, {16, 32}}, {"a.bias", "BF16", 1, {16}},
                          {"b.c.weight", "BF16", 2, {48, 16}}, {"norm.weight", "F32", 1, {48}},
                          {"step", "F32", 0, {0}}, {"table", "F16", 2, {3, 5}}),
                     0);
    ck_assert_uint_eq(claim.layer_count, 2);
    ck_assert_str_eq(claim.layers[0].bias->name, "a.bias");
    ck_assert_str_eq(claim.layers[1].name, "b.c");
    ck_assert_ptr_null(claim.layers[1].bias);
    ck_assert_uint_eq(claim.ignored.count, 3);
    ck_assert(has(&claim.ignored, "norm.weight (1-D)") && has(&claim.ignored, "step (0-D") &&
              has(&claim.ignored, "table (2-D"));
}
END_TEST

START_TEST(claim_obeys_only_and_skip)
{
    /* `only` names what is claimed alone, `skip` wins over it; what they leave out may be unfit. */
    char *only[] = {"blocks.*", "head"}, *skip[] = {"*.1.*", "hea?x"};
    struct claim_options o = {.only = only, .only_count = 2, .skip = skip, .skip_count = 2};
    ck_assert_int_eq(
        MAKE(&o, {"blocks.0.q.weight", "F32", 2, {16, 16}}, {"blocks.1.q.weight", "F32", 2, {7, 7}},
             {"head.weight", "F32", 2, {16, 16}}, {"headx.weight", "F32", 3, {1, 1, 1}}),
        0);
    ck_assert_uint_eq(claim.layer_count, 2);
    ck_assert(has(&claim.ignored, "blocks.1.q.weight (skipped)"));
    ck_assert(has(&claim.ignored, "headx.weight (not named by --only)"));
}
END_TEST

START_TEST(claim_skip_of_a_layer_lets_its_siblings_go)
{
    /* Skipping a layer skips what bears its name: neither its bias nor an odd sibling is an error.
     */
    char *skip[] = {"a"};
    struct claim_options o = {.skip = skip, .skip_count = 1};
    ck_assert_int_eq(MAKE(&o, {"a.weight", "F32", 2, {7, 7}}, {"a.bias", "I8", 3, {1, 1, 1}},
                          {"a.extra", "F32", 1, {1}}, {"b.weight", "F32", 2, {16, 16}}),
                     0);
    ck_assert_uint_eq(claim.layer_count, 1);
}
END_TEST

/* --- what strict refuses --- */

START_TEST(claim_names_all_that_cannot_be_layers)
{
    /* One sentence names each of them with its reason and the globs that leave them out. */
    ck_assert_int_eq(MAKE(&strict, {"a.weight", "F32", 2, {15, 16}},
                          {"b.weight", "F32", 2, {16, 31}}, {"c.weight", "F32", 3, {16, 16, 16}},
                          {"d.weight", "U8", 2, {16, 16}}, {"e.weight", "F32", 2, {0, 16}},
                          {"f.weight", "F32", 2, {16, 16}}),
                     FP8D_EINVALID_ARGUMENT);
    says("5 tensors cannot be loaded as layers");
    says("\"a\" (15 out features, needed a multiple of 16)");
    says("\"b\" (31 in features, needed a multiple of 16)");
    says("\"c\" (rank 3, needed 2)");
    says("\"d\" (dtype U8, needed F32, BF16, F16, F8_E4M3 or F8_E5M2)");
    says("\"e\" (0 out features");
    says("--skip 'a' --skip 'b' --skip 'c' --skip 'd' --skip 'e'");
    says("--no-strict");
}
END_TEST

START_TEST(claim_of_many_unfit_counts_them_all)
{
    /* Thousands do not fit the sentence: it is cut with "...", and the count is whole. */
    char name[64];
    for (unsigned i = 0; i < 3000; i++) {
        (void)snprintf(name, sizeof name, "layer%04u.weight", i);
        add(&(struct row){name, "F32", 2, {1, 1}});
    }
    ck_assert_int_eq(make(&strict), FP8D_EINVALID_ARGUMENT);
    says("3000 tensors");
    says("--skip 'layer0000'");
    says("...");
    says("--no-strict"); /* not cut off */
}
END_TEST

START_TEST(claim_not_strict_ignores_the_unfit)
{
    /* The same without strict: ignored with the reason, and the rest is loaded. */
    ck_assert_int_eq(MAKE(&lax, {"a.weight", "F32", 2, {15, 16}},
                          {"c.weight", "F32", 3, {16, 16, 16}}, {"f.weight", "F32", 2, {16, 16}},
                          {"f.weight_scale", "F32", 1, {1}}),
                     0);
    ck_assert_uint_eq(claim.layer_count, 1);
    ck_assert(has(&claim.ignored, "a.weight (cannot be a layer: 15 out features"));
    ck_assert(has(&claim.ignored, "c.weight (cannot be a layer: rank 3"));
    ck_assert(has(&claim.notes, "\"f.weight_scale\" bears the name of layer \"f\""));
}
END_TEST

START_TEST(claim_unused_sibling_is_refused_when_strict)
{
    /* A scale beside a weight that nobody would use is an error (it is how outputs go wrong by a
     * factor of 770), and the glob that the sentence prints is one that helps. */
    ck_assert_int_eq(MAKE(&strict, {"f.weight", "F32", 2, {16, 16}},
                          {"f.weight_scale", "F32", 1, {1}}, {"g.weight", "F32", 2, {16, 16}}),
                     FP8D_EINVALID_ARGUMENT);
    says("\"f.weight_scale\"");
    says("--skip 'f'");
    says("--no-strict");
}
END_TEST

START_TEST(claim_globs_are_safe_to_paste)
{
    /* A name of a hostile file does not end the quotes of the printed command, and the glob that is
     * printed in its place matches it. */
    const char *name = "a'; rm -rf ~ #\u00e4*";
    char weight[64];
    (void)snprintf(weight, sizeof weight, "%s.weight", name);
    ck_assert_int_eq(MAKE(&strict, {weight, "F32", 2, {16, 15}}), FP8D_EINVALID_ARGUMENT);
    says("--skip 'a???rm?-rf???????");
    stop();
    start();
    char *skip[] = {"a???rm?-rf???????"};
    struct claim_options o = {.skip = skip, .skip_count = 1};
    ck_assert_int_eq(MAKE(&o, {weight, "F32", 2, {16, 15}}, {"b.weight", "F32", 2, {16, 16}}), 0);
}
END_TEST

START_TEST(claim_fp8_weight_needs_one_factor)
{
    /* FP8 weights without a factor are refused by name, strict or not, unless they
     * are skipped. */
    const struct claim_options *both[] = {&strict, &lax};
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(MAKE(both[i], {"a.weight", "F32", 2, {16, 16}},
                              {"q.weight", i ? "F8_E5M2" : "F8_E4M3", 2, {16, 16}}),
                         FP8D_EINVALID_ARGUMENT);
        says("\"q.weight\"");
        says(i ? "F8_E5M2" : "F8_E4M3");
        says("needed q.weight_scale or q.weight_scale_inv");
        stop();
        start();
    }
    char *skip[] = {"q"};
    struct claim_options o = {.skip = skip, .skip_count = 1};
    ck_assert_int_eq(
        MAKE(&o, {"a.weight", "F32", 2, {16, 16}}, {"q.weight", "F8_E4M3", 2, {16, 16}}), 0);
}
END_TEST

START_TEST(claim_bad_bias_is_always_an_error)
{
    /* The bias of a claimed layer must fit it, strict or not. */
    static const struct {
        struct row bias;
        const char *says;
    } rows[] = {
        {{"a.bias", "F32", 1, {17}}, "17"},      {{"a.bias", "F32", 2, {16, 1}}, "rank 2"},
        {{"a.bias", "F32", 0, {0}}, "rank 0"},   {{"a.bias", "F32", 1, {0}}, "rank 1 and 0"},
        {{"a.bias", "U8", 1, {16}}, "dtype U8"}, {{"a.bias", "F8_E4M3", 1, {16}}, "dtype F8_E4M3"}};
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof rows[0]); i++) {
        add(&(struct row){"a.weight", "F32", 2, {16, 32}});
        add(&rows[i / 2].bias);
        ck_assert_int_eq(make(i % 2 ? &lax : &strict), FP8D_EINVALID_ARGUMENT);
        says("\"a.bias\"");
        says(rows[i / 2].says);
        stop();
        start();
    }
}
END_TEST

START_TEST(claim_of_nothing_is_an_error)
{
    /* No layer at all: an empty file, one of odd names, or globs that leave nothing. */
    char *only[] = {"z*"};
    struct claim_options none = {.only = only, .only_count = 1};
    json[json_len++] = '{';
    ck_assert_int_eq(make(&lax), FP8D_EINVALID_ARGUMENT);
    says("no layer was found");
    stop();
    start();
    ck_assert_int_eq(MAKE(&lax, {".weight", "F32", 2, {16, 16}}, {"weight", "F32", 2, {16, 16}},
                          {"aweight", "F32", 2, {16, 16}}, {"a.weights", "F32", 2, {16, 16}}),
                     FP8D_EINVALID_ARGUMENT);
    stop();
    start();
    ck_assert_int_eq(MAKE(&none, {"a.weight", "F32", 2, {16, 16}}, {"b.weight", "F32", 2, {16, 16}}),
                     FP8D_EINVALID_ARGUMENT);
    says("no layer was found: only and skip left out all 2 tensors whose names end in .weight");
}
END_TEST

/* --- size --- */

START_TEST(claim_of_20000_tensors_is_quick_and_whole)
{
    /* 5 000 layers and 15 000 tensors of no layer: all claimed in a few seconds, the lists capped,
     * what is not listed counted; the last layer by name is claimed like the first. */
    char name[64];
    for (unsigned i = 0; i < 20000; i++) {
        (void)snprintf(name, sizeof name, i < 5000 ? "x.%05u.weight" : "a.%05u.other", i);
        add(&(struct row){name, "BF16", 2, {16, 16}});
    }
    clock_t before = clock();
    ck_assert_msg(make(&strict) == 0, "%s", fault.text);
    ck_assert_int_lt(clock() - before, 5 * CLOCKS_PER_SEC);
    ck_assert_uint_eq(claim.layer_count, 5000);
    ck_assert_str_eq(claim.layers[4999].name, "x.04999");
    ck_assert_uint_le(claim.ignored.count, CLAIM_LINES_MAX);
    ck_assert_uint_eq(claim.ignored.count + claim.ignored.dropped, 15000);
}
END_TEST

START_TEST(claim_finds_layers_of_any_order)
{
    /* '-' sorts before '.', so that layers and weights are ordered differently: siblings still find
     * their layer. */
    ck_assert_int_eq(MAKE(&lax, {"a.weight", "F32", 2, {16, 16}}, {"a.x", "F32", 1, {1}},
                          {"a-b.weight", "F32", 2, {16, 16}}, {"a-b.x", "F32", 1, {1}},
                          {"a.b.weight", "F32", 2, {16, 16}}, {"a.b.x", "F32", 1, {1}},
                          {"a", "F32", 1, {1}}, {"a.", "F32", 1, {1}}, {"aa.x", "F32", 1, {1}}),
                     0);
    ck_assert_uint_eq(claim.layer_count, 3);
    ck_assert_uint_eq(claim.notes.count, 4);
    ck_assert(has(&claim.notes, "\"a-b\"") && has(&claim.notes, "\"a.b\"") &&
              has(&claim.notes, "\"a.\""));
}
END_TEST

START_TEST(claim_of_very_long_names)
{
    /* Names of 1 024 bytes: layers, siblings and refusals work and sentences stay whole. */
    char weight[1025], other[1025];
    memset(weight, 'n', sizeof weight);
    memcpy(weight + 1024 - 7, ".weight", 8);
    memcpy(other, weight, sizeof other);
    memcpy(other + 1024 - 7, ".bias", 6);
    ck_assert_int_eq(MAKE(&strict, {weight, "F32", 2, {16, 16}}, {other, "F32", 1, {16}}), 0);
    ck_assert_uint_eq(strlen(claim.layers[0].name), 1024 - 7);
    ck_assert_ptr_nonnull(claim.layers[0].bias);
    stop();
    start();
    ck_assert_int_eq(MAKE(&strict, {weight, "F32", 2, {16, 15}}), FP8D_EINVALID_ARGUMENT);
    says("15 in features");
    says("--no-strict");
}
END_TEST

START_TEST(claim_hostile_globs_take_bounded_time)
{
    /* Globs that blow up backtracking matchers, 256 of them over names of 1 000 bytes. */
    char star[1025], name[1025];
    char *skip[256];
    for (unsigned i = 0; i < 1024; i++)
        star[i] = i % 2 ? 'a' : '*';
    star[1024] = 0;
    memset(name, 'a', sizeof name);
    memcpy(name + 1000, "b.weight", 9);
    for (unsigned i = 0; i < 256; i++)
        skip[i] = star;
    struct claim_options o = {.skip = skip, .skip_count = 256};
    clock_t before = clock();
    ck_assert_int_eq(MAKE(&o, {name, "F32", 2, {16, 16}}), 0);
    ck_assert_int_lt(clock() - before, 10 * CLOCKS_PER_SEC);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("claim");
    TCase *t = tcase_create("claim");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, start, stop);
    tcase_add_test(t, claim_takes_matrices_with_their_biases);
    tcase_add_test(t, claim_obeys_only_and_skip);
    tcase_add_test(t, claim_skip_of_a_layer_lets_its_siblings_go);
    tcase_add_test(t, claim_names_all_that_cannot_be_layers);
    tcase_add_test(t, claim_of_many_unfit_counts_them_all);
    tcase_add_test(t, claim_not_strict_ignores_the_unfit);
    tcase_add_test(t, claim_unused_sibling_is_refused_when_strict);
    tcase_add_test(t, claim_globs_are_safe_to_paste);
    tcase_add_test(t, claim_fp8_weight_needs_one_factor);
    tcase_add_test(t, claim_bad_bias_is_always_an_error);
    tcase_add_test(t, claim_of_nothing_is_an_error);
    tcase_add_test(t, claim_of_20000_tensors_is_quick_and_whole);
    tcase_add_test(t, claim_finds_layers_of_any_order);
    tcase_add_test(t, claim_of_very_long_names);
    tcase_add_test(t, claim_hostile_globs_take_bounded_time);
    suite_add_tcase(s, t);
    return run_suite(s);
}
