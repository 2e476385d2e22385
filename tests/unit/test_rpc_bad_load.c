/* test_rpc_bad_load.c - loads asked for in ways that must be refused: options, names, descriptors.
 */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

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

/* --- cases --- */

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

static void refuse_attach(uint64_t load_id, char **names, size_t n, unsigned nfds, unsigned code,
                          const char *parts)
{
    Fp8d__V1__LoadAttachRequest m = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    int fds[4];
    unsigned before = open_descriptors();
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = open("/dev/null", O_RDONLY);
    m.load_id = load_id;
    m.names = names;
    m.n_names = n;
    unsigned got =
        served_call(&S, ATTACKER, REQUEST_LOAD_ATTACH, &m.base, NULL, 0, fds, nfds, text);
    ck_assert_msg(got == code, "LoadAttach: code %u: %s", got, text);
    served_says("LoadAttach", text, parts);
    ck_assert_uint_eq(open_descriptors(), before);
    picture_same(&S, &P);
}

START_TEST(input_load_attach)
{
    /* Names and descriptors that do not match, names that are no base names, loads that are not
     * there: refused, and every descriptor is closed. */
    Fp8d__V1__LoadBeginRequest load = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest commit = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char longest[257];
    memset(longest, 'n', sizeof longest);
    longest[256] = 0;
    load.load_id = commit.load_id = 5;
    load.model = str("x");
    served_accepts(&S, ATTACKER, REQUEST_LOAD_BEGIN, &load.base);
    refuse_attach(5, NULL, 0, 0, INVALID_ARGUMENT, "names has 0 entries|0 descriptors");
    refuse_attach(5, (char *[]){str("a")}, 1, 0, INVALID_ARGUMENT, "names has 1 entries|0 descr");
    refuse_attach(5, NULL, 0, 1, INVALID_ARGUMENT, "names has 0 entries|1 descriptors");
    refuse_attach(5, (char *[]){str("a")}, 1, 2, INVALID_ARGUMENT, "names has 1 entries|2 descr");
    refuse_attach(5, (char *[]){str("")}, 1, 1, INVALID_ARGUMENT, "names[0] has 0 bytes|1 to 255");
    refuse_attach(5, (char *[]){str("a/b")}, 1, 1, INVALID_ARGUMENT, "names[0]|slash|base name");
    refuse_attach(5, (char *[]){longest}, 1, 1, INVALID_ARGUMENT, "names[0] has 256 bytes|255");
    refuse_attach(5, (char *[]){str("a"), str("b/")}, 2, 2, INVALID_ARGUMENT, "names[1]|slash");
    refuse_attach(5, (char *[]){str("a"), str("b")}, 2, 2, UNIMPLEMENTED,
                  "names has 2|several files");
    refuse_attach(6, (char *[]){str("a")}, 1, 1, NOT_FOUND, "load_id 6");
    served_refuses(&S, &P, REQUEST_LOAD_COMMIT, &commit.base, FAILED_PRECONDITION,
                   "load 5 has no file");
}
END_TEST

static void refuse_load(Fp8d__V1__LoadBeginRequest *m, const char *parts)
{
    served_refuses(&S, &P, REQUEST_LOAD_BEGIN, &m->base, INVALID_ARGUMENT, parts);
}

START_TEST(input_load_options)
{
    /* Recipes out of range, too many globs or bad ones, a path where none belongs. */
    Fp8d__V1__LoadBeginRequest m = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__Recipe r = FP8D__V1__RECIPE__INIT;
    char *globs[257], longest[1026];
    memset(longest, '*', sizeof longest);
    longest[1025] = 0;
    for (unsigned i = 0; i < 257; i++)
        globs[i] = str("*");
    m.load_id = 5;
    m.model = str("m");
    m.options = &o;
    o.recipe = &r;
    r.margin = 32;
    refuse_load(&m, "recipe.margin is 32|0 to 31");
    r.margin = UINT32_MAX;
    refuse_load(&m, "recipe.margin is 4294967295|0 to 31");
    r.margin = 0;
    r.amax_history_len = 65537;
    refuse_load(&m, "recipe.amax_history_len is 65537|1 to 65536");
    r.amax_history_len = UINT32_MAX;
    refuse_load(&m, "recipe.amax_history_len is 4294967295");
    r.amax_history_len = 0;
    r.kind = 7;
    refuse_load(&m, "options.recipe.kind is 7");
    r.kind = 0;
    r.fprop_accumulation = 3;
    refuse_load(&m, "options.recipe.fprop_accumulation is 3|FpropAccumulation");
    r.fprop_accumulation = 0;
    o.only = o.skip = globs;
    o.n_only = 257;
    refuse_load(&m, "options.only has 257 globs|256");
    o.n_only = 0;
    o.n_skip = 257;
    refuse_load(&m, "options.skip has 257 globs|256");
    o.n_skip = 3;
    globs[2] = str("");
    refuse_load(&m, "options.skip[2] has 0 bytes|1 to 1024");
    globs[2] = longest;
    refuse_load(&m, "options.skip[2] has 1025 bytes|1 to 1024");
    o.n_skip = 0;
    m.server_path = str("x");
    refuse_load(&m, "server_path is set|SERVER_PATH");
    m.server_path = str("");
    m.source = FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    refuse_load(&m, "server_path has 0 bytes|1 to 4095");
}
END_TEST

START_TEST(input_saves_of_a_connection_are_capped)
{
    /* Saves that were begun and never end: a cap, and the other client has its own. */
    Fp8d__V1__SaveBeginRequest m = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    m.model = str("m");
    for (m.save_id = 1; m.save_id <= 8; m.save_id++)
        served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &m.base);
    served_refuses(&S, &P, REQUEST_SAVE_BEGIN, &m.base, RESOURCE_EXHAUSTED, "8 saves|the cap is 8");
    served_accepts(&S, BYSTANDER, REQUEST_SAVE_BEGIN, &m.base);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_load");
    TCase *t = tcase_create("load");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, input_load_attach);
    tcase_add_test(t, input_load_options);
    tcase_add_test(t, input_saves_of_a_connection_are_capped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
