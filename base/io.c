#include "base/io.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int posix_open(void *self, const char *path, int flags, unsigned mode)
{
    (void)self;
    int fd = open(path, flags | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static int posix_open_beneath(void *self, int dirfd, const char *path, int flags)
{
    (void)self;
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS,
    };
    long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

static int posix_close(void *self, int fd)
{
    (void)self;
    return close(fd) ? -errno : 0;
}

static struct io_stat stat_from(const struct stat *st, int flags)
{
    return (struct io_stat){
        .size = st->st_size < 0 ? 0 : (uint64_t)st->st_size,
        .dev = st->st_dev,
        .inode = st->st_ino,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
        .mode = st->st_mode,
        .flags = flags,
    };
}

static int posix_stat(void *self, int fd, struct io_stat *out)
{
    (void)self;
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fstat(fd, &st))
        return -errno;
    *out = stat_from(&st, flags);
    return 0;
}

static int posix_stat_at(void *self, int dirfd, const char *name, struct io_stat *out)
{
    (void)self;
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
        return -errno;
    *out = stat_from(&st, 0);
    return 0;
}

static int64_t posix_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    (void)self;
    ssize_t n = pread(fd, buf, len, (off_t)off);
    return n < 0 ? -errno : n;
}

static int64_t posix_pwrite(void *self, int fd, const void *buf, size_t len, uint64_t off)
{
    (void)self;
    ssize_t n = pwrite(fd, buf, len, (off_t)off);
    return n < 0 ? -errno : n;
}

static int posix_fsync(void *self, int fd)
{
    (void)self;
    return fsync(fd) ? -errno : 0;
}

static int posix_create(void *self, int dirfd, const char *name, unsigned mode)
{
    (void)self;
    int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static int posix_rename(void *self, int dirfd, const char *from, const char *to)
{
    (void)self;
    return renameat(dirfd, from, dirfd, to) ? -errno : 0;
}

static int posix_unlink(void *self, int dirfd, const char *name)
{
    (void)self;
    return unlinkat(dirfd, name, 0) ? -errno : 0;
}

static int posix_lock(void *self, int fd)
{
    (void)self;
    return flock(fd, LOCK_EX | LOCK_NB) ? -errno : 0;
}

static int posix_chmod(void *self, int fd, unsigned mode)
{
    (void)self;
    return fchmod(fd, mode & 07777) ? -errno : 0;
}

static int posix_truncate(void *self, int fd, uint64_t size)
{
    (void)self;
    return ftruncate(fd, (off_t)size) ? -errno : 0;
}

const struct io io_posix = {
    .open = posix_open,
    .open_beneath = posix_open_beneath,
    .close = posix_close,
    .stat = posix_stat,
    .pread = posix_pread,
    .pwrite = posix_pwrite,
    .fsync = posix_fsync,
    .create = posix_create,
    .stat_at = posix_stat_at,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .lock = posix_lock,
    .chmod = posix_chmod,
    .truncate = posix_truncate,
};

int io_read_full(const struct io *io, int fd, void *buf, size_t len, uint64_t off, struct fault *f)
{
    size_t done = 0;
    while (done < len) {
        int64_t n = io->pread(io->self, fd, (char *)buf + done, len - done, off + done);
        if (n == -EINTR)
            continue;
        if (n < 0)
            return fault_set(f, (int)n, "reading %zu bytes at %llu failed: %s", len,
                             (unsigned long long)off, status_text((int)n));
        if (n == 0)
            return fault_set(f, FP8D_EDATA_LOSS, "the file ends at byte %llu, needed %llu",
                             (unsigned long long)(off + done), (unsigned long long)(off + len));
        done += (size_t)n;
    }
    return 0;
}

int io_write_full(const struct io *io, int fd, const void *buf, size_t len, uint64_t off,
                  struct fault *f)
{
    size_t done = 0;
    while (done < len) {
        int64_t n = io->pwrite(io->self, fd, (const char *)buf + done, len - done, off + done);
        if (n == -EINTR)
            continue;
        if (n == 0)
            n = -EIO;
        if (n < 0)
            return fault_set(f, (int)n, "writing %zu bytes at %llu failed: %s", len,
                             (unsigned long long)off, status_text((int)n));
        done += (size_t)n;
    }
    return 0;
}

static const char *kind_of(unsigned mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a special file";
}

/* What both kinds of use need: a regular file, and not just a name for one. */
static int check_regular(const struct io *io, int fd, struct io_stat *st, const char *needed,
                         struct fault *f)
{
    int rc = io->stat(io->self, fd, st);
    if (rc)
        return fault_set(f, rc, "looking at descriptor %d failed: %s", fd, status_text(rc));
    if (!S_ISREG(st->mode))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "is %s, needed a regular file",
                         kind_of(st->mode));
    if (st->flags & O_PATH)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "was opened with O_PATH, needed %s", needed);
    return 0;
}

int io_check_readable(const struct io *io, int fd, struct io_stat *st, struct fault *f)
{
    struct io_stat now;
    int rc = check_regular(io, fd, &now, "O_RDONLY", f);
    if (!rc && (now.flags & O_ACCMODE) == O_WRONLY)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "was opened write-only, needed O_RDONLY");
    if (!rc)
        *st = now;
    return rc;
}

int io_check_writable(const struct io *io, int fd, struct fault *f)
{
    struct io_stat now;
    int rc = check_regular(io, fd, &now, "O_RDWR", f);
    if (!rc && (now.flags & O_ACCMODE) == O_RDONLY)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "was opened read-only, needed O_RDWR");
    if (!rc && (now.flags & O_APPEND))
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "was opened with O_APPEND, needed a file that can be written anywhere");
    return rc;
}

int io_open_read(const struct io *io, const char *path, struct io_stat *st, struct fault *f)
{
    char shown[256];
    text_escape(shown, sizeof shown, path, strlen(path));
    int fd = io->open(io->self, path, O_RDONLY | O_NOCTTY | O_NONBLOCK, 0);
    if (fd < 0)
        return fault_set(f, fd, "cannot open %s: %s", shown, status_text(fd));
    int rc = io_check_readable(io, fd, st, f);
    if (rc) {
        (void)io->close(io->self, fd);
        return fault_wrap(f, "%s", shown);
    }
    return fd;
}

int io_check_unchanged(const struct io *io, int fd, const struct io_stat *before, struct fault *f)
{
    struct io_stat now;
    int rc = io->stat(io->self, fd, &now);
    if (rc)
        return fault_set(f, rc, "looking at descriptor %d failed: %s", fd, status_text(rc));
    if (now.size != before->size)
        return fault_set(f, FP8D_EABORTED, "changed while it was read: size was %llu, now %llu",
                         (unsigned long long)before->size, (unsigned long long)now.size);
    if (now.mtime_ns != before->mtime_ns || now.ctime_ns != before->ctime_ns ||
        now.inode != before->inode || now.dev != before->dev)
        return fault_set(f, FP8D_EABORTED, "changed while it was read: its times differ");
    return 0;
}
