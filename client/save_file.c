/* Saving in one call: the target is replaced as a whole, when the server has written all of it. */
#include "client/chain.h"

#include "base/replace.h"
#include "base/text.h"

#include <string.h>

/* Numbers of saves made here; a caller who numbers its own is unlikely to meet them. */
#define SAVE_ID_BASE ((uint64_t)1 << 63)

static int send_begin(struct fp8d *c, struct chain *s, const struct fp8d_save_begin *begin,
                      struct fp8d_error *err)
{
    return chain_sent(s, fp8d_submit_save_begin(c, begin, NULL, chain_next(s), err));
}

static int send_attach(struct fp8d *c, struct chain *s, uint64_t save_id, const struct replace *to,
                       struct fp8d_error *err)
{
    struct fp8d_call call = chain_call(s);
    return chain_sent(
        s, fp8d_submit_save_attach(c, save_id, to->fd, to->name, &call, chain_next(s), err));
}

static int send_commit(struct fp8d *c, struct chain *s, uint64_t save_id, fp8d_progress_cb progress,
                       void *arg, struct fp8d_error *err)
{
    struct fp8d_call call = chain_call(s);
    return chain_sent(
        s, fp8d_submit_save_commit(c, save_id, progress, arg, &call, chain_next(s), err));
}

/* The requests of one save; `to` NULL: the server opens the file. */
static int ask(struct fp8d *c, struct fp8d_save_begin *begin, const struct replace *to,
               const struct fp8d_save_options *options, fp8d_progress_cb progress, void *arg,
               struct fp8d_result **out, struct fp8d_error *err)
{
    struct chain s = {0};
    begin->save_id = SAVE_ID_BASE | c->pending.last_id;
    if (options) {
        begin->expect = options->expect;
        begin->no_optimizer = options->no_optimizer;
    }
    int rc = send_begin(c, &s, begin, err);
    if (!rc && to)
        rc = send_attach(c, &s, begin->save_id, to, err);
    if (!rc)
        rc = send_commit(c, &s, begin->save_id, progress, arg, err);
    return chain_collect(c, &s, rc, out, err);
}

/* --- the file --- */

struct target {
    int dirfd;
    struct replace file;
};

static int target_open(struct target *t, const char *path, struct fault *f)
{
    char shown[256];
    const char *name = path;
    int rc = t->dirfd = replace_folder(&io_posix, path, &name, f);
    if (rc < 0)
        return rc;
    rc = replace_open(&t->file, &io_posix, t->dirfd, name, f);
    if (!rc)
        return 0;
    (void)io_posix.close(io_posix.self, t->dirfd);
    return fault_wrap(f, "%s", text_escape(shown, sizeof shown, path, strlen(path)));
}

/* Put the new file in the target's place if the save went well, else remove it. */
static int target_close(struct target *t, const char *path, int rc, struct fp8d_error *err)
{
    char shown[256];
    struct fault f = {0};
    if (rc) {
        replace_abort(&t->file);
    } else {
        rc = replace_commit(&t->file, &f);
        if (rc) {
            fault_wrap(&f, "%s", text_escape(shown, sizeof shown, path, strlen(path)));
            call_error(&f, err);
        }
    }
    (void)io_posix.close(io_posix.self, t->dirfd);
    return rc;
}

int fp8d_save_file(struct fp8d *c, const char *model, const char *path,
                   const struct fp8d_save_options *options, fp8d_progress_cb progress, void *arg,
                   struct fp8d_result **out, struct fp8d_error *err)
{
    struct fault f = {0};
    struct target t;
    struct fp8d_result *r = NULL;
    struct fp8d_save_begin begin = {.model = model};
    int rc = call_check(c, &f);
    if (!rc)
        rc = target_open(&t, path, &f);
    if (rc)
        return call_error(&f, err);
    rc = ask(c, &begin, &t.file, options, progress, arg, &r, err);
    rc = target_close(&t, path, rc, err);
    if (rc || !out)
        fp8d_result_free(r);
    else
        *out = r;
    return rc;
}

int fp8d_save_server_path(struct fp8d *c, const char *model, const char *path,
                          const struct fp8d_save_options *options, fp8d_progress_cb progress,
                          void *arg, struct fp8d_result **out, struct fp8d_error *err)
{
    struct fp8d_save_begin begin = {.model = model, .server_path = path};
    return ask(c, &begin, NULL, options, progress, arg, out, err);
}
