/* test_load_files.c - files, descriptors and paths that a load must refuse, and what it may open.
 */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- fixture: an io table that writes down what is opened --- */

static struct {
    struct io io;
    char opened[4096]; /* "dir;rest;..." in the order they were asked for */
} L;

static void note(const char *path)
{
    size_t at = strlen(L.opened);
    (void)snprintf(L.opened + at, sizeof L.opened - at, "%s;", path);
}

static int noting_open(void *self, const char *path, int flags, unsigned mode)
{
    note(path);
    return io_posix.open(self, path, flags, mode);
}

static int noting_beneath(void *self, int dirfd, const char *path, int flags)
{
    note(path);
    return io_posix.open_beneath(self, dirfd, path, flags);
}

static struct served S;
static struct picture P;
static char text[1024];
static char dir[64], root[128], roots[300]; /* root is a folder in dir; roots holds another before it */

static void write_model(const char *path)
{
    int in = served_file(2);
    int out = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    char buf[8192];
    ssize_t n = pread(in, buf, sizeof buf, 0);
    ck_assert(out >= 0 && n > 0 && write(out, buf, (size_t)n) == n);
    close(in);
    close(out);
}

static void path_of(char out[256], const char *a, const char *b)
{
    (void)snprintf(out, 256, "%s/%s", a, b);
}

/* secret in dir, good and sub/good in root, and links of all kinds. */
static void make_tree(void)
{
    char p[256], q[256];
    (void)snprintf(dir, sizeof dir, "/tmp/fp8d-load-XXXXXX");
    ck_assert(mkdtemp(dir) != NULL);
    (void)snprintf(root, sizeof root, "%s/root", dir);
    (void)snprintf(roots, sizeof roots, "%s/absent:%s//", dir, root);
    ck_assert_int_eq(mkdir(root, 0700), 0);
    path_of(p, root, "sub");
    ck_assert_int_eq(mkdir(p, 0700), 0);
    path_of(p, dir, "secret");
    write_model(p);
    path_of(q, root, "good");
    write_model(q);
    path_of(q, root, "sub/good");
    write_model(q);
    path_of(q, root, "link-out");
    ck_assert_int_eq(symlink(p, q), 0);
    path_of(q, root, "link-up");
    ck_assert_int_eq(symlink("../secret", q), 0);
    path_of(q, root, "link-in");
    ck_assert_int_eq(symlink("good", q), 0);
    path_of(q, root, "sub/link-dir");
    ck_assert_int_eq(symlink("..", q), 0);
    path_of(q, root, "fifo");
    ck_assert_int_eq(mkfifo(q, 0600), 0);
}

static void remove_tree(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static void open_files(void)
{
    make_tree();
    memset(&L, 0, sizeof L);
    L.io = io_posix;
    L.io.open = noting_open;
    L.io.open_beneath = noting_beneath;
    struct engine_options o = {.io = &L.io, .load_roots = roots};
    served_open(&S, &o, 0);
    picture_take(&S, &P);
}

static void close_files(void)
{
    picture_fini(&P);
    served_close(&S);
    remove_tree();
}

/* --- evil files --- */

static void load_evil(const char *folder, const char *file, const char *says)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "cannot open %s", path);
    unsigned code = served_load_fd(&S, ATTACKER, "m", fd, text);
    ck_assert_msg(code == DATA_LOSS || code == INVALID_ARGUMENT || code == RESOURCE_EXHAUSTED,
                  "%s: code %u, %s", file, code, text);
    ck_assert_msg(strstr(text, "the-file") && strstr(text, says), "%s: \"%s\" does not say \"%s\"",
                  file, text, says);
    picture_same(&S, &P);
}

START_TEST(load_files_refuses_every_evil_file)
{
    /* Each file of the collection is refused with its reason and the name of the file, and the
     * served model gives the same bytes as before. */
    char folder[400], manifest[512], line[512];
    const char *src = getenv("FP8D_SRCDIR");
    ck_assert_msg(src != NULL, "FP8D_SRCDIR is not set");
    (void)snprintf(folder, sizeof folder, "%s/tests/data/evil", src);
    (void)snprintf(manifest, sizeof manifest, "%s/manifest.txt", folder);
    FILE *in = fopen(manifest, "r");
    ck_assert_msg(in != NULL, "cannot open %s", manifest);
    unsigned count = 0;
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        char *says = strchr(line, ' ');
        ck_assert(says != NULL);
        *says++ = 0;
        if (!strncmp(line, "ok_", 3))
            continue;
        load_evil(folder, line, says);
        count++;
    }
    (void)fclose(in);
    ck_assert_uint_ge(count, 80);
}
END_TEST

/* --- evil descriptors --- */

static void refuse_fd(int fd, const char *says)
{
    ck_assert_int_ge(fd, 0);
    unsigned code = served_load_fd(&S, ATTACKER, "m", fd, text);
    ck_assert_msg(code == INVALID_ARGUMENT && strstr(text, says) && strstr(text, "the-file"),
                  "code %u: %s", code, text);
    picture_same(&S, &P);
}

