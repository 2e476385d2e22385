/* test_rpc_bad_save.c - saves asked for in ways that must be refused: the sentence has field, value
 * found and value needed, every descriptor is closed, and nothing comes to be. */
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

static unsigned open_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

static void refuse(uint16_t type, const ProtobufCMessage *m, unsigned code, const char *parts)
{
    served_refuses(&S, &P, type, m, code, parts);
}

/* --- saves --- */

START_TEST(input_save_begin)
{
    /* Ids, names and paths; the model is looked for at commit. */
    Fp8d__V1__SaveBeginRequest m = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    char longest[4098];
    m.model = str("m");
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "save_id is 0|from 1 up");
    m.save_id = UINT64_MAX;
    served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &m.base);
    refuse(REQUEST_SAVE_BEGIN, &m.base, ALREADY_EXISTS, "save_id 18446744073709551615 is in use");
    served_accepts(&S, BYSTANDER, REQUEST_SAVE_BEGIN, &m.base); /* its own ids */
    m.save_id = 6;
    m.model = str("");
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "model is \"\"|1 to 128 bytes");
    m.model = str("../m");
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "model is \"../m\"|1 to 128 bytes");
    m.model = str("m");
    m.server_path = str("/tmp/x");
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "server_path is set|target|SERVER_PATH");
    m.target = FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    m.server_path = str("");
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "server_path has 0 bytes|1 to 4095");
    memset(longest, 'p', sizeof longest);
    longest[4096] = 0;
    m.server_path = longest;
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "server_path has 4096 bytes|1 to 4095");
    m.server_path = str("x");
    m.target = 3;
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "target");
    m.server_path = str("");
    refuse(REQUEST_SAVE_BEGIN, &m.base, INVALID_ARGUMENT, "target is 3");
}
END_TEST

static void begin(uint64_t id, const char *path, const char *model)
{
    Fp8d__V1__SaveBeginRequest m = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    m.save_id = id;
    m.model = str(model);
    m.server_path = str(path ? path : "");
    m.target = path ? FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH : 0;
    served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &m.base);
}

static unsigned attach(uint64_t id, char **names, size_t n, int *fds, unsigned nfds)
{
    Fp8d__V1__SaveAttachRequest m = FP8D__V1__SAVE_ATTACH_REQUEST__INIT;
    m.save_id = id;
    m.names = names;
    m.n_names = n;
    return served_call(&S, ATTACKER, REQUEST_SAVE_ATTACH, &m.base, NULL, 0, fds, nfds, text);
}

static void refuse_attach(uint64_t id, char **names, size_t n, unsigned nfds, unsigned code,
                          const char *parts)
{
    int fds[4];
    unsigned before = open_descriptors();
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = open("/dev/null", O_RDWR);
    unsigned got = attach(id, names, n, fds, nfds);
    ck_assert_msg(got == code, "SaveAttach: code %u, needed %u: %s", got, code, text);
    served_says("SaveAttach", text, parts);
    ck_assert_uint_eq(open_descriptors(), before);
    picture_same(&S, &P);
}

START_TEST(input_save_attach)
{
    /* Names and descriptors that do not match or are several, names that are no base names, saves
     * that are not there or need no file: refused, and every descriptor is closed. */
    Fp8d__V1__SaveCommitRequest commit = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    char longest[257], *a = str("a");
    memset(longest, 'n', sizeof longest);
    longest[256] = 0;
    begin(5, NULL, "m");
    begin(8, root, "m");
    refuse_attach(5, NULL, 0, 0, INVALID_ARGUMENT, "names has 0 entries|0 descriptors");
    refuse_attach(5, &a, 1, 0, INVALID_ARGUMENT, "names has 1 entries|0 descriptors");
    refuse_attach(5, NULL, 0, 1, INVALID_ARGUMENT, "names has 0 entries|1 descriptors");
    refuse_attach(5, &a, 1, 2, INVALID_ARGUMENT, "names has 1 entries|2 descriptors");
    refuse_attach(5, (char *[]){a, a}, 2, 2, INVALID_ARGUMENT, "names has 2 entries|one file");
    refuse_attach(5, (char *[]){str("")}, 1, 1, INVALID_ARGUMENT, "names[0] has 0 bytes|1 to 255");
    refuse_attach(5, (char *[]){str("../a")}, 1, 1, INVALID_ARGUMENT, "names[0]|slash|base name");
    refuse_attach(5, (char *[]){longest}, 1, 1, INVALID_ARGUMENT, "names[0] has 256 bytes|255");
    refuse_attach(6, &a, 1, 1, NOT_FOUND, "save_id 6 is no save");
    refuse_attach(0, &a, 1, 1, NOT_FOUND, "save_id 0 is no save");
    refuse_attach(8, &a, 1, 1, INVALID_ARGUMENT, "save 8 writes a server path");
    commit.save_id = 5;
    refuse(REQUEST_SAVE_COMMIT, &commit.base, FAILED_PRECONDITION, "save 5 has no file");
    commit.save_id = 6;
    refuse(REQUEST_SAVE_COMMIT, &commit.base, NOT_FOUND, "save_id 6 is no save");
    int fd = memfd_create("save", MFD_CLOEXEC);
    ck_assert_uint_eq(attach(5, &a, 1, &fd, 1), OK);
    refuse_attach(5, &a, 1, 1, FAILED_PRECONDITION, "save 5 has a file already");
}
END_TEST

