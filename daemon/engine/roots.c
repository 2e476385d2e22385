#include "daemon/engine/roots.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define PATH_BYTES 4096

/* The part of `path` below `root`, or NULL: it is not below it. Relative paths are below any. */
static const char *below(const char *path, const char *root, size_t len)
{
    if (path[0] != '/')
        return path;
    if (len == 1) /* the root "/" */
        len = 0;
    /* The root itself is below the root: the folder of a file that lies in it. */
    if (strncmp(path, root, len) != 0 || (path[len] && path[len] != '/'))
        return NULL;
    path += len;
    while (*path == '/')
        path++;
    return path;
}

static int open_below(const struct io *io, const char *root, size_t len, const char *rest,
                      int flags)
{
    char dir[PATH_BYTES];
    if (len >= sizeof dir)
        return -ENAMETOOLONG;
    memcpy(dir, root, len);
    dir[len] = 0;
    int at = io->open(io->self, dir, O_PATH | O_DIRECTORY, 0);
    if (at < 0)
        return at;
    int fd = io->open_beneath(io->self, at, *rest ? rest : ".", flags);
    (void)io->close(io->self, at);
    return fd;
}

/* The first root below which `path` opens. */
static int open_first(const struct io *io, const char *roots, const char *path, int flags,
                      struct fault *f)
{
    const char *all = roots ? roots : "";
    int rc = FP8D_EPERMISSION_DENIED;
    for (const char *root = all; *root;) {
        size_t len = strcspn(root, ":");
        size_t bare = len;
        while (bare > 1 && root[bare - 1] == '/')
            bare--;
        const char *rest = bare ? below(path, root, bare) : NULL;
        if (rest) {
            rc = open_below(io, root, bare, rest, flags);
            if (rc >= 0)
                return rc;
        }
        root += len + (root[len] == ':');
    }
    if (rc == FP8D_EPERMISSION_DENIED)
        return fault_set(f, rc, "server_path is not below a root of load_roots (%s)",
                         *all ? all : "none is configured");
    if (rc == -EXDEV || rc == -ELOOP) /* openat2, which is told to follow neither */
        return fault_set(f, FP8D_EPERMISSION_DENIED,
                         "server_path has %s, needed a path below a root without '..' that leaves it and "
                         "without symbolic links",
                         rc == -EXDEV ? "a '..' that leaves its root" : "a symbolic link");
    return fault_set(f, rc, "server_path cannot be opened below the roots: %s", status_text(rc));
}

int roots_open_file(const struct io *io, const char *roots, const char *path, struct fault *f)
{
    return open_first(io, roots, path, O_RDONLY | O_NOCTTY | O_NONBLOCK, f);
}

int roots_open_folder(const struct io *io, const char *roots, const char *path, const char **name,
                      struct fault *f)
{
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "server_path does not end in a file name");
    if (len >= sizeof folder)
        return fault_set(f, -ENAMETOOLONG, "server_path has a folder of %zu bytes, at most %d", len,
                         PATH_BYTES - 1);
    /* "/x" has the folder "/", "x" the folder ".". */
    memcpy(folder, path, len);
    memcpy(folder + len, slash ? (len ? "" : "/") : ".", slash && len ? 1 : 2);
    int fd = open_first(io, roots, folder, O_RDONLY | O_DIRECTORY, f);
    if (fd >= 0)
        *name = base;
    return fd;
}
