#include "base/replace.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ATTEMPTS 16

static int fail(struct replace *r, struct fault *f, int rc, const char *what)
{
    char shown[300];
    fault_set(f, rc, "%s %s failed: %s", what,
              text_escape(shown, sizeof shown, r->name, strlen(r->name)), status_text(rc));
    replace_abort(r);
    return rc;
}

/* The file that was locked must still have the temporary's name: who held it before may have renamed
 * or removed it. 1: it has; 0: try again. */
static int still_named(const struct replace *r)
{
    struct io_stat a;
    struct io_stat b;
    int rc = r->io->stat(r->io->self, r->fd, &a);
    if (!rc)
        rc = r->io->stat_at(r->io->self, r->dirfd, r->temporary, &b);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    return a.inode == b.inode && a.dev == b.dev;
}

static int open_locked(struct replace *r)
{
    for (int i = 0; i < ATTEMPTS; i++) {
        r->fd = r->io->create(r->io->self, r->dirfd, r->temporary, 0666);
        if (r->fd < 0)
            return r->fd;
        int rc = r->io->lock(r->io->self, r->fd);
        if (!rc)
            rc = still_named(r);
        if (rc == 1)
            return 0;
        /* Who fails for another reason than a holder takes the temporary away: where locks do not
         * work nobody can hold it. */
        if (rc < 0 && rc != -EWOULDBLOCK)
            (void)r->io->unlink(r->io->self, r->dirfd, r->temporary);
        (void)r->io->close(r->io->self, r->fd);
        r->fd = -1;
        if (rc < 0)
            return rc;
    }
    return -EWOULDBLOCK;
}

int replace_folder(const struct io *io, const char *path, const char **name, struct fault *f)
{
    char shown[256];
    const char *slash = strrchr(path, '/');
    char *folder = mem_strndup(slash ? path : ".", slash > path ? (size_t)(slash - path) : 1);
    if (!folder)
        return fault_set(f, -ENOMEM, "no memory for a path");
    *name = slash ? slash + 1 : path;
    int fd = io->open(io->self, folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        fault_set(f, fd, "cannot open the folder %s: %s",
                  text_escape(shown, sizeof shown, folder, strlen(folder)), status_text(fd));
    mem_free(folder);
    return fd;
}

int replace_open(struct replace *r, const struct io *io, int dirfd, const char *name,
                 struct fault *f)
{
    *r = (struct replace){.io = io, .dirfd = dirfd, .fd = -1};
    size_t len = strlen(name);
    if (len < 1 || len > 240 || strchr(name, '/'))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the file name has %zu bytes%s, needed 1 to 240 without a slash", len,
                         strchr(name, '/') ? " and a slash" : "");
    (void)snprintf(r->name, sizeof r->name, "%s", name);
    (void)snprintf(r->temporary, sizeof r->temporary, ".%s.fp8d-save", name);
    struct io_stat old;
    int found = io->stat_at(io->self, dirfd, name, &old);
    if (!found && !S_ISREG(old.mode) && !S_ISLNK(old.mode))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "the target is no regular file");
    int rc = open_locked(r);
    if (rc == -EWOULDBLOCK)
        return fault_set(f, FP8D_EABORTED, "another save to this file is under way");
    if (rc)
        return fail(r, f, rc, "creating a temporary beside");
    rc = io->truncate(io->self, r->fd, 0);
    if (!rc && !found && S_ISREG(old.mode))
        rc = io->chmod(io->self, r->fd, old.mode);
    return rc ? fail(r, f, rc, "preparing a temporary beside") : 0;
}

int replace_commit(struct replace *r, struct fault *f)
{
    const struct io *io = r->io;
    int rc = io->fsync(io->self, r->fd);
    if (rc)
        return fail(r, f, rc, "fsync of");
    rc = io->rename(io->self, r->dirfd, r->temporary, r->name);
    if (rc)
        return fail(r, f, rc, "renaming to");
    (void)io->close(io->self, r->fd);
    r->fd = -1;
    rc = r->dirfd == AT_FDCWD ? 0 : io->fsync(io->self, r->dirfd);
    return rc ? fail(r, f, rc, "fsync of the folder of") : 0;
}

void replace_abort(struct replace *r)
{
    if (r->fd < 0)
        return;
    (void)r->io->unlink(r->io->self, r->dirfd, r->temporary);
    (void)r->io->close(r->io->self, r->fd);
    r->fd = -1;
}
