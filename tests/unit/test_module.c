/* kernels/module: what the driver may say, which files may be loaded, and the one sentence for
 * each. */
#include "kernels/module.h"
#include "tests/unit/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture: a driver of our own, and a folder nobody else can write --- */

static int init_result, devices, major;
static char folder[] = "/tmp/fp8d-module-XXXXXX";
static char path[256];

static int fake_init(unsigned flags)
{
    (void)flags;
    return init_result;
}

static int fake_count(int *n)
{
    *n = devices;
    return 0;
}

static int fake_get(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

static int fake_name(char *out, int size, int device)
{
    (void)device;
    (void)snprintf(out, (size_t)size, "Test 1000");
    return 0;
}

static int fake_attribute(int *out, int which, int device)
{
    (void)device;
    *out = which == 75 ? major : 6; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
    return 0;
}

static const struct module_driver fake = {fake_init, fake_count, fake_get, fake_name,
                                          fake_attribute};

static void setup(void)
{
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/cuda.so", folder);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    (void)fclose(f);
    ck_assert_int_eq(chmod(path, 0644), 0);
}

static void teardown(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

static void says(int rc, const struct fault *f, int code, const char *sentence)
{
    ck_assert_int_eq(rc, code);
    ck_assert_msg(strstr(f->text, sentence) != NULL, "\"%s\" is not in \"%s\"", sentence, f->text);
}

/* --- cases: the driver --- */

/* No device, a driver that does not start, a number that is too high, a chip that is too old: each
 * has a sentence of its own, and a new chip has none. */
START_TEST(module_names_what_the_driver_lacks)
{
    struct fault f = {0};
    init_result = 100; /* CUDA_ERROR_NO_DEVICE */
    says(module_check_device(&fake, 0, &f), &f, FP8D_EFAILED_PRECONDITION, "it sees no GPU");
    init_result = 999;
    says(module_check_device(&fake, 0, &f), &f, FP8D_EFAILED_PRECONDITION,
         "cannot be started (CUresult 999)");
    init_result = 0;
    devices = 0;
    says(module_check_device(&fake, 0, &f), &f, FP8D_EFAILED_PRECONDITION, "it sees no GPU");
    devices = 2;
    major = 8;
    says(module_check_device(&fake, 2, &f), &f, FP8D_EFAILED_PRECONDITION,
         "device is 2, but there are 2 GPUs, from 0");
    says(module_check_device(&fake, 1, &f), &f, FP8D_EFAILED_PRECONDITION,
         "GPU 1 (Test 1000) has compute capability 8.6, needed 9.0 or later");
    major = 9;
    ck_assert_int_eq(module_check_device(&fake, 1, &f), 0);
}
END_TEST

/* --- cases: the file --- */

/* A file of ours in a folder of ours is fine; /tmp above it is sticky. */
START_TEST(module_takes_a_private_file)
{
    struct fault f = {0};
    ck_assert_msg(!module_check_path(path, &f), "%s", f.text);
}
END_TEST

/* Neither the file nor a folder above it may be written by group or others. */
START_TEST(module_refuses_what_others_can_write)
{
    struct fault f = {0};
    static const unsigned modes[] = {0664, 0646, 0666};
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(chmod(path, modes[i]), 0);
        says(module_check_path(path, &f), &f, FP8D_EPERMISSION_DENIED, "can be written by others");
    }
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    says(module_check_path(path, &f), &f, FP8D_EPERMISSION_DENIED, folder);
    ck_assert_int_eq(chmod(folder, 0700), 0);
    ck_assert_int_eq(module_check_path(path, &f), 0);
}
END_TEST

/* A link counts as what it leads to. */
START_TEST(module_follows_links_before_it_judges)
{
    struct fault f = {0};
    char link_[280];
    (void)snprintf(link_, sizeof link_, "%s/link.so", folder);
    ck_assert_int_eq(symlink(path, link_), 0);
    int good = module_check_path(link_, &f);
    (void)chmod(path, 0666);
    int bad = module_check_path(link_, &f);
    (void)unlink(link_);
    ck_assert_int_eq(good, 0);
    ck_assert_int_eq(bad, FP8D_EPERMISSION_DENIED);
}
END_TEST

/* Relative paths and missing files are refused by name. */
START_TEST(module_refuses_relative_and_missing)
{
    struct fault f = {0};
    says(module_check_path("cuda.so", &f), &f, FP8D_EINVALID_ARGUMENT, "no absolute path");
    says(module_check_path("/nowhere/cuda.so", &f), &f, -2, "/nowhere/cuda.so");
}
END_TEST

/* --- cases: the whole --- */

/* Where there is no driver that is what is said, whatever the folder; where there is one, an empty
 * folder is named and no other is searched. */
START_TEST(module_open_says_what_is_missing)
{
    struct fault f = {0};
    struct backend *b = NULL;
    struct module_options o = {0};
    bool driver = !module_probe_driver(0, &f);
    int rc = module_open_cuda("/nowhere", &o, NULL, &b, &f);
    says(rc, &f, FP8D_EFAILED_PRECONDITION, driver ? "/nowhere/cuda.so" : "NVIDIA driver");
    ck_assert_ptr_null(b);
    if (!driver)
        return;
    says(module_open_cuda(folder, &o, NULL, &b, &f), &f, FP8D_EFAILED_PRECONDITION,
         "cannot be loaded"); /* an empty file */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("module");
    TCase *c = tcase_create("module");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, module_names_what_the_driver_lacks);
    tcase_add_test(c, module_takes_a_private_file);
    tcase_add_test(c, module_refuses_what_others_can_write);
    tcase_add_test(c, module_follows_links_before_it_judges);
    tcase_add_test(c, module_refuses_relative_and_missing);
    tcase_add_test(c, module_open_says_what_is_missing);
    suite_add_tcase(s, c);
    return run_suite(s);
}
