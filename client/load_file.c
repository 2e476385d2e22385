/* Loading in one call: three requests sent without waiting in between. */
#include "client/chain.h"

#include "base/io.h"

#include <string.h>

/* Numbers of loads made here; a caller who numbers its own is unlikely to meet them. */
#define LOAD_ID_BASE ((uint64_t)1 << 63)

static int send_begin(struct fp8d *c, struct chain *s, const struct fp8d_load_begin *begin,
                      struct fp8d_error *err)
{
    return chain_sent(s, fp8d_submit_load_begin(c, begin, NULL, chain_next(s), err));
}

static int send_attach(struct fp8d *c, struct chain *s, uint64_t load_id, int fd, const char *path,
                       struct fp8d_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    struct fp8d_call call = chain_call(s);
    return chain_sent(
        s, fp8d_submit_load_attach(c, load_id, &fd, &name, 1, &call, chain_next(s), err));
}

static int send_commit(struct fp8d *c, struct chain *s, uint64_t load_id, fp8d_progress_cb progress,
                       void *arg, struct fp8d_error *err)
{
    struct fp8d_call call = chain_call(s);
    return chain_sent(
        s, fp8d_submit_load_commit(c, load_id, progress, arg, &call, chain_next(s), err));
}

int fp8d_load_file(struct fp8d *c, const char *model, const char *path,
                   const struct fp8d_load_options *options, fp8d_progress_cb progress, void *arg,
                   struct fp8d_result **out, struct fp8d_error *err)
{
    struct fault f = {0};
    struct io_stat st;
    struct chain s = {0};
    int rc = call_check(c, &f);
    int fd = rc ? rc : io_open_read(&io_posix, path, &st, &f);
    if (fd < 0)
        return call_error(&f, err);
    struct fp8d_load_begin begin = {
        .load_id = LOAD_ID_BASE | c->pending.last_id, .model = model, .options = options};
    rc = send_begin(c, &s, &begin, err);
    if (!rc)
        rc = send_attach(c, &s, begin.load_id, fd, path, err);
    if (!rc)
        rc = send_commit(c, &s, begin.load_id, progress, arg, err);
    (void)io_posix.close(io_posix.self, fd);
    return chain_collect(c, &s, rc, out, err);
}

int fp8d_load_server_path(struct fp8d *c, const char *model, const char *path,
                          const struct fp8d_load_options *options, fp8d_progress_cb progress,
                          void *arg, struct fp8d_result **out, struct fp8d_error *err)
{
    struct chain s = {0};
    struct fp8d_load_begin begin = {.load_id = LOAD_ID_BASE | c->pending.last_id,
                                    .model = model,
                                    .server_path = path,
                                    .options = options};
    int rc = send_begin(c, &s, &begin, err);
    if (!rc)
        rc = send_commit(c, &s, begin.load_id, progress, arg, err);
    return chain_collect(c, &s, rc, out, err);
}
