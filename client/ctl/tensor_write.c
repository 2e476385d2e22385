#include "base/io.h"
#include "base/replace.h"
#include "base/text.h"
#include "ckpt/safetensors.h"
#include "client/ctl/tensor_file.h"

#include <string.h>

static int write_all(int fd, const struct safetensors_plan *plan, uint64_t offset,
                     const struct fp8d_tensor *t, struct fault *f)
{
    int rc = io_write_full(&io_posix, fd, plan->head, plan->head_bytes, 0, f);
    return rc ? rc : io_write_full(&io_posix, fd, t->data, t->size, offset, f);
}

/* As saves are written: whole or not at all, over a regular file alone, which keeps its
 * permissions. */
static int replace(const char *path, const struct safetensors_plan *plan, uint64_t offset,
                   const struct fp8d_tensor *t, struct fault *f)
{
    const char *name = path;
    struct replace r;
    int folder = replace_folder(&io_posix, path, &name, f);
    if (folder < 0)
        return folder;
    int rc = replace_open(&r, &io_posix, folder, name, f);
    if (!rc) {
        rc = write_all(r.fd, plan, offset, t, f);
        if (rc)
            replace_abort(&r);
        else
            rc = replace_commit(&r, f);
    }
    (void)io_posix.close(io_posix.self, folder);
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
