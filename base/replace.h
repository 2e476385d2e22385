/* replace.h - a file replaced as a whole: the target is the old file or the new one, never a part.
 *
 * The new bytes go to ".NAME.fp8d-save" in the same folder, locked while it is written; commit
 * fsyncs it, gives it the target's name, and fsyncs the folder. A crash leaves at most that one
 * temporary, which the next replacement of NAME takes over. Blocking; any thread, one at a time.
 */
#ifndef FP8D_BASE_REPLACE_H
#define FP8D_BASE_REPLACE_H

#include "base/io.h"

struct replace {
    const struct io *io;
    int dirfd;               /* borrowed; AT_FDCWD has no fsync of the folder */
    int fd;                  /* the temporary, O_RDWR, empty; -1: closed */
    char name[256];          /* of the target, without '/' */
    char temporary[272];
};

/* The folder of a path, open (or a negative status); the rest of the path to *name. */
int replace_folder(const struct io *io, const char *path, const char **name, struct fault *f);

/* Create and lock the temporary, with the target's permissions if there is one, else 0666 less the
 * umask. FP8D_EABORTED if another replacement of this target is under way. */
int replace_open(struct replace *r, const struct io *io, int dirfd, const char *name,
                 struct fault *f);

/* fsync, rename, fsync of the folder, close. On failure the temporary is removed. */
int replace_commit(struct replace *r, struct fault *f);

/* Remove the temporary; also when zeroed with fd -1. */
void replace_abort(struct replace *r);

#endif
