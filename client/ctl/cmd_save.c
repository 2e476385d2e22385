/* fp8ctl save. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/names.h"
#include "client/ctl/progress.h"

#include <stdio.h>

static int save_json(struct ctl *ctl, const struct args *a, const struct fp8d_result *r)
{
    const struct fp8d_save_report *s = fp8d_result_save(r);
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(a->argument[0]));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "file", json_text(a->argument[1]));
    json_put(ctl, o, "tensors", json_u64(s->tensors));
    json_put(ctl, o, "bytes_written", json_u64(s->bytes_written));
    json_put(ctl, o, "write_us", json_u64(s->write_us));
    return json_end(ctl, o);
}

static void save_print(const struct args *a, const struct fp8d_save_report *s)
{
    char text[CTL_TEXT], bytes[32];
    printf("saved %s", ctl_text(text, a->argument[0]));
    printf(" as %s: %u tensors, %s in %.3f s\n", ctl_text(text, a->argument[1]), s->tensors,
           bytes_text(s->bytes_written, bytes), (double)s->write_us / 1e6);
}

int cmd_save(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct progress line = {0};
    struct fp8d_save_options o = {.no_optimizer = args_has(a, "no-optimizer")};
    const char *model = a->argument[0], *path = a->argument[1];
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    rc = args_has(a, "server-path")
             ? fp8d_save_server_path(ctl->c, model, path, &o, progress_cb(), &line, &r, &err)
             : fp8d_save_file(ctl->c, model, path, &o, progress_cb(), &line, &r, &err);
    progress_end(&line);
    if (rc)
        return ctl_failed(ctl, &err);
    rc = CTL_OK;
    if (ctl->json)
        rc = save_json(ctl, a, r);
    else
        save_print(a, fp8d_result_save(r));
    fp8d_result_free(r);
    return rc;
}