/* A save that was attached and is refused at commit; it is gone then, and its descriptor closed. */
static void refuse_file(int fd, const char *parts)
{
    static uint64_t id = 100;
    Fp8d__V1__SaveCommitRequest m = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    char *name = str("the-file");
    unsigned before = open_descriptors();
    ck_assert_int_ge(fd, 0);
    m.save_id = ++id;
    begin(id, NULL, "m");
    ck_assert_msg(attach(id, &name, 1, &fd, 1) == OK, "%s", text);
    refuse(REQUEST_SAVE_COMMIT, &m.base, INVALID_ARGUMENT, parts);
    refuse(REQUEST_SAVE_COMMIT, &m.base, NOT_FOUND, "is no save");
    ck_assert_uint_eq(open_descriptors(), before - 1);
}

START_TEST(input_save_files)
{
    /* Descriptors of what is no regular file, or cannot be written anywhere in it. */
    char path[128];
    int pipes[2], pair[2];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/file", root);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert(fd >= 0 && write(fd, "as it was", 9) == 9);
    (void)close(fd);
    refuse_file(open(root, O_RDONLY | O_DIRECTORY), "the-file|regular");
    ck_assert_int_eq(pipe(pipes), 0);
    refuse_file(pipes[0], "the-file|regular");
    refuse_file(pipes[1], "the-file|regular");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    refuse_file(pair[0], "the-file|regular");
    (void)close(pair[1]);
    refuse_file(open("/dev/null", O_RDWR), "the-file|regular");
    refuse_file(open(path, O_RDONLY), "the-file|read-only|O_RDWR");
    refuse_file(open(path, O_RDWR | O_APPEND), "the-file|O_APPEND");
    refuse_file(open(path, O_PATH), "the-file|O_PATH");
    ck_assert(stat(path, &st) == 0 && st.st_size == 9);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

/* Commit; a code in the file stage ends the save. */
static void refuse_path(const char *path, unsigned code, const char *parts)
{
    static uint64_t id = 200;
    Fp8d__V1__SaveCommitRequest m = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    m.save_id = ++id;
    begin(id, path, "m");
    refuse(REQUEST_SAVE_COMMIT, &m.base, code, parts);
}

START_TEST(input_save_paths)
{
    /* Outside the roots, by any way; folders that are not there. No file comes to be. */
    char path[256], link[128], outside[] = "/tmp/fp8d-outside-XXXXXX";
    ck_assert(mkdtemp(outside) != NULL);
    (void)snprintf(link, sizeof link, "%s/link", root);
    ck_assert_int_eq(symlink(outside, link), 0);
    (void)snprintf(path, sizeof path, "%s/x", outside);
    refuse_path(path, PERMISSION_DENIED, "server_path|below a root|fp8d-bad-state");
    (void)snprintf(path, sizeof path, "%s/../x", root);
    refuse_path(path, PERMISSION_DENIED, "server_path|below");
    (void)snprintf(path, sizeof path, "%s/link/x", root);
    refuse_path(path, PERMISSION_DENIED, "server_path|below");
    (void)snprintf(path, sizeof path, "%s-sibling/x", root);
    refuse_path(path, PERMISSION_DENIED, "server_path|below");
    (void)snprintf(path, sizeof path, "%s/absent/x", root);
    refuse_path(path, NOT_FOUND, "server_path");
    (void)snprintf(path, sizeof path, "%s/", root);
    refuse_path(path, INVALID_ARGUMENT, "server_path|file name");
    (void)snprintf(path, sizeof path, "%s/..", root);
    refuse_path(path, INVALID_ARGUMENT, "server_path");
    (void)snprintf(path, sizeof path, "%s/.", root);
    refuse_path(path, INVALID_ARGUMENT, "server_path");
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(rmdir(outside), 0); /* empty still */
}
END_TEST

START_TEST(input_save_commit)
{
    /* Models that are not there or not as expected: refused, and the save can be committed again.
     */
    Fp8d__V1__SaveBeginRequest b = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    Fp8d__V1__SaveCommitRequest m = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    Fp8d__V1__Expect x = FP8D__V1__EXPECT__INIT;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/x", root);
    b.model = str("m");
    b.expect = &x;
    b.save_id = m.save_id = 5;
    b.target = FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    b.server_path = path;
    x.incarnation = 999;
    served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &b.base);
    refuse(REQUEST_SAVE_COMMIT, &m.base, FAILED_PRECONDITION, "expect.incarnation is 999|model m");
    refuse(REQUEST_SAVE_COMMIT, &m.base, FAILED_PRECONDITION, "expect.incarnation is 999|model m");
    x.incarnation = 0;
    x.weight_version = 9;
    b.save_id = m.save_id = 6;
    served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &b.base);
    refuse(REQUEST_SAVE_COMMIT, &m.base, FAILED_PRECONDITION, "expect.weight_version is 9|model m");
    b.save_id = m.save_id = 7;
    b.model = str("absent");
    served_accepts(&S, ATTACKER, REQUEST_SAVE_BEGIN, &b.base);
    refuse(REQUEST_SAVE_COMMIT, &m.base, NOT_FOUND, "absent");
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_bad_save");
    TCase *c = tcase_create("rpc_bad_save");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, open_served, close_served);
    tcase_add_test(c, input_save_begin);
    tcase_add_test(c, input_save_attach);
    tcase_add_test(c, input_save_files);
    tcase_add_test(c, input_save_paths);
    tcase_add_test(c, input_save_commit);
    suite_add_tcase(s, c);
    return run_suite(s);
}
