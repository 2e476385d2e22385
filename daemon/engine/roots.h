/* roots.h - opening files below the daemon's own configured roots, and nowhere else.
 *
 * Paths are absolute and below a root, or relative and tried below each. openat2 sees to it that
 * nothing leads out: no "..", no symbolic link, no magic link. Blocking; loader thread.
 */
#ifndef FP8D_DAEMON_ENGINE_ROOTS_H
#define FP8D_DAEMON_ENGINE_ROOTS_H

#include "base/io.h"

/* `roots`: colon-separated absolute directories; NULL or "" for none. Returns a descriptor, or
 * FP8D_EPERMISSION_DENIED (not below a root) or the errno of the last attempt, with a sentence. */
int roots_open_file(const struct io *io, const char *roots, const char *path, struct fault *f);

/* The folder that holds `path`, and the name in it (inside `path`): for a file to be replaced. */
int roots_open_folder(const struct io *io, const char *roots, const char *path, const char **name,
                      struct fault *f);

#endif
