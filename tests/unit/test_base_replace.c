/* test_base_replace.c - a file replaced as a whole, whatever call fails on the way. */
#include "base/replace.h"

#include "tests/unit/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture: a folder with a target that holds "old" --- */

static char folder[64];
static int dirfd;
static struct io table; /* io_posix, of which one call fails */
static int countdown;   /* calls that succeed before; -1: none fails */
static bool fired;

static bool fails(void)
{
    if (countdown < 0)
        return false;
    if (countdown-- > 0)
        return false;
    fired = true;
    return true;
}

static int f_create(void *self, int at, const char *name, unsigned mode)
{
    return fails() ? -ENOSPC : io_posix.create(self, at, name, mode);
}

static int f_truncate(void *self, int fd, uint64_t size)
{
    return fails() ? -EIO : io_posix.truncate(self, fd, size);
}

static int f_fsync(void *self, int fd)
{
    return fails() ? -EIO : io_posix.fsync(self, fd);
}

static int f_rename(void *self, int at, const char *from, const char *to)
{
    return fails() ? -EIO : io_posix.rename(self, at, from, to);
}

static int f_lock(void *self, int fd)
{
    return fails() ? -ENOLCK : io_posix.lock(self, fd);
}

static int f_chmod(void *self, int fd, unsigned mode)
{
    return fails() ? -EPERM : io_posix.chmod(self, fd, mode);
}

static int f_stat(void *self, int fd, struct io_stat *out)
{
    return fails() ? -EIO : io_posix.stat(self, fd, out);
}

