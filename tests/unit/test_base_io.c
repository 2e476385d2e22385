#include "base/io.h"
#include "tests/unit/fake_io.h"
#include "tests/unit/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- fixture --- */

static unsigned char disk[1000];
static struct fake_file file;
static struct fault f;
static char dir[] = "/tmp/fp8d-io-XXXXXX";
static char path[64];

static void setup(void)
{
    for (size_t i = 0; i < sizeof disk; i++)
        disk[i] = (unsigned char)(i * 7);
    fake_file_init(&file, disk, sizeof disk);
    memset(&f, 0, sizeof f);
    strcpy(dir, "/tmp/fp8d-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fputs("content", out);
    fclose(out);
}

static void teardown(void)
{
    (void)unlink(path);
    (void)rmdir(dir);
}

/* --- helpers --- */

static int check_fd(int fd)
{
    struct io_stat st;
    int rc = io_check_readable(&io_posix, fd, &st, &f);
    close(fd);
    return rc;
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(f.text, part) != NULL, "\"%s\" lacks \"%s\"", f.text, part);
}

/* --- cases --- */

/* Short reads are put together, whatever their size, and interrupted ones are repeated. */
START_TEST(io_short_reads_are_put_together)
{
    for (size_t chunk = 1; chunk < 40; chunk += 6) {
        unsigned char buf[100] = {0};
        file.chunk = chunk;
        file.fail_in = 1;
        file.fail_with = -EINTR;
        ck_assert_int_eq(io_read_full(&file.io, 7, buf, sizeof buf, 50, &f), 0);
        ck_assert_mem_eq(buf, disk + 50, sizeof buf);
    }
}
END_TEST

/* A file that ends early is data loss, with the byte where it ends and the byte needed. */
START_TEST(io_early_end_is_data_loss)
{
    unsigned char buf[100];
    ck_assert_int_eq(io_read_full(&file.io, 7, buf, 100, 950, &f), FP8D_EDATA_LOSS);
    assert_says("ends at byte 1000, needed 1050");
}
END_TEST

/* Any other error of a read passes through, with what was read and why it failed. */
START_TEST(io_read_error_passes_through)
{
    unsigned char buf[100];
    file.chunk = 10;
    file.fail_in = 3;
    file.fail_with = -EIO;
    ck_assert_int_eq(io_read_full(&file.io, 7, buf, 100, 20, &f), -EIO);
    assert_says("reading 100 bytes at 20 failed");
    ck_assert_int_eq(file.calls, 4);
}
END_TEST

/* Reading nothing makes no call. */
START_TEST(io_read_of_nothing)
{
    ck_assert_int_eq(io_read_full(&file.io, 7, NULL, 0, 5000, &f), 0);
    ck_assert_int_eq(file.calls, 0);
}
END_TEST

/* Short and interrupted writes are completed; a write of 0 bytes is an error, not a loop. */
START_TEST(io_writes_are_completed)
{
    unsigned char buf[100];
    memset(buf, 0xaa, sizeof buf);
    file.chunk = 9;
    file.fail_in = 2;
    file.fail_with = -EINTR;
    ck_assert_int_eq(io_write_full(&file.io, 7, buf, sizeof buf, 10, &f), 0);
    ck_assert_mem_eq(disk + 10, buf, sizeof buf);
    ck_assert_uint_eq(disk[110], (110 * 7) & 255);
    file.end_in = 1;
    ck_assert_int_eq(io_write_full(&file.io, 7, buf, sizeof buf, 10, &f), -EIO);
    file.fail_in = 0;
    file.fail_with = -ENOSPC;
    ck_assert_int_eq(io_write_full(&file.io, 7, buf, sizeof buf, 10, &f), -ENOSPC);
    assert_says("writing 100 bytes at 10 failed");
}
END_TEST

