/* fake_io.h - an io table over one file in memory, whose calls fail on order.
 *
 * Countdowns count calls of that kind: 0 makes the next call misbehave once, -1 never.
 */
#ifndef FP8D_TESTS_UNIT_FAKE_IO_H
#define FP8D_TESTS_UNIT_FAKE_IO_H

#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

struct fake_file {
    struct io io;
    struct io_stat st; /* what stat answers; st.size is the size of bytes */
    unsigned char *bytes;
    size_t chunk; /* most bytes one call moves; 0: no limit */
    int fail_in;  /* countdown to a pread or pwrite that returns fail_with */
    int fail_with;
    int end_in;     /* countdown to a pread or pwrite that returns 0 */
    int stat_fails; /* what stat returns, if negative */
    int open_fails;
    int calls, open, closed;
};

static inline bool fake_tick(int *countdown)
{
    return *countdown >= 0 && (*countdown)-- == 0;
}

static inline int64_t fake_move(struct fake_file *f, size_t len, uint64_t off)
{
    f->calls++;
    if (fake_tick(&f->fail_in))
        return f->fail_with;
    if (fake_tick(&f->end_in) || off >= f->st.size)
        return 0;
    if (len > f->st.size - off)
        len = (size_t)(f->st.size - off);
    return (int64_t)(f->chunk && len > f->chunk ? f->chunk : len);
}

static inline int64_t fake_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    struct fake_file *f = self;
    (void)fd;
    int64_t n = fake_move(f, len, off);
    if (n > 0)
        memcpy(buf, f->bytes + off, (size_t)n);
    return n;
}

static inline int64_t fake_pwrite(void *self, int fd, const void *buf, size_t len, uint64_t off)
{
    struct fake_file *f = self;
    (void)fd;
    int64_t n = fake_move(f, len, off);
    if (n > 0)
        memcpy(f->bytes + off, buf, (size_t)n);
    return n;
}

static inline int fake_stat(void *self, int fd, struct io_stat *out)
{
    struct fake_file *f = self;
    (void)fd;
    if (f->stat_fails)
        return f->stat_fails;
    *out = f->st;
    return 0;
}

static inline int fake_open(void *self, const char *path, int flags, unsigned mode)
{
    struct fake_file *f = self;
    (void)path, (void)flags, (void)mode;
    if (f->open_fails)
        return f->open_fails;
    f->open++;
    return 7;
}

static inline int fake_close(void *self, int fd)
{
    struct fake_file *f = self;
    (void)fd;
    f->closed++;
    return 0;
}

/* A regular file, opened for reading, that behaves well until a member says otherwise. */
static inline void fake_file_init(struct fake_file *f, void *bytes, size_t size)
{
    *f = (struct fake_file){
        .io = {.self = f,
               .open = fake_open,
               .close = fake_close,
               .stat = fake_stat,
               .pread = fake_pread,
               .pwrite = fake_pwrite},
        .st = {.size = size,
               .dev = 1,
               .inode = 2,
               .mtime_ns = 3,
               .ctime_ns = 4,
               .mode = S_IFREG | 0644,
               .flags = O_RDONLY},
        .bytes = bytes,
        .fail_in = -1,
        .end_in = -1,
    };
}

#endif