START_TEST(load_files_refuses_other_descriptors)
{
    /* What is no regular file opened for reading is refused with what it is, without a read. */
    int pipes[2], pair[2];
    char path[256];
    ck_assert_int_eq(pipe(pipes), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    refuse_fd(open(root, O_RDONLY | O_DIRECTORY), "is a directory, needed a regular file");
    refuse_fd(pipes[0], "is a pipe, needed a regular file");
    refuse_fd(pair[0], "is a socket, needed a regular file");
    refuse_fd(open("/dev/zero", O_RDONLY), "is a special file, needed a regular file");
    path_of(path, root, "good");
    refuse_fd(open(path, O_PATH), "O_PATH, needed O_RDONLY");
    refuse_fd(open(path, O_WRONLY), "write-only, needed O_RDONLY");
    close(pipes[1]);
    close(pair[1]);
}
END_TEST

/* --- server paths --- */

static unsigned load_path(const char *model, const char *path)
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    static uint64_t next = 1;
    b.load_id = c.load_id = next++;
    b.model = str(model);
    b.source = FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    b.server_path = str(path);
    L.opened[0] = 0;
    unsigned code = desk_call(S.d, ATTACKER, REQUEST_LOAD_BEGIN, &b.base, NULL, 0, NULL, text);
    return code ? code
                : desk_call(S.d, ATTACKER, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, text);
}

START_TEST(load_files_below_a_root_are_read)
{
    /* Relative paths, absolute ones below a root, doubled slashes and "." are fine. */
    char path[256];
    ck_assert_msg(load_path("n", "good") == OK, "%s", text);
    ck_assert_msg(load_path("n", "sub/good") == OK, "%s", text);
    ck_assert_msg(load_path("n", "sub/.././good") == OK, "%s", text);
    path_of(path, root, "good");
    ck_assert_msg(load_path("n", path) == OK, "%s", text);
    path_of(path, root, "//sub///good");
    ck_assert_msg(load_path("n", path) == OK, "%s", text);
}
END_TEST

START_TEST(load_files_outside_the_roots_are_not_opened)
{
    /* "..", links and absolute paths elsewhere are refused: PERMISSION_DENIED, and the only
     * directories that were opened are roots. */
    char secret[256], sneaky[256], prefix[256];
    path_of(secret, dir, "secret");
    path_of(sneaky, root, "../secret");
    (void)snprintf(prefix, sizeof prefix, "%sly/good", root); /* as text, root is a prefix of it */
    const char *const paths[] = {"../secret",   "sub/../../secret",   secret,
                                 sneaky,        "link-out",           "link-up",
                                 "link-in",     "sub/link-dir/good",  prefix,
                                 "/etc/passwd", "/proc/self/environ", "sub/link-dir/../secret"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        unsigned code = load_path("m", paths[i]);
        ck_assert_msg(code == PERMISSION_DENIED, "%s: code %u, %s", paths[i], code, text);
        ck_assert_msg(strstr(text, "server_path"), "%s", text);
        ck_assert_msg(!strstr(L.opened, "/etc") && !strstr(L.opened, "/proc"), "%s", L.opened);
        picture_same(&S, &P);
    }
    (void)load_path("m", "../secret");
    ck_assert_msg(strstr(text, "server_path has a '..' that leaves its root, needed"), "%s", text);
    (void)load_path("m", "link-out");
    ck_assert_msg(strstr(text, "server_path has a symbolic link, needed"), "%s", text);
    ck_assert_uint_eq(load_path("m", prefix), PERMISSION_DENIED);
    ck_assert_str_eq(L.opened, ""); /* not below any root: nothing at all */
}
END_TEST

START_TEST(load_files_that_are_none_are_refused)
{
    /* Absent files, directories, fifos (without waiting for a writer) and odd bytes. */
    static const struct {
        const char *path;
        unsigned code;
    } rows[] = {{"absent", NOT_FOUND},      {"sub", INVALID_ARGUMENT},
                {"fifo", INVALID_ARGUMENT}, {"good/x", INVALID_ARGUMENT},
                {"", INVALID_ARGUMENT},     {"sub/good/../../../x", PERMISSION_DENIED}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned code = load_path("m", rows[i].path);
        bool denied_first = !strncmp(rows[i].path, "sub/good/", 9) && code == INVALID_ARGUMENT;
        ck_assert_msg(code == rows[i].code || denied_first, "\"%s\": code %u, %s", rows[i].path,
                      code, text);
        picture_same(&S, &P);
    }
    char longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[4096] = 0;
    ck_assert_uint_eq(load_path("m", longest), INVALID_ARGUMENT);
    ck_assert_msg(strstr(text, "server_path has 4096 bytes") && strstr(text, "4095"), "%s", text);
    longest[4095] = 0;
    unsigned code = load_path("m", longest); /* a component over NAME_MAX */
    ck_assert_msg(code != OK && strstr(text, "server_path"), "code %u: %s", code, text);
    picture_same(&S, &P);
}
END_TEST

START_TEST(load_files_without_roots_opens_nothing)
{
    /* No root configured: every path is refused, and nothing is opened. */
    struct served other;
    struct engine_options o = {.io = &L.io};
    served_open(&other, &o, 0);
    struct served keep = S;
    S = other;
    ck_assert_uint_eq(load_path("m", "good"), PERMISSION_DENIED);
    ck_assert_msg(strstr(text, "none is configured"), "%s", text);
    char path[256];
    path_of(path, root, "good");
    ck_assert_uint_eq(load_path("m", path), PERMISSION_DENIED);
    ck_assert_str_eq(L.opened, "");
    other = S;
    S = keep;
    desk_close(other.d, ATTACKER);
    desk_close(other.d, BYSTANDER);
    desk_free(other.d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("load_files");
    TCase *t = tcase_create("files");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, open_files, close_files);
    tcase_add_test(t, load_files_refuses_every_evil_file);
    tcase_add_test(t, load_files_refuses_other_descriptors);
    tcase_add_test(t, load_files_below_a_root_are_read);
    tcase_add_test(t, load_files_outside_the_roots_are_not_opened);
    tcase_add_test(t, load_files_that_are_none_are_refused);
    tcase_add_test(t, load_files_without_roots_opens_nothing);
    suite_add_tcase(s, t);
    return run_suite(s);
}
