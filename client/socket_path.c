/* Where the daemon listens if nobody says otherwise. */
#include "client/conn.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define SYSTEM_SOCKET "/run/fp8d/0/fp8d.sock"
#define PATH_BYTES (sizeof((struct sockaddr_un *)0)->sun_path)

static bool is_service_user(void)
{
    struct passwd entry, *found = NULL;
    char buf[4096];
    if (geteuid() == 0)
        return true;
    if (getpwuid_r(geteuid(), &entry, buf, sizeof buf, &found) || !found)
        return false;
    return !strcmp(found->pw_name, "fp8d");
}

static int put_path(char *out, size_t size, const char *dir, const char *file, struct fault *f)
{
    size_t len = strlen(dir) + strlen(file);
    if (len >= PATH_BYTES)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the socket path has %zu bytes, at most %zu are possible", len,
                         PATH_BYTES - 1);
    if (len >= size)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the socket path has %zu bytes, room is for %zu", len,
                         size ? size - 1 : 0);
    (void)snprintf(out, size, "%s%s", dir, file);
    return 0;
}

static int choose(char *out, size_t size, struct fault *f)
{
    const char *named = secure_getenv("FP8D_SOCKET");
    if (named && *named)
        return put_path(out, size, named, "", f);
    if (access(SYSTEM_SOCKET, F_OK) == 0 || is_service_user())
        return put_path(out, size, SYSTEM_SOCKET, "", f);
    const char *dir = secure_getenv("XDG_RUNTIME_DIR");
    if (dir && *dir == '/')
        return put_path(out, size, dir, "/fp8d.sock", f);
    return fault_set(f, FP8D_ENOT_FOUND,
                     "no socket is known: there is no " SYSTEM_SOCKET
                     ", and neither FP8D_SOCKET nor XDG_RUNTIME_DIR is set");
}

int fp8d_default_socket(char *out, size_t size, struct fp8d_error *err)
{
    struct fault f = {0};
    return choose(out, size, &f) ? call_error(&f, err) : 0;
}
