/* The command line, and the order of the sources of the configuration. */
#include "daemon/cmdline.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fault f;
static char path[64];

static void setup(void)
{
    memset(&f, 0, sizeof f);
    snprintf(path, sizeof path, "/tmp/fp8d-cmdline-XXXXXX");
    close(mkstemp(path));
}

static void teardown(void)
{
    unlink(path);
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static int run(char **argv, char *const *env, struct config *out)
{
    struct cmdline cl;
    int argc = 0;
    while (argv[argc])
        argc++;
    int rc = cmdline_parse(&cl, argc, argv, &f);
    return rc ? rc : cmdline_config(&cl, &io_posix, env, out, &f);
}

/* Default, file, environment, command line: the later wins; in it the last. */
START_TEST(cmdline_precedence)
{
    char *env[] = {"FP8D_DEVICE=2", "FP8D_PAYLOAD_MAX=2M", "FP8D_NO_INSTALL=1", "DEVICE=9", NULL};
    char *argv[] = {"fp8d", "--config", path, "--set", "payload_max=3M", "--set=payload_max=4M",
                    NULL};
    struct config out;
    write_file("device = 1\ncpu_threads = 5\npayload_max = 1M\n");
    ck_assert_msg(run(argv, env, &out) == 0, "%s", f.text);
    ck_assert_uint_eq(out.cpu_threads, 5);
    ck_assert_uint_eq(out.device, 2);
    ck_assert_uint_eq(out.payload_max, 4u << 20);
    ck_assert_uint_eq(out.origin[CONFIG_KEY_cpu_threads], CONFIG_FROM_FILE);
    ck_assert_uint_eq(out.origin[CONFIG_KEY_device], CONFIG_FROM_ENV);
    ck_assert_uint_eq(out.origin[CONFIG_KEY_payload_max], CONFIG_FROM_ARGS);
    ck_assert_uint_eq(out.origin[CONFIG_KEY_meta_max], CONFIG_DEFAULT);
    config_fini(&out);
}
END_TEST

/* The stable options set their keys. */
START_TEST(cmdline_options)
{
    char *env[] = {NULL};
    char *argv[] = {"fp8d",     "--socket", "/s", "--backend=cpu", "--backend-dir", "/b",
                    "--device", "3",        NULL};
    struct config out;
    ck_assert_int_eq(run(argv, env, &out), 0);
    ck_assert_str_eq(out.socket, "/s");
    ck_assert_str_eq(out.backend_dir, "/b");
    ck_assert_uint_eq(out.backend, CONFIG_BACKEND_CPU);
    ck_assert_uint_eq(out.device, 3);
    config_fini(&out);
}
END_TEST

/* A bad value names its source; a --config that is not there is an error. */
START_TEST(cmdline_bad_sources)
{
    char *none[] = {NULL}, *env[] = {"FP8D_BACKEND=gpu", NULL};
    char *plain[] = {"fp8d", NULL}, *arg[] = {"fp8d", "--device", "x", NULL};
    char *file[] = {"fp8d", "--config", "/nonexistent", NULL};
    struct config out;
    ck_assert_int_lt(run(plain, env, &out), 0);
    ck_assert_ptr_nonnull(strstr(f.text, "in the environment: backend"));
    ck_assert_int_lt(run(arg, none, &out), 0);
    ck_assert_ptr_nonnull(strstr(f.text, "on the command line: device"));
    ck_assert_int_eq(run(file, none, &out), -ENOENT);
}
END_TEST

/* What is no command line of ours is refused with a hint. */
START_TEST(cmdline_usage)
{
    static char *wrong[][4] = {{"fp8d", "--bogus", NULL},         {"fp8d", "-x", NULL},
                               {"fp8d", "serve", NULL},           {"fp8d", "--socket", NULL},
                               {"fp8d", "--set", "device", NULL}, {"fp8d", "--version=1", NULL}};
    struct cmdline cl;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int argc = wrong[i][2] ? 3 : 2;
        ck_assert_int_eq(cmdline_parse(&cl, argc, wrong[i], &f), FP8D_EINVALID_ARGUMENT);
    }
    char *actions[] = {"--check-config", "--print-config", "--version", "--help"};
    for (int i = 0; i < 4; i++) {
        char *argv[] = {"fp8d", actions[i], NULL};
        ck_assert_int_eq(cmdline_parse(&cl, 2, argv, &f), 0);
        ck_assert_int_eq((int)cl.action, (int)CMDLINE_CHECK_CONFIG + i);
    }
}
END_TEST

/* An allocation that fails anywhere is an error, never a crash or a leak. */
START_TEST(cmdline_no_memory)
{
    char *none[] = {NULL}, *argv[] = {"fp8d", "--config", path, "--set", "socket=/s", NULL};
    struct config out;
    write_file("load_roots = /a\n");
    int64_t before = mem_live_blocks();
    for (int64_t n = 0;; n++) {
        mem_fault_arm(n, false);
        int rc = run(argv, none, &out);
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        if (rc == 0)
            config_fini(&out);
        ck_assert_int_eq(mem_live_blocks(), before);
        ck_assert(fired == (rc != 0));
        if (!fired)
            break;
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cmdline");
    TCase *t = tcase_create("cmdline");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, cmdline_precedence);
    tcase_add_test(t, cmdline_options);
    tcase_add_test(t, cmdline_bad_sources);
    tcase_add_test(t, cmdline_usage);
    tcase_add_test(t, cmdline_no_memory);
    suite_add_tcase(s, t);
    return run_suite(s);
}