static void put(const char *name, const char *text)
{
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static const char *get(const char *name)
{
    static char text[64];
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void setup(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/fp8d-replace-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    dirfd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    countdown = -1;
    fired = false;
    table = io_posix;
    table.create = f_create;
    table.truncate = f_truncate;
    table.fsync = f_fsync;
    table.rename = f_rename;
    table.lock = f_lock;
    table.chmod = f_chmod;
    table.stat = f_stat;
    put("target", "old");
}

static void teardown(void)
{
    unlinkat(dirfd, "target", 0);
    unlinkat(dirfd, ".target.fp8d-save", 0);
    close(dirfd);
    rmdir(folder);
}

/* --- cases --- */

/* The target is the old file until the commit, then the new one with the old one's permissions, and
 * no temporary is left. */
START_TEST(replace_is_whole)
{
    struct fault f = {0};
    struct replace r;
    struct stat st;
    ck_assert_msg(!replace_open(&r, &io_posix, dirfd, "target", &f), "%s", f.text);
    ck_assert_int_eq(io_write_full(&io_posix, r.fd, "newer", 5, 0, &f), 0);
    ck_assert_str_eq(get("target"), "old");
    ck_assert_msg(!replace_commit(&r, &f), "%s", f.text);
    ck_assert_str_eq(get("target"), "newer");
    ck_assert_ptr_null(get(".target.fp8d-save"));
    ck_assert_int_eq(fstatat(dirfd, "target", &st, 0), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0640);
}
END_TEST

/* An abort leaves the old file and no temporary. */
START_TEST(replace_abort_leaves_the_old)
{
    struct fault f = {0};
    struct replace r;
    ck_assert_int_eq(replace_open(&r, &io_posix, dirfd, "target", &f), 0);
    replace_abort(&r);
    replace_abort(&r);
    ck_assert_str_eq(get("target"), "old");
    ck_assert_ptr_null(get(".target.fp8d-save"));
}
END_TEST

/* A second replacement of one target is refused while the first is under way, and goes after it. */
START_TEST(replace_is_one_at_a_time)
{
    struct fault f = {0};
    struct replace a;
    struct replace b;
    ck_assert_int_eq(replace_open(&a, &io_posix, dirfd, "target", &f), 0);
    ck_assert_int_eq(replace_open(&b, &io_posix, dirfd, "target", &f), FP8D_EABORTED);
    ck_assert_int_eq(replace_commit(&a, &f), 0);
    ck_assert_int_eq(replace_open(&b, &io_posix, dirfd, "target", &f), 0);
    replace_abort(&b);
}
END_TEST

/* A temporary that a crash left is taken over, and what was in it is gone. */
START_TEST(replace_takes_over_a_stale_temporary)
{
    struct fault f = {0};
    struct replace r;
    put(".target.fp8d-save", "half of something long");
    ck_assert_int_eq(replace_open(&r, &io_posix, dirfd, "target", &f), 0);
    ck_assert_int_eq(io_write_full(&io_posix, r.fd, "new", 3, 0, &f), 0);
    ck_assert_int_eq(replace_commit(&r, &f), 0);
    ck_assert_str_eq(get("target"), "new");
}
END_TEST

/* Whichever call fails, the target is the old file or the new one, an error is said, and no
 * temporary stays. */
START_TEST(replace_survives_each_failed_call)
{
    unsigned failures = 0;
    for (int n = 0;; n++) {
        struct fault f = {0};
        struct replace r;
        put("target", "old");
        countdown = n;
        fired = false;
        int rc = replace_open(&r, &table, dirfd, "target", &f);
        if (!rc) {
            ck_assert_int_eq(io_write_full(&io_posix, r.fd, "new", 3, 0, &f), 0);
            rc = replace_commit(&r, &f);
        }
        countdown = -1;
        if (!fired) {
            ck_assert_int_eq(rc, 0);
            break;
        }
        failures++;
        ck_assert_int_lt(rc, 0);
        ck_assert_int_gt((int)strlen(f.text), 0);
        ck_assert(!strcmp(get("target"), "old") || !strcmp(get("target"), "new"));
        ck_assert_ptr_null(get(".target.fp8d-save"));
    }
    ck_assert_uint_ge(failures, 7);
}
END_TEST

/* Names with a slash, empty ones, and a target that is a folder are refused. */
START_TEST(replace_refuses_bad_targets)
{
    struct fault f = {0};
    struct replace r;
    ck_assert_int_eq(replace_open(&r, &io_posix, dirfd, "a/b", &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(replace_open(&r, &io_posix, dirfd, "", &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(mkdirat(dirfd, "folder", 0700), 0);
    ck_assert_int_eq(replace_open(&r, &io_posix, dirfd, "folder", &f), FP8D_EINVALID_ARGUMENT);
    unlinkat(dirfd, "folder", AT_REMOVEDIR);
}
END_TEST

/* A path's folder and the rest of it; what is no folder is named. */
START_TEST(replace_finds_the_folder)
{
    struct fault f = {0};
    char path[128];
    const char *name = NULL;
    struct stat a, b;
    ck_assert_int_gt(snprintf(path, sizeof path, "%s/new", folder), 0);
    int fd = replace_folder(&io_posix, path, &name, &f);
    ck_assert_msg(fd >= 0, "%s", f.text);
    ck_assert_str_eq(name, "new");
    ck_assert(!fstat(fd, &a) && !stat(folder, &b) && a.st_ino == b.st_ino);
    close(fd);
    fd = replace_folder(&io_posix, "new", &name, &f);
    ck_assert(fd >= 0 && !strcmp(name, "new") && !fstat(fd, &a) && !stat(".", &b));
    ck_assert_uint_eq(a.st_ino, b.st_ino);
    close(fd);
    fd = replace_folder(&io_posix, "/new", &name, &f);
    ck_assert(fd >= 0 && !strcmp(name, "new") && !fstat(fd, &a) && !stat("/", &b));
    ck_assert_uint_eq(a.st_ino, b.st_ino);
    close(fd);
    ck_assert_int_eq(replace_folder(&io_posix, "/dev/null/new", &name, &f), -ENOTDIR);
    ck_assert_str_eq(f.text, "cannot open the folder /dev/null: Not a directory");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("replace");
    TCase *c = tcase_create("replace");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, replace_is_whole);
    tcase_add_test(c, replace_abort_leaves_the_old);
    tcase_add_test(c, replace_is_one_at_a_time);
    tcase_add_test(c, replace_takes_over_a_stale_temporary);
    tcase_add_test(c, replace_survives_each_failed_call);
    tcase_add_test(c, replace_refuses_bad_targets);
    tcase_add_test(c, replace_finds_the_folder);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
