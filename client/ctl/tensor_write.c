#include "base/io.h"
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/safetensors.h"
#include "client/ctl/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int write_all(int fd, const struct safetensors_plan *plan, uint64_t offset,
                     const struct fp8d_tensor *t, struct fault *f)
{
    int rc = io_write_full(&io_posix, fd, plan->head, plan->head_bytes, 0, f);
    return rc ? rc : io_write_full(&io_posix, fd, t->data, t->size, offset, f);
}

/* The temporary has all bytes or is gone. */
static int write_temporary(const char *path, const struct safetensors_plan *plan, uint64_t offset,
                           const struct fp8d_tensor *t, struct fault *f)
{
    int fd = io_posix.open(io_posix.self, path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return fault_set(f, fd, "cannot make the temporary beside it: %s", status_text(fd));
    int rc = write_all(fd, plan, offset, t, f);
    int closed = io_posix.close(io_posix.self, fd);
    if (!rc && closed)
        rc = fault_set(f, closed, "closing failed: %s", status_text(closed));
    if (rc)
        (void)io_posix.unlink(io_posix.self, AT_FDCWD, path);
    return rc;
}

static int replace(const char *path, const struct safetensors_plan *plan, uint64_t offset,
                   const struct fp8d_tensor *t, struct fault *f)
{
    size_t room = strlen(path) + 40;
    char *temporary = mem_alloc(room);
    if (!temporary)
        return fault_set(f, -ENOMEM, "no memory for a path");
    (void)snprintf(temporary, room, "%s.fp8ctl-%ld.tmp", path, (long)getpid());
    int rc = write_temporary(temporary, plan, offset, t, f);
    if (!rc) {
        rc = io_posix.rename(io_posix.self, AT_FDCWD, temporary, path);
        if (rc) {
            fault_set(f, rc, "renaming the temporary failed: %s", status_text(rc));
            (void)io_posix.unlink(io_posix.self, AT_FDCWD, temporary);
        }
    }
    mem_free(temporary);
    return rc;
}

int tensor_file_write(const char *path, const char *name, const struct fp8d_tensor *t,
                      struct fault *f)
{
    struct safetensors_tensor out = {
        .name = name, .dtype = (enum dtype)t->dtype, .rank = t->rank, .bytes = t->size};
    struct safetensors_meta meta = {"format", "pt"};
    struct safetensors_plan plan;
    char shown[256];
    memcpy(out.dims, t->dims, sizeof out.dims);
    int rc = safetensors_plan(&out, 1, &meta, 1, &plan, f);
    if (!rc) {
        rc = replace(path, &plan, out.offset, t, f);
        safetensors_plan_fini(&plan);
    }
    return rc ? fault_wrap(f, "%s", text_escape(shown, sizeof shown, path, strlen(path))) : 0;
}
