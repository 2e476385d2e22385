/* The spec of 'fp8ctl create': what it means, and sentences for what it must not say. */
#include "base/status.h"
#include "client/ctl/spec.h"

#include "base/mem.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- helpers --- */

static char path[64]; /* of the spec */

static int read_text(const char *text, struct spec *s, struct fault *f)
{
    strcpy(path, "/tmp/fp8d-spec-XXXXXX");
    int fd = mkstemp(path);
    FILE *out = fdopen(fd, "w");
    fputs(text, out);
    fclose(out);
    *f = (struct fault){0};
    *s = (struct spec){0};
    int rc = spec_read(path, s, f);
    unlink(path);
    return rc;
}

#define LAYERS "\"layers\": [{\"name\": \"l\", \"weight\": \"w\"}]"

/* --- cases --- */

/* Everything that can be said. */
START_TEST(test_full)
{
    struct spec s;
    struct fault f;
    int rc =
        read_text("{\"recipe\": {\"kind\": \"current\", \"fp8_format\": \"e4m3\","
                  "\"amax_algo\": \"most_recent\", \"amax_history_len\": 65536, \"margin\": 31,"
                  "\"fprop_accumulation\": \"precise\"},"
                  "\"primary_fp8\": true, \"layers\": ["
                  "{\"name\": \"a.b\", \"weight\": \"x/y:t\", \"bias\": \"/abs:z\"},"
                  "{\"name\": \"c\", \"weight\": \"w\"}]}",
                  &s, &f);
    ck_assert_msg(rc == 0, "%s", f.text);
    ck_assert_int_eq(s.recipe.kind, FP8D_RECIPE_CURRENT);
    ck_assert_int_eq(s.recipe.format, FP8D_FORMAT_E4M3);
    ck_assert_int_eq(s.recipe.amax_algo, FP8D_AMAX_MOST_RECENT);
    ck_assert(s.recipe.amax_history_len == 65536 && s.recipe.margin == 31);
    ck_assert_int_eq(s.recipe.fprop_accumulation, FP8D_ACCUMULATION_PRECISE);
    ck_assert(s.primary_fp8 && s.count == 2);
    ck_assert_str_eq(s.layers[0].name, "a.b");
    ck_assert_str_eq(s.layers[0].weight, "/tmp/x/y:t"); /* in the folder of the spec */
    ck_assert_str_eq(s.layers[0].bias, "/abs:z");
    ck_assert_ptr_null(s.layers[1].bias);
    spec_fini(&s);
}
END_TEST

/* What is left out is not set; a margin of 0 is. */
START_TEST(test_presence)
{
    struct spec s;
    struct fault f;
    ck_assert_int_eq(read_text("{" LAYERS "}", &s, &f), 0);
    ck_assert(!s.recipe.kind && !s.recipe.format && !s.recipe.amax_algo && !s.primary_fp8);
    ck_assert(!s.recipe.amax_history_len && !s.recipe.margin && !s.recipe.margin_set);
    ck_assert(!s.recipe.fprop_accumulation);
    spec_fini(&s);
    ck_assert_int_eq(read_text("{\"recipe\": {\"margin\": 0}," LAYERS "}", &s, &f), 0);
    ck_assert(s.recipe.margin == 0 && s.recipe.margin_set);
    spec_fini(&s);
}
END_TEST

/* A spec without a folder in its name: files are where we are. */
START_TEST(test_here)
{
    struct spec s;
    struct fault f = {0};
    ck_assert_int_eq(chdir("/tmp"), 0);
    FILE *out = fopen("fp8d-spec-here.json", "w");
    fputs("{" LAYERS "}", out);
    fclose(out);
    ck_assert_int_eq(spec_read("fp8d-spec-here.json", &s, &f), 0);
    ck_assert_str_eq(s.layers[0].weight, "w");
    spec_fini(&s);
    unlink("fp8d-spec-here.json");
}
END_TEST

