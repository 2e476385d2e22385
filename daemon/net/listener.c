#include "daemon/net/listener.h"

#include "base/io.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128

static int stream_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

static struct sockaddr_un address(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, strlen(path) + 1);
    return a;
}

static int take_lock(struct listener *l, struct fault *f)
{
    char name[LISTENER_PATH_MAX + 8];
    snprintf(name, sizeof name, "%s.lock", l->path);
    l->lock = io_posix.open(io_posix.self, name, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (l->lock < 0)
        return fault_set(f, l->lock, "cannot open the lock file %s: %s", name, strerror(-l->lock));
    if (flock(l->lock, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        return fault_set(f, -EADDRINUSE, "another daemon holds %s", name);
    return fault_set(f, -errno, "locking %s failed: %s", name, strerror(errno));
}

/* Is somebody listening there? 0: no, the socket is stale. */
static int probe(const struct listener *l, struct fault *f)
{
    struct sockaddr_un a = address(l->path);
    int fd = stream_socket();
    if (fd < 0)
        return fault_set(f, fd, "making a socket failed: %s", strerror(-fd));
    int err = connect(fd, (struct sockaddr *)&a, sizeof a) ? errno : 0;
    close(fd);
    if (err == ECONNREFUSED || err == ENOENT)
        return 0;
    if (!err || err == EAGAIN || err == EINPROGRESS)
        return fault_set(f, -EADDRINUSE, "another daemon listens on %s", l->path);
    return fault_set(f, -err, "cannot tell whether %s is in use: %s", l->path, strerror(err));
}

static int remove_stale(const struct listener *l, struct fault *f)
{
    struct stat st;
    if (lstat(l->path, &st))
        return errno == ENOENT ? 0 : fault_set(f, -errno, "%s: %s", l->path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return fault_set(f, -EEXIST, "%s exists and is not a socket", l->path);
    int rc = probe(l, f);
    if (!rc && unlink(l->path) && errno != ENOENT)
        rc = fault_set(f, -errno, "removing the stale socket %s failed: %s", l->path,
                       strerror(errno));
    return rc;
}

/* The mode is set on the socket before it has a name: bind makes the file with it, less the umask,
 * so that it is at no moment more open than asked for. */
static int bind_path(struct listener *l, unsigned mode, struct fault *f)
{
    struct sockaddr_un a = address(l->path);
    struct stat st;
    l->fd = stream_socket();
    if (l->fd < 0)
        return fault_set(f, l->fd, "making a socket failed: %s", strerror(-l->fd));
    if (fchmod(l->fd, mode) || bind(l->fd, (struct sockaddr *)&a, sizeof a))
        return fault_set(f, -errno, "cannot bind %s: %s", l->path, strerror(errno));
    if (lstat(l->path, &st) == 0) {
        l->dev = st.st_dev;
        l->inode = st.st_ino;
    }
    if (chmod(l->path, mode) || listen(l->fd, BACKLOG))
        return fault_set(f, -errno, "cannot listen on %s: %s", l->path, strerror(errno));
    return 0;
}

static int open_path(struct listener *l, const struct net_options *o, struct fault *f)
{
    size_t len = strlen(o->socket_path);
    char shown[256];
    if (len == 0 || len > LISTENER_PATH_MAX)
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT, "the socket path %s has %zu bytes, needed 1 to %d",
            text_escape(shown, sizeof shown, o->socket_path, len), len, LISTENER_PATH_MAX);
    memcpy(l->path, o->socket_path, len + 1);
    int rc = take_lock(l, f);
    if (!rc)
        rc = remove_stale(l, f);
    return rc ? rc : bind_path(l, o->socket_mode, f);
}

int listener_open(struct listener *l, const struct net_options *o, struct fault *f)
{
    *l = (struct listener){.fd = -1, .reserve = -1, .lock = -1};
    int rc = 0;
    if (o->listen_fd >= 0)
        l->fd = o->listen_fd;
    else
        rc = open_path(l, o, f);
    if (rc) {
        listener_close(l);
        return rc;
    }
    listener_rearm(l);
    return 0;
}

void listener_rearm(struct listener *l)
{
    if (l->reserve < 0)
        l->reserve = fcntl(l->fd, F_DUPFD_CLOEXEC, 0);
}

static int accept_one(const struct listener *l)
{
    int fd;
    do
        fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return fd < 0 ? -errno : fd;
}

int listener_accept(struct listener *l, bool *starved)
{
    *starved = false;
    int fd = accept_one(l);
    if (fd != -EMFILE || l->reserve < 0)
        return fd;
    close(l->reserve);
    l->reserve = -1;
    *starved = true;
    fd = accept_one(l);
    if (fd < 0)
        listener_rearm(l);
    return fd;
}

void listener_close(struct listener *l)
{
    struct stat st;
    if (l->inode && lstat(l->path, &st) == 0 && st.st_ino == l->inode && st.st_dev == l->dev)
        unlink(l->path);
    if (l->reserve >= 0)
        close(l->reserve);
    if (l->fd >= 0)
        close(l->fd);
    if (l->lock >= 0)
        close(l->lock);
    *l = (struct listener){.fd = -1, .reserve = -1, .lock = -1};
}