/* A change of size, times, inode or device during a read is seen; none is none. */
START_TEST(io_changes_are_seen)
{
    struct io_stat before = file.st;
    ck_assert_int_eq(io_check_unchanged(&file.io, 7, &before, &f), 0);
    file.st.size = 999;
    ck_assert_int_eq(io_check_unchanged(&file.io, 7, &before, &f), FP8D_EABORTED);
    assert_says("changed while it was read: size was 1000, now 999");
    int64_t *const times[] = {&file.st.mtime_ns, &file.st.ctime_ns};
    for (int i = 0; i < 2; i++) {
        file.st = before;
        *times[i] += 1;
        ck_assert_int_eq(io_check_unchanged(&file.io, 7, &before, &f), FP8D_EABORTED);
        assert_says("changed while it was read");
    }
    file.st = before;
    file.st.inode++;
    ck_assert_int_eq(io_check_unchanged(&file.io, 7, &before, &f), FP8D_EABORTED);
    file.st = before;
    file.st.dev++;
    ck_assert_int_eq(io_check_unchanged(&file.io, 7, &before, &f), FP8D_EABORTED);
    file.stat_fails = -EIO;
    ck_assert_int_eq(io_check_unchanged(&file.io, 7, &before, &f), -EIO);
}
END_TEST

/* Opening gives descriptor and stat; a missing file is ENOENT with its path, escaped. */
START_TEST(io_open_read_names_the_path)
{
    struct io_stat st;
    int fd = io_open_read(&io_posix, path, &st, &f);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq(st.size, 7);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    ck_assert_int_eq(io_open_read(&io_posix, "/no\n/such", &st, &f), -ENOENT);
    assert_says("cannot open /no\\x0a/such");
}
END_TEST

/* A path that is no regular file is refused, and its descriptor closed again. */
START_TEST(io_open_read_refuses_and_closes)
{
    struct io_stat st;
    file.st.mode = S_IFDIR | 0755;
    ck_assert_int_eq(io_open_read(&file.io, "some/dir", &st, &f), FP8D_EINVALID_ARGUMENT);
    assert_says("some/dir: is a directory, needed a regular file");
    file.stat_fails = -EIO;
    ck_assert_int_eq(io_open_read(&file.io, "x", &st, &f), -EIO);
    ck_assert_int_eq(file.open, 2);
    ck_assert_int_eq(file.closed, 2);
}
END_TEST

/* A FIFO without a writer does not block the open. */
START_TEST(io_open_read_does_not_block_on_a_fifo)
{
    struct io_stat st;
    char fifo[80];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    int rc = io_open_read(&io_posix, fifo, &st, &f);
    unlink(fifo);
    ck_assert_int_eq(rc, FP8D_EINVALID_ARGUMENT);
    assert_says("is a pipe");
}
END_TEST

/* Directories, pipes, sockets and devices are refused by what they are. */
START_TEST(io_check_refuses_what_is_no_file)
{
    int p[2];
    ck_assert_int_eq(check_fd(open(dir, O_RDONLY)), FP8D_EINVALID_ARGUMENT);
    assert_says("is a directory, needed a regular file");
    ck_assert_int_eq(pipe(p), 0);
    close(p[1]);
    ck_assert_int_eq(check_fd(p[0]), FP8D_EINVALID_ARGUMENT);
    assert_says("is a pipe");
    ck_assert_int_eq(check_fd(socket(AF_UNIX, SOCK_STREAM, 0)), FP8D_EINVALID_ARGUMENT);
    assert_says("is a socket");
    ck_assert_int_eq(check_fd(open("/dev/null", O_RDONLY)), FP8D_EINVALID_ARGUMENT);
    assert_says("is a special file");
    ck_assert_int_eq(check_fd(-1), -EBADF);
}
END_TEST

/* A descriptor that cannot be read is refused: O_PATH, write-only. Read-write is fine. */
START_TEST(io_check_refuses_what_cannot_be_read)
{
    ck_assert_int_eq(check_fd(open(path, O_PATH)), FP8D_EINVALID_ARGUMENT);
    assert_says("opened with O_PATH, needed O_RDONLY");
    ck_assert_int_eq(check_fd(open(path, O_WRONLY)), FP8D_EINVALID_ARGUMENT);
    assert_says("opened write-only, needed O_RDONLY");
    ck_assert_int_eq(check_fd(open(path, O_RDWR)), 0);
    ck_assert_int_eq(check_fd(open(path, O_RDONLY)), 0);
}
END_TEST

