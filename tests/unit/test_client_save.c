/* fp8d_save_file: the target is the old file or the new one, whole, and no temporary stays. */
#include "tests/unit/fake_server.h"
#include "tests/unit/run.h"

#include "base/mem.h"
#include "base/replace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* --- fixture: a folder with an old file in it --- */

#define OLD "the old file"
#define NEW "new"

static char dir[64], target[96];

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void setup(void)
{
    strcpy(dir, "/tmp/fp8d-save-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(target, sizeof target, "%s/t.safetensors", dir);
    put_file(target, OLD);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

/* --- fixture: a server that saves --- */

static struct {
    char name[64];  /* as attached */
    size_t needs;   /* of the attach */
    int flags;      /* of the descriptor */
    struct stat st; /* of the file as it came */
} seen;

static int file = -1; /* attached */

/* It writes the file as the daemon does: at places, not at an end. */
static bool take_file(struct fake *s, const struct frame_header *h)
{
    Fp8d__V1__SaveAttachRequest *m =
        fp8d__v1__save_attach_request__unpack(NULL, h->meta_len, s->meta);
    if (!m || s->nfds != 1 || m->n_names != 1)
        return false;
    snprintf(seen.name, sizeof seen.name, "%s", m->names[0]);
    seen.needs = m->head->n_needs;
    fp8d__v1__save_attach_request__free_unpacked(m, NULL);
    file = s->fds[0];
    seen.flags = fcntl(file, F_GETFL) & O_ACCMODE;
    return !fstat(file, &seen.st) && pwrite(file, NEW, strlen(NEW), 0) == (ssize_t)strlen(NEW);
}

static bool tell_progress(int fd, const struct frame_header *h)
{
    Fp8d__V1__SaveCommitReply m = FP8D__V1__SAVE_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadProgress p = FP8D__V1__LOAD_PROGRESS__INIT;
    m.progress = &p;
    p.bytes_done = 1;
    p.bytes_total = 3;
    p.tensors_total = 2;
    p.stage = (char *)"write";
    return fake_send(fd, h->type, h->id, FRAME_FLAG_REPLY | FRAME_FLAG_MORE, &m, NULL, 0);
}

static bool report(int fd, const struct frame_header *h)
{
    Fp8d__V1__SaveCommitReply m = FP8D__V1__SAVE_COMMIT_REPLY__INIT;
    Fp8d__V1__SaveReport r = FP8D__V1__SAVE_REPORT__INIT;
    m.report = &r;
    r.bytes_written = 3;
    r.write_us = 44;
    r.tensors = 2;
    close(file);
    return tell_progress(fd, h) && fake_reply(fd, h, &m);
}

static bool serve_save(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    if (h->type == REQUEST_SAVE_ATTACH && !take_file(s, h))
        return false;
    return h->type == REQUEST_SAVE_COMMIT ? report(fd, h) : fake_answer(fd, h, n);
}

static bool serve_full_disk(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    if (h->type == REQUEST_SAVE_ATTACH && !take_file(s, h))
        return false;
    if (h->type != REQUEST_SAVE_COMMIT)
        return fake_answer(fd, h, n);
    close(file);
    return fake_fail(fd, h, 8, "No space left on device");
}

static bool serve_death(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    if (h->type == REQUEST_SAVE_ATTACH && !take_file(s, h))
        return false;
    if (h->type != REQUEST_SAVE_COMMIT)
        return fake_answer(fd, h, n);
    close(file);
    return false;
}

static bool serve_no_model(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    (void)n;
    for (unsigned i = 0; i < s->nfds; i++)
        close(s->fds[i]);
    if (h->type == REQUEST_SAVE_BEGIN)
        return fake_fail(fd, h, 5, "no model m");
    return fake_fail(fd, h, 10, "needs");
}

/* --- helpers --- */

static int save(struct fp8d *c, const char *path, struct fp8d_error *err)
{
    return fp8d_save_file(c, "m", path, NULL, NULL, NULL, NULL, err);
}

/* The target has this text, and nothing else is in the folder. */
static void check_folder(const char *text)
{
    char got[64] = "";
    FILE *f = fopen(target, "r");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    fclose(f);
    ck_assert_uint_eq(n, strlen(text));
    ck_assert_str_eq(got, text);
    DIR *d = opendir(dir);
    unsigned entries = 0;
    while (readdir(d))
        entries++;
    closedir(d);
    ck_assert_uint_eq(entries, 3);
}

static void count_progress(void *arg, const struct fp8d_progress *p)
{
    ++*(unsigned *)arg;
    ck_assert(p->bytes_done == 1 && p->bytes_total == 3 && p->tensors_total == 2);
    ck_assert_str_eq(p->stage, "write");
}

/* --- cases --- */

/* A good save: an empty file for reading and writing, with the target's mode, takes its place. */
START_TEST(test_good)
{
    struct fake_pair b = fake_begin(serve_save, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    struct stat st;
    unsigned told = 0;
    ck_assert_int_eq(chmod(target, 0640), 0);
    int rc = fp8d_save_file(b.c, "m", target, NULL, count_progress, &told, &r, &err);
    ck_assert_msg(rc == 0, "%s", err.text);
    ck_assert_uint_eq(told, 1);
    ck_assert_int_eq(seen.flags, O_RDWR);
    ck_assert_int_eq(seen.st.st_size, 0);
    ck_assert_str_eq(seen.name, "t.safetensors");
    ck_assert_uint_eq(seen.needs, 1);
    const struct fp8d_save_report *s = fp8d_result_save(r);
    ck_assert(s->bytes_written == 3 && s->write_us == 44 && s->tensors == 2);
    ck_assert_ptr_null(fp8d_result_load(r));
    fp8d_result_free(r);
    check_folder(NEW);
    ck_assert_int_eq(stat(target, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0640);
    ck_assert_uint_eq(st.st_ino, seen.st.st_ino);
    fake_end(b);
}
END_TEST

/* A name without a folder is in the current one; a target that is not there comes to be. */
START_TEST(test_current_folder)
{
    struct fake_pair b = fake_begin(serve_save, NULL);
    struct fp8d_error err;
    ck_assert_int_eq(unlink(target), 0);
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(save(b.c, "t.safetensors", &err), 0);
    check_folder(NEW);
    ck_assert_int_eq(chdir("/"), 0);
    fake_end(b);
}
END_TEST

/* A temporary that a killed client left, with more bytes than there are now, is taken over. */
START_TEST(test_left_over)
{
    struct fake_pair b = fake_begin(serve_save, NULL);
    struct fp8d_error err;
    char stale[128];
    snprintf(stale, sizeof stale, "%s/.t.safetensors.fp8d-save", dir);
    put_file(stale, "half of something that was longer");
    ck_assert_int_eq(save(b.c, target, &err), 0);
    check_folder(NEW);
    fake_end(b);
}
END_TEST

/* The server fails, dies, or does not know the model: the old file, and the first cause. */
START_TEST(test_server_fails)
{
    static const struct {
        fake_serve_cb serve;
        int code;
        const char *text;
    } rows[] = {
        {serve_full_disk, FP8D_ERESOURCE_EXHAUSTED, "No space left on device"},
        {serve_death, FP8D_ECLOSED, "the server closed the connection"},
        {serve_no_model, FP8D_ENOT_FOUND, "no model m"},
    };
    struct fp8d_error err;
    for (unsigned i = 0; i < 3; i++) {
        struct fake_pair b = fake_begin(rows[i].serve, NULL);
        struct fp8d_result *r = (void *)&err;
        int rc = fp8d_save_file(b.c, "m", target, NULL, NULL, NULL, &r, &err);
        ck_assert_int_eq(rc, rows[i].code);
        ck_assert_ptr_nonnull(strstr(err.text, rows[i].text));
        ck_assert_ptr_eq(r, (void *)&err); /* untouched */
        check_folder(OLD);
        fake_end(b);
    }
}
END_TEST

/* Targets that cannot be: a sentence with the path, and nothing is asked of the server. */
START_TEST(test_bad_targets)
{
    struct fake_pair b = fake_begin(serve_save, NULL);
    struct fp8d_error err;
    char path[160];
    snprintf(path, sizeof path, "%s/none/t", dir);
    ck_assert_int_eq(save(b.c, path, &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, "/none"));
    snprintf(path, sizeof path, "%s/t", target);
    ck_assert_int_eq(save(b.c, path, &err), -ENOTDIR);
    ck_assert_int_eq(save(b.c, dir, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, dir));
    snprintf(path, sizeof path, "%s/", dir);
    ck_assert_int_eq(save(b.c, path, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(save(b.c, "", &err), FP8D_EINVALID_ARGUMENT);
    check_folder(OLD);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 0);
    fake_end(b);
}
END_TEST

/* While another save to the same target is under way: refused, and that one is not disturbed. */
START_TEST(test_two_at_once)
{
    struct fake_pair b = fake_begin(serve_save, NULL);
    struct fp8d_error err;
    struct fault f = {0};
    struct replace other;
    int folder = open(dir, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(replace_open(&other, &io_posix, folder, "t.safetensors", &f), 0);
    ck_assert_int_eq(save(b.c, target, &err), FP8D_EABORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "another save"));
    ck_assert_int_eq(write(other.fd, OLD, strlen(OLD)), (ssize_t)strlen(OLD));
    ck_assert_int_eq(replace_commit(&other, &f), 0);
    check_folder(OLD);
    ck_assert_int_eq(save(b.c, target, &err), 0);
    check_folder(NEW);
    close(folder);
    fake_end(b);
}
END_TEST

static int session(const char *path, struct fp8d_error *err)
{
    struct fp8d *c;
    int rc = fp8d_connect(path, NULL, &c, err);
    if (rc)
        return rc;
    rc = save(c, target, err);
    fp8d_close(c);
    return rc;
}

/* Let allocation 0, 1, 2 ... fail until none does: the old file with a failure, else the new one;
 * no leak. */
START_TEST(test_short_of_memory)
{
    struct fp8d_error err;
    bool fired = true;
    int failures = 0;
    for (int64_t n = 0; fired; n++) {
        struct fake *s = fake_start(fake_script_serve, (void *)serve_save);
        int64_t before = mem_live_blocks();
        put_file(target, OLD);
        mem_fault_arm(n, false);
        int rc = session(s->path, &err);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        failures += rc != 0;
        check_folder(rc ? OLD : NEW);
        ck_assert_int_eq(mem_live_blocks(), before);
        shutdown(s->listener, SHUT_RDWR);
        fake_stop(s);
    }
    ck_assert_int_ge(failures, 10);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_save");
    TCase *t = tcase_create("save");
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, test_good);
    tcase_add_test(t, test_current_folder);
    tcase_add_test(t, test_left_over);
    tcase_add_test(t, test_server_fails);
    tcase_add_test(t, test_bad_targets);
    tcase_add_test(t, test_two_at_once);
    tcase_add_test(t, test_short_of_memory);
    suite_add_tcase(s, t);
    return run_suite(s);
}
