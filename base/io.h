/* io.h - every file call of the project, behind one table.
 *
 * `io_posix` is the real one. Tests pass a table of their own to let a call fail, stall or come up
 * short. All members return a value >= 0, or a negative errno. Blocking; never called on the loop
 * or the engine thread. Sockets are not files: net has its own calls.
 */
#ifndef FP8D_BASE_IO_H
#define FP8D_BASE_IO_H

#include "base/fault.h"

#include <stddef.h>
#include <stdint.h>

/* What is compared before and after a read to see that a file did not change. */
struct io_stat {
    uint64_t size;
    uint64_t dev, inode;
    int64_t mtime_ns, ctime_ns;
    uint32_t mode;  /* st_mode */
    int flags;      /* F_GETFL: access mode and O_APPEND, O_PATH */
};

struct io {
    void *self; /* passed first to every member */
    int (*open)(void *self, const char *path, int flags, unsigned mode); /* O_CLOEXEC is added */
    int (*open_beneath)(void *self, int dirfd, const char *path, int flags); /* openat2, no escape:
                          RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS */
    int (*close)(void *self, int fd);
    int (*stat)(void *self, int fd, struct io_stat *out);
    int64_t (*pread)(void *self, int fd, void *buf, size_t len, uint64_t off);
    int64_t (*pwrite)(void *self, int fd, const void *buf, size_t len, uint64_t off);
    int (*fsync)(void *self, int fd);
    /* Names relative to dirfd (AT_FDCWD: the current directory). */
    int (*create)(void *self, int dirfd, const char *name, unsigned mode); /* O_RDWR | O_CREAT |
                          O_NOFOLLOW; an existing file is opened as it is */
    int (*stat_at)(void *self, int dirfd, const char *name, struct io_stat *out); /* no link is
                          followed; flags is 0 */
    int (*rename)(void *self, int dirfd, const char *from, const char *to);
    int (*unlink)(void *self, int dirfd, const char *name);
    int (*lock)(void *self, int fd);  /* exclusive flock, -EWOULDBLOCK if another holds it */
    int (*chmod)(void *self, int fd, unsigned mode);
    int (*truncate)(void *self, int fd, uint64_t size);
};

extern const struct io io_posix;

/* Read exactly len bytes at off, through short reads and EINTR; a file that ends early is
 * FP8D_EDATA_LOSS with the sentence "ends at byte X, needed Y". */
int io_read_full(const struct io *io, int fd, void *buf, size_t len, uint64_t off, struct fault *f);

/* Write exactly len bytes at off. */
int io_write_full(const struct io *io, int fd, const void *buf, size_t len, uint64_t off,
                  struct fault *f);

/* Open for reading; stat must say a regular file. Fault names the path. Returns fd or status. */
int io_open_read(const struct io *io, const char *path, struct io_stat *st, struct fault *f);

/* Check that fd is a regular file opened for reading (and not O_PATH or write-only). */
int io_check_readable(const struct io *io, int fd, struct io_stat *st, struct fault *f);

/* Check that fd is a regular file that pwrite can put anywhere: not read-only, O_PATH or O_APPEND. */
int io_check_writable(const struct io *io, int fd, struct fault *f);

/* FP8D_EABORTED "changed while it was read" unless size, inode, mtime and ctime are those of before. */
int io_check_unchanged(const struct io *io, int fd, const struct io_stat *before, struct fault *f);

#endif