static const struct {
    const char *text, *says;
} bad[] = {
    {"", "line 1 is no JSON"},
    {"{" LAYERS ",}", "is no JSON"},
    {"{" LAYERS "} x", "is no JSON"},
    {"{\"primary_fp8\": true, \"primary_fp8\": false, " LAYERS "}", "is no JSON: duplicate"},
    {"[]", "the document is an array, needed an object"},
    {"{}", "layers is missing"},
    {"{\"layers\": []}", "layers is empty, needed an array of objects"},
    {"{\"layers\": {}}", "layers is an object, needed an array"},
    {"{\"layers\": [7]}", "layers[0] is a whole number, needed an object"},
    {"{\"layers\": [{\"weight\": \"w\"}]}", "layers[0].name is missing"},
    {"{\"layers\": [{\"name\": \"n\", \"weight\": \"w\"}, {\"name\": \"n\"}]}",
     "layers[1].weight is missing"},
    {"{\"layers\": [{\"name\": \"\", \"weight\": \"w\"}]}", "layers[0].name is empty"},
    {"{\"layers\": [{\"name\": \"n\", \"weight\": 5}]}",
     "layers[0].weight is a whole number, needed text"},
    {"{\"layers\": [{\"name\": \"n\", \"weight\": \"w\", \"bias\": null}]}",
     "layers[0].bias is null, needed text"},
    {"{\"layers\": [{\"name\": \"n\", \"wieght\": \"w\"}]}",
     "layers[0].wieght is no member here; there are name, weight, bias"},
    {"{\"models\": 1, " LAYERS "}",
     "models is no member here; there are recipe, primary_fp8, layers"},
    {"{\"re\\u001bcipe\": 1, " LAYERS "}", "re\\x1bcipe is no member"},
    {"{\"recipe\": \"delayed\", " LAYERS "}", "recipe is a string, needed an object"},
    {"{\"recipe\": {\"format\": \"e4m3\"}, " LAYERS "}", "recipe.format is no member here"},
    {"{\"recipe\": {\"kind\": \"fast\"}, " LAYERS "}",
     "recipe.kind is \"fast\", needed delayed or current"},
    {"{\"recipe\": {\"amax_algo\": 1}, " LAYERS "}",
     "recipe.amax_algo is a whole number, needed max or most_recent"},
    {"{\"recipe\": {\"margin\": 32}, " LAYERS "}",
     "recipe.margin is 32, needed a whole number from 0 to 31"},
    {"{\"recipe\": {\"margin\": -1}, " LAYERS "}", "recipe.margin is -1"},
    {"{\"recipe\": {\"margin\": 1.0}, " LAYERS "}", "recipe.margin is a number, needed a whole"},
    {"{\"recipe\": {\"amax_history_len\": 0}, " LAYERS "}",
     "recipe.amax_history_len is 0, needed a whole number from 1 to 65536"},
    {"{\"recipe\": {\"fprop_accumulation\": \"slow\"}, " LAYERS "}",
     "recipe.fprop_accumulation is \"slow\", needed fast or precise"},
    {"{\"primary_fp8\": 1, " LAYERS "}", "primary_fp8 is a whole number, needed true or false"},
};

/* Each fault names the file, the member, what was found and what is needed. */
START_TEST(test_bad)
{
    struct spec s;
    struct fault f;
    ck_assert_int_eq(read_text(bad[_i].text, &s, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(f.text, bad[_i].says), "%s", f.text);
    ck_assert_ptr_nonnull(strstr(f.text, path));
    ck_assert_ptr_null(s.document);
}
END_TEST

/* A file that is not there, and a folder. */
START_TEST(test_no_file)
{
    struct spec s;
    struct fault f = {0};
    ck_assert_int_eq(spec_read("/nonexistent.json", &s, &f), -ENOENT);
    ck_assert_ptr_nonnull(strstr(f.text, "/nonexistent.json"));
    f = (struct fault){0};
    ck_assert_int_lt(spec_read("/tmp", &s, &f), 0);
}
END_TEST

/* Let allocation 0, 1, 2 ... fail until none does: -ENOMEM, and no leak. */
START_TEST(test_short_of_memory)
{
    struct spec s;
    struct fault f;
    bool fired = true;
    int failures = 0;
    for (int64_t n = 0; fired; n++) {
        int64_t before = mem_live_blocks();
        mem_fault_arm(n, false);
        int rc = read_text("{\"layers\": [{\"name\": \"a\", \"weight\": \"w\", \"bias\": \"b\"},"
                           "{\"name\": \"b\", \"weight\": \"w\"}]}",
                           &s, &f);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert_int_eq(rc, fired ? -ENOMEM : 0);
        failures += fired;
        spec_fini(&s);
        ck_assert_int_eq(mem_live_blocks(), before);
    }
    ck_assert_int_eq(failures, 4);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_spec");
    TCase *t = tcase_create("spec");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_full);
    tcase_add_test(t, test_presence);
    tcase_add_test(t, test_here);
    tcase_add_loop_test(t, test_bad, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(t, test_no_file);
    tcase_add_test(t, test_short_of_memory);
    suite_add_tcase(s, t);
    return run_suite(s);
}