/* A path below a root cannot leave it, by "..", absolute path or symbolic link. */
START_TEST(io_open_beneath_does_not_escape)
{
    char link[80];
    int root = open(dir, O_DIRECTORY | O_RDONLY);
    snprintf(link, sizeof link, "%s/link", dir);
    ck_assert_int_eq(symlink("/etc/passwd", link), 0);
    int fd = io_posix.open_beneath(NULL, root, "file", O_RDONLY);
    int up = io_posix.open_beneath(NULL, root, "../../etc/passwd", O_RDONLY);
    int absolute = io_posix.open_beneath(NULL, root, "/etc/passwd", O_RDONLY);
    int through = io_posix.open_beneath(NULL, root, "link", O_RDONLY);
    unlink(link);
    close(root);
    ck_assert_int_ge(fd, 0);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    ck_assert_int_eq(up, -EXDEV);
    ck_assert_int_eq(absolute, -EXDEV);
    ck_assert_int_eq(through, -ELOOP);
}
END_TEST

/* The real table writes, syncs, truncates, renames and unlinks, and returns errno values. */
START_TEST(io_posix_table_works)
{
    char to[80];
    struct io_stat st;
    snprintf(to, sizeof to, "%s/to", dir);
    int fd = io_posix.open(NULL, path, O_RDWR, 0);
    ck_assert_int_eq(io_write_full(&io_posix, fd, "abc", 3, 5, &f), 0);
    ck_assert_int_eq(io_posix.truncate(NULL, fd, 20), 0);
    ck_assert_int_eq(io_posix.fsync(NULL, fd), 0);
    ck_assert_int_eq(io_posix.stat(NULL, fd, &st), 0);
    ck_assert_uint_eq(st.size, 20);
    char buf[20];
    ck_assert_int_eq(io_read_full(&io_posix, fd, buf, 20, 0, &f), 0);
    ck_assert_mem_eq(buf, "conteabc\0\0", 10);
    ck_assert_int_eq(io_posix.close(NULL, fd), 0);
    ck_assert_int_eq(io_posix.close(NULL, fd), -EBADF);
    ck_assert_int_eq(io_posix.rename(NULL, AT_FDCWD, path, to), 0);
    ck_assert_int_eq(io_posix.rename(NULL, AT_FDCWD, path, to), -ENOENT);
    ck_assert_int_eq(io_posix.unlink(NULL, AT_FDCWD, to), 0);
    ck_assert_int_eq(io_posix.unlink(NULL, AT_FDCWD, to), -ENOENT);
    ck_assert_int_eq(io_posix.stat(NULL, -1, &st), -EBADF);
    ck_assert_int_eq((int)io_posix.pread(NULL, -1, buf, 1, 0), -EBADF);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/io");
    TCase *c = tcase_create("io");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, io_short_reads_are_put_together);
    tcase_add_test(c, io_early_end_is_data_loss);
    tcase_add_test(c, io_read_error_passes_through);
    tcase_add_test(c, io_read_of_nothing);
    tcase_add_test(c, io_writes_are_completed);
    tcase_add_test(c, io_changes_are_seen);
    tcase_add_test(c, io_open_read_names_the_path);
    tcase_add_test(c, io_open_read_refuses_and_closes);
    tcase_add_test(c, io_open_read_does_not_block_on_a_fifo);
    tcase_add_test(c, io_check_refuses_what_is_no_file);
    tcase_add_test(c, io_check_refuses_what_cannot_be_read);
    tcase_add_test(c, io_open_beneath_does_not_escape);
    tcase_add_test(c, io_posix_table_works);
    suite_add_tcase(s, c);
    return run_suite(s);
}
